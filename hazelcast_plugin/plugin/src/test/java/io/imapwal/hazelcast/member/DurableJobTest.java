package io.imapwal.hazelcast.member;

import com.hazelcast.config.Config;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.jet.Job;
import com.hazelcast.jet.config.JobConfig;
import com.hazelcast.jet.config.ProcessingGuarantee;
import com.hazelcast.jet.pipeline.Pipeline;
import com.hazelcast.jet.pipeline.Sinks;
import com.hazelcast.jet.pipeline.SourceBuilder;
import com.hazelcast.jet.pipeline.StreamSource;
import com.hazelcast.map.IMap;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

import java.util.List;
import java.util.Map;

import static io.imapwal.hazelcast.member.Members.eventually;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;

/** Jobs of Jet whose records and snapshots are in the log. */
class DurableJobTest {
    private final TestCluster cluster = new TestCluster("jobs");

    private HazelcastInstance start(int number) throws Exception {
        FakeAgent agent = cluster.startAgent();
        Config config = cluster.config(number, agent)
                .setProperty("imap-wal.agent", agent.endpoint())
                .setProperty("imap-wal.durable-maps", "*, __jet.*")
                .setProperty("hazelcast.jet.job.scan.period", "200");
        config.getJetConfig().setEnabled(true).setCooperativeThreadCount(2);
        return cluster.start(config);
    }

    @AfterEach
    void stop() throws Exception {
        cluster.stop();
        cluster.agents.forEach(agent -> assertEquals(List.of(), agent.violations));
    }

    /** Numbers from 0, which go on where the last snapshot was. */
    private static StreamSource<Map.Entry<Long, Long>> numbers() {
        return SourceBuilder.stream("numbers", context -> new long[1])
                .<Map.Entry<Long, Long>>fillBufferFn((next, buffer) -> {
                    buffer.add(Map.entry(next[0], next[0] + 1));
                    next[0]++;
                    Thread.sleep(1);
                })
                .createSnapshotFn(next -> next[0])
                .restoreSnapshotFn((next, saved) -> next[0] = saved.get(0))
                .build();
    }

    @Test
    void aJobGoesOnFromItsLastSnapshot() throws Exception {
        HazelcastInstance member = start(0);
        Pipeline pipeline = Pipeline.create();
        pipeline.readFrom(numbers()).withoutTimestamps().writeTo(Sinks.map("counted"));
        Job job = member.getJet().newJob(pipeline, new JobConfig().setName("count")
                .setProcessingGuarantee(ProcessingGuarantee.EXACTLY_ONCE)
                .setSnapshotIntervalMillis(50));
        // The first snapshot after the number 0 was written.
        eventually(() -> cluster.log.size("counted") > 0);
        long snapshots = snapshots();
        eventually(() -> snapshots() > snapshots + 1);
        cluster.terminateAll();
        int before = cluster.log.size("counted");
        HazelcastInstance again = start(1);
        // What the job writes again is only what came after its last snapshot.
        IMap<Long, Long> counted = again.getMap("counted");
        counted.remove(0L);
        eventually(() -> counted.size() > before + 50);
        assertFalse(counted.containsKey(0L), "it began from the start");
        Job restored = again.getJet().getJob("count");
        assertEquals(job.getId(), restored.getId());
        restored.cancel();
        eventually(() -> cluster.log.size("__jet.records") == 0);
    }

    /** How often the state of a snapshot was logged. */
    private long snapshots() {
        return cluster.log.appendedTo("__jet.executionRecords");
    }
}
