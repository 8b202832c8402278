package io.imapwal.hazelcast.settle;

import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.TimeUnit;
import java.util.function.IntSupplier;
import java.util.function.LongSupplier;

/**
 * The members that have left or were replaced as owners, and the time from which the others may
 * claim a view without them.
 *
 * <p>If the network is split, each part sees the others leave, and the first claim wins. Hazelcast
 * later merges the smaller part into the larger one. If the smaller part had won, all members would
 * have to open their maps again after that. So a part that is smaller than the lost one waits, so
 * that the others can claim first. It waits for the longest time between the moments at which two
 * members notice the same loss. If no part claims in that time, it does. Every part waits for a
 * short time without more departures, because members that are lost together are reported one by
 * one.
 */
public final class Departures {
    private static final long QUIET_NANOS = TimeUnit.MILLISECONDS.toNanos(200);

    private final long graceNanos;
    private final IntSupplier present;
    private final LongSupplier clock;
    /**
     * The time at which each of them left. They are kept, because a map of another agent may be
     * opened later.
     */
    private final Map<UUID, Long> left = new HashMap<>();
    private long newest;

    /**
     * @param graceNanos how long a smaller part lets others claim
     * @param present    how many members with data this member's part has
     * @param clock      nanoseconds
     */
    Departures(long graceNanos, IntSupplier present, LongSupplier clock) {
        this.graceNanos = graceNanos;
        this.present = present;
        this.clock = clock;
    }

    public synchronized void add(Set<UUID> members) {
        long now = clock.getAsLong();
        for (UUID member : members) {
            if (left.putIfAbsent(member, now) == null) {
                newest = now;
            }
        }
    }

    public synchronized void clear() {
        left.clear();
    }

    public synchronized Set<UUID> members() {
        return new HashSet<>(left.keySet());
    }

    /** Waits until this part may claim a view. @return the members that are not in that view */
    Set<UUID> awaitTurn() throws InterruptedException {
        for (long wait; (wait = turnNanos()) > 0;) {
            TimeUnit.NANOSECONDS.sleep(wait);
        }
        return members();
    }

    /** Nanoseconds until this part may claim; 0 or less: now. */
    synchronized long turnNanos() {
        if (left.isEmpty()) {
            return 0;
        }
        // Earlier losses do not count: this part was larger then.
        long together = left.values().stream().filter(at -> newest - at <= graceNanos).count();
        long wait = present.getAsInt() < together ? Math.max(graceNanos, QUIET_NANOS) : QUIET_NANOS;
        return newest + wait - clock.getAsLong();
    }
}
