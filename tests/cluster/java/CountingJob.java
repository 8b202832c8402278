import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.internal.json.Json;
import com.hazelcast.internal.json.JsonObject;
import com.hazelcast.jet.Job;
import com.hazelcast.jet.config.JobConfig;
import com.hazelcast.jet.config.ProcessingGuarantee;
import com.hazelcast.jet.pipeline.Pipeline;
import com.hazelcast.jet.pipeline.Sinks;
import com.hazelcast.jet.pipeline.SourceBuilder;
import com.hazelcast.jet.pipeline.StreamSource;

import java.util.Map;

/**
 * A job whose source counts from 0, and goes on where its last snapshot was. It writes each number
 * into map "counted", and the number with which each run of it began into map "begins".
 */
final class CountingJob {
    private static final String NAME = "count";

    private CountingJob() {
    }

    static JsonObject start(HazelcastInstance member) {
        Pipeline pipeline = Pipeline.create();
        pipeline.readFrom(source()).withoutTimestamps().writeTo(Sinks.map("counted"));
        member.getJet().newJob(pipeline, new JobConfig().setName(NAME)
                .setProcessingGuarantee(ProcessingGuarantee.EXACTLY_ONCE)
                .setSnapshotIntervalMillis(100));
        return look(member);
    }

    static JsonObject look(HazelcastInstance member) {
        Job job = member.getJet().getJob(NAME);
        JsonObject state = Json.object().add("id", job == null ? "" : job.getIdString())
                .add("status", job == null ? "" : job.getStatus().toString());
        return state.add("begins", member.getMap("begins").size());
    }

    private static StreamSource<Map.Entry<Long, Long>> source() {
        return SourceBuilder.stream("numbers", context -> new Numbers(context.hazelcastInstance()))
                .<Map.Entry<Long, Long>>fillBufferFn((from, buffer) -> buffer.add(from.next()))
                .createSnapshotFn(numbers -> numbers.next)
                .restoreSnapshotFn((numbers, saved) -> numbers.next = saved.get(0))
                .build();
    }

    private static final class Numbers {
        private final HazelcastInstance member;
        private boolean began;
        private long next;

        private Numbers(HazelcastInstance member) {
            this.member = member;
        }

        private Map.Entry<Long, Long> next() throws InterruptedException {
            if (!began) {
                began = true;
                member.getMap("begins").set(System.nanoTime(), next);
            }
            Thread.sleep(1);
            return Map.entry(next++, next);
        }
    }
}
