package io.imapwal.hazelcast.member;

import com.hazelcast.internal.util.ExceptionUtil;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/**
 * What a user's {@code loadAll} loads in one partition. Hazelcast does not wait for the loading: it
 * asks again and again whether the partition is loaded, and repeats the question after an error. So
 * a failure stays known for some time.
 */
final class UserLoad {
    private static final long FAILURE_NANOS = TimeUnit.SECONDS.toNanos(5);

    /** Without the values, which the results have. */
    private volatile CompletableFuture<?> load = CompletableFuture.completedFuture(null);
    private volatile Failure failure;

    private record Failure(RuntimeException why, long nanos) {
    }

    /** @param failure of a load that ended a short time ago; null: it did not fail */
    record Progress(boolean done, RuntimeException failure) {
    }

    /** Another {@code loadAll} begins. */
    void begin() {
        failure = null;
    }

    /** Call it on the partition's thread only. */
    void add(CompletableFuture<?> next) {
        CompletableFuture<?> seen = next.handle((loaded, why) -> {
            if (why != null) {
                fail(ExceptionUtil.peel(why));
            }
            return null;
        });
        load = load.isDone() ? seen : CompletableFuture.allOf(load, seen);
    }

    void fail(RuntimeException why) {
        failure = new Failure(why, System.nanoTime());
    }

    /** What is known of the load now. */
    Progress progress() {
        // Before the failure is read: a load sets its failure before it is done.
        boolean done = load.isDone();
        Failure last = failure;
        return new Progress(done, last != null && System.nanoTime() - last.nanos < FAILURE_NANOS
                ? last.why : null);
    }
}
