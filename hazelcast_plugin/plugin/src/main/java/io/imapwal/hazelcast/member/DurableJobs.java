package io.imapwal.hazelcast.member;

import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.core.HazelcastInstanceNotActiveException;
import com.hazelcast.core.LifecycleEvent;
import com.hazelcast.jet.impl.JobRepository;
import com.hazelcast.logging.ILogger;
import io.imapwal.hazelcast.LogUnavailable;
import io.imapwal.wire.AgentError;

import java.util.List;
import java.util.concurrent.TimeUnit;

/**
 * Makes Hazelcast find the jobs in the log. It looks for jobs only in those of its maps that some
 * member has used since the start of the cluster.
 */
final class DurableJobs {
    private static final long PAUSE_MS = 500;

    private final HazelcastInstance instance;
    private final ILogger logger;

    private DurableJobs(HazelcastInstance instance, ILogger logger) {
        this.instance = instance;
        this.logger = logger;
    }

    /** Does this when the member has started, and when it has joined another cluster. */
    static void install(HazelcastInstance instance, ILogger logger) {
        DurableJobs jobs = new DurableJobs(instance, logger);
        instance.getLifecycleService().addLifecycleListener(event -> {
            if (event.getState() == LifecycleEvent.LifecycleState.STARTED
                    || event.getState() == LifecycleEvent.LifecycleState.MERGED) {
                Thread thread = new Thread(jobs::use, "imap-wal-jobs");
                thread.setDaemon(true);
                thread.start();
            }
        });
    }

    private void use() {
        boolean reported = false;
        while (true) {
            try {
                // The records are last: when they are there, Hazelcast starts jobs.
                for (String map : List.of(JobRepository.JOB_RESULTS_MAP_NAME,
                        JobRepository.JOB_EXECUTION_RECORDS_MAP_NAME,
                        JobRepository.JOB_RECORDS_MAP_NAME)) {
                    instance.getMap(map);
                }
                return;
            } catch (HazelcastInstanceNotActiveException e) {
                return;
            } catch (LogUnavailable e) {
                if (!reported) {
                    logger.warning("imap-wal: the jobs in the log are not started yet: "
                            + AgentError.reason(e));
                    reported = true;
                }
            }
            try {
                TimeUnit.MILLISECONDS.sleep(PAUSE_MS);
            } catch (InterruptedException e) {
                return;
            }
        }
    }
}
