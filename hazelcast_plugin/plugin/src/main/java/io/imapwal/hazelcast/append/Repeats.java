package io.imapwal.hazelcast.append;

import io.imapwal.hazelcast.LogUnavailable;
import io.imapwal.hazelcast.NotAppended;
import io.imapwal.hazelcast.OutcomeUnknown;
import io.imapwal.wire.AgentError;

import java.util.HashSet;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.TimeUnit;
import java.util.function.LongSupplier;
import java.util.function.Supplier;

/**
 * Whether an operation may be a repetition. Hazelcast repeats an operation when the member that
 * carries it out leaves, or when its partition moves, and its caller gets the outcome of the last
 * attempt only. The first attempt may be in the log by then. So for some time after members left or
 * partitions moved, no refusal may say that nothing was changed.
 *
 * <pre>
 *  NotAppended, LogUnavailable   while members and partitions stay: the caller gets it
 *                                after a change: the caller gets OutcomeUnknown
 * </pre>
 */
public final class Repeats {
    private final long keptNanos;
    private final Supplier<Set<UUID>> present;
    private final LongSupplier clock;
    private Set<UUID> known = Set.of();
    private boolean began;
    private long beganNanos;

    /**
     * @param keptNanos how long after a change an operation may still be repeated
     * @param present   the members of this member's cluster
     * @param clock     nanoseconds
     */
    public Repeats(long keptNanos, Supplier<Set<UUID>> present, LongSupplier clock) {
        this.keptNanos = keptNanos;
        this.present = present;
        this.clock = clock;
    }

    /** A member left or a partition moved: operations are repeated from now on. */
    public synchronized void begin() {
        began = true;
        beganNanos = clock.getAsLong();
        known = new HashSet<>(present.get());
    }

    /** A member joined: no operation is repeated because of that. */
    public synchronized void look() {
        Set<UUID> now = present.get();
        if (now.containsAll(known)) {
            known = new HashSet<>(now);
        } else {
            begin();
        }
    }

    /** Whether an operation that is carried out now may be a repetition. */
    public synchronized boolean possible() {
        look();  // Hazelcast may repeat an operation before it reports that the member left.
        return began && clock.getAsLong() - beganNanos < keptNanos;
    }

    /** The exception for a caller whose last attempt got this one. */
    public RuntimeException outcome(String map, RuntimeException failure) {
        if (!(failure instanceof NotAppended || failure instanceof LogUnavailable) || !possible()) {
            return failure;
        }
        return new OutcomeUnknown(
                "map \"" + map + "\": a member left or a partition moved less than "
                        + TimeUnit.NANOSECONDS.toSeconds(keptNanos) + " s ago, so Hazelcast may"
                        + " have repeated this operation. An earlier attempt of a change may be in"
                        + " the log: read the key. The last attempt: " + AgentError.reason(failure),
                failure);
    }
}
