package io.imapwal.hazelcast.append;

import io.imapwal.wire.Pulse;

import java.util.concurrent.TimeUnit;
import java.util.function.LongSupplier;

/**
 * Whether an agent may be used for appends. One that failed, or was slow, is left out until it has
 * answered again ({@link Pulse}) and a pause has ended, which is longer after each failure.
 */
final class Breaker {
    static final long PAUSE_MIN_MS = 100;
    static final long PAUSE_MAX_MS = 5_000;
    /** An agent that was used for this time without a failure counts as healthy. */
    static final long WELL_MS = 10_000;

    private final LongSupplier clock;
    private final LongSupplier answered;
    private boolean open;
    private long failedNanos;
    private long usedNanos;
    private long pauseMs = PAUSE_MIN_MS;

    /**
     * @param clock    nanoseconds
     * @param answered when the agent answered last, in nanoseconds of that clock
     */
    Breaker(LongSupplier clock, LongSupplier answered) {
        this.clock = clock;
        this.answered = answered;
    }

    synchronized void failed() {
        long now = clock.getAsLong();
        boolean well = !open && now - usedNanos > TimeUnit.MILLISECONDS.toNanos(WELL_MS);
        pauseMs = well ? PAUSE_MIN_MS : Math.min(PAUSE_MAX_MS, pauseMs * 2);
        open = true;
        failedNanos = now;
    }

    /** The agent is used from now on. */
    synchronized void used() {
        if (open || usedNanos == 0) {
            open = false;
            usedNanos = clock.getAsLong();
        }
    }

    synchronized boolean allows() {
        return !open || answered.getAsLong() - failedNanos > 0
                && clock.getAsLong() - failedNanos > TimeUnit.MILLISECONDS.toNanos(pauseMs);
    }
}
