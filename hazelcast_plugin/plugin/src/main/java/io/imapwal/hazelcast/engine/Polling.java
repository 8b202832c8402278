package io.imapwal.hazelcast.engine;

import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;

/** Waits for a condition that has no event: checks it after pauses that grow from 1 to 50 ms. */
public final class Polling {
    private static final long PAUSE_MAX_MS = 50;

    private Polling() {
    }

    /**
     * Returns when the condition holds, or when {@code nanos} have passed.
     *
     * @return whether it holds
     */
    public static boolean until(BooleanSupplier condition, long nanos) throws InterruptedException {
        long deadline = System.nanoTime() + nanos;
        for (long pauseMs = 1; !condition.getAsBoolean(); pauseMs = Math.min(2 * pauseMs,
                PAUSE_MAX_MS)) {
            long left = deadline - System.nanoTime();
            if (left <= 0) {
                return false;
            }
            TimeUnit.NANOSECONDS.sleep(Math.min(left, TimeUnit.MILLISECONDS.toNanos(pauseMs)));
        }
        return true;
    }
}
