package io.imapwal.hazelcast.settle;

import com.hazelcast.spi.exception.RetryableHazelcastException;
import io.imapwal.hazelcast.LogUnavailable;
import io.imapwal.wire.AgentSettings;

import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.concurrent.atomic.AtomicLongArray;

/**
 * Whether this member's memory of one map agrees with the log, for each partition that it owns.
 *
 * <pre>
 * not whole ──▶ unsettled   first use of the map here; gained by loss; it arrived from a member
 *                           where it was not whole
 * not whole ──▶ whole       it arrived whole from its former owner
 * unsettled ──▶ whole       Settlement made memory equal to the log
 * whole ──▶ partial         eviction of a key
 * whole ──▶ unsettled       gained by loss
 * partial ──▶ unsettled     gained by loss
 * each ──▶ not whole        the partition leaves
 *
 * whole      keys that are not in memory are not in the log: load returns null at once
 * partial    a key was evicted: load reads the log
 * unsettled  memory and log may differ: operations wait, and fail with LogUnavailable after
 *            settle-timeout-ms; while the map is loaded the first time, restore-timeout-ms after
 *            the last entries arrived and the agent last worked on reads
 * </pre>
 *
 * A partition is whole only after proof, and not after it has left. So safety does not depend on
 * events.
 */
public final class Wholeness {
    private final String map;
    private final AtomicLongArray whole;
    private final ConcurrentMap<Integer, Unsettled> unsettled = new ConcurrentHashMap<>(1);
    private final Set<Integer> partial = ConcurrentHashMap.newKeySet(1);
    /** How often each partition has stopped being whole. */
    private final AtomicIntegerArray losses;
    /** When entries of the log arrived last, or the agent worked on reads. */
    private volatile long progressNanos = System.nanoTime();

    Wholeness(String map, int partitions) {
        this.map = map;
        this.whole = new AtomicLongArray((partitions + 63) / 64);
        this.losses = new AtomicIntegerArray(whole.length() * 64);
    }

    /**
     * The reason why a partition has to be settled. It is compared by identity: a settlement ends
     * the reason that existed when it began, and no later one.
     */
    static final class Unsettled {
        private final long sinceNanos;
        /** The member that must leave before the partition is compared with the log; or null. */
        final UUID leaving;
        /** Nothing was lost: the map was not in memory here yet. */
        public final boolean first;
        public volatile String reason = "it is waiting for its turn";
        /**
         * Operations wait, and every change that began before has ended: the log has it, or never
         * will.
         */
        volatile boolean quiet;
        /** How often memory has changed since then. Used on the partition's thread only. */
        public int changes;

        private Unsettled(Unsettled former, UUID leaving, boolean first, boolean quiet) {
            this.quiet = quiet;
            // Waiting began with the first reason.
            this.sinceNanos = former == null ? System.nanoTime() : former.sinceNanos;
            // Until that member has left, the log may still change.
            this.leaving = leaving == null && former != null ? former.leaving : leaving;
            this.first = first;
        }
    }

    public boolean whole(int partition) {
        return (whole.get(partition >> 6) & 1L << partition) != 0;
    }

    /**
     * If this number and {@link #whole} are as before, only operations have changed memory.
     */
    public int losses(int partition) {
        return losses.get(partition);
    }

    public boolean partial(int partition) {
        return partial.contains(partition);
    }

    public Unsettled unsettled(int partition) {
        return unsettled.get(partition);
    }

    /** All partitions that have to be settled now. */
    public Map<Integer, Unsettled> unsettled() {
        return Map.copyOf(unsettled);
    }

    int unsettledCount() {
        return unsettled.size();
    }

    public boolean isAnyUnsettled() {
        return !unsettled.isEmpty();
    }

    /**
     * The partition has to be settled, unless it is whole or there is a reason to settle it
     * already.
     *
     * @return whether that is new
     */
    public boolean demand(int partition, boolean first) {
        if (whole(partition) || unsettled.containsKey(partition)) {
            return false;
        }
        boolean[] added = {false};
        unsettled.computeIfAbsent(partition, id -> {
            added[0] = !whole(partition);
            // The map was not in memory here: no change can have begun.
            return added[0] ? new Unsettled(null, null, first, first) : null;
        });
        return added[0];
    }

    /**
     * Memory and log may differ from now on.
     *
     * @param leaving the member that must leave before it is settled; or null: a former reason may
     *                name one
     */
    public void doubt(int partition, UUID leaving, boolean first) {
        unsettled.compute(partition, (id, former) -> {
            set(partition, false);
            return new Unsettled(former, leaving, first, false);
        });
    }

    public void evicted(int partition) {
        partial.add(partition);
    }

    /** On the partition's thread: an entry was set or removed in memory. */
    public void changed(int partition) {
        Unsettled reason = unsettled.get(partition);
        if (reason != null) {
            reason.changes++;
        }
    }

    /**
     * Called on the partition's thread when a comparison with the log begins. The comparison loads
     * what was evicted before. What is evicted from now on is not loaded: Hazelcast also evicts
     * while operations wait.
     */
    void refill(int partition) {
        partial.remove(partition);
    }

    /**
     * Memory agrees with the log now.
     *
     * @return false: there is a newer reason to settle it again, or it has another owner
     */
    public boolean settle(int partition, Unsettled proved) {
        boolean[] settled = {false};
        unsettled.computeIfPresent(partition, (id, reason) -> {
            if (reason != proved) {
                return reason;
            }
            set(partition, true);
            settled[0] = true;
            return null;
        });
        return settled[0];
    }

    /** It arrived from a member where it was whole. */
    void arrived(int partition) {
        unsettled.compute(partition, (id, former) -> {
            set(partition, true);
            return null;
        });
    }

    /** The partition has another owner. */
    public void forget(int partition) {
        unsettled.compute(partition, (id, former) -> {
            set(partition, false);
            return null;
        });
        partial.remove(partition);
    }

    void forgetAll() {
        for (int partition = 0; partition < whole.length() << 6; partition++) {
            if (whole(partition) || unsettled.containsKey(partition)) {
                forget(partition);
            }
        }
        partial.clear();
    }

    private void set(int partition, boolean now) {
        if (!now) {
            losses.incrementAndGet(partition);
        }
        long bit = 1L << partition;
        whole.getAndUpdate(partition >> 6, word -> now ? word | bit : word & ~bit);
    }

    void progress() {
        progressNanos = System.nanoTime();
    }

    /** The agent worked on reads at that time, if no entries have arrived since then. */
    void progress(long atNanos) {
        if (atNanos - progressNanos > 0) {
            progressNanos = atNanos;
        }
    }

    /**
     * Whether operations have waited so long that they now fail. While entries arrive, a large map
     * may load for any time.
     */
    boolean overdue(int partition, AgentSettings settings) {
        Unsettled reason = unsettled.get(partition);
        if (reason == null) {
            return false;
        }
        long waited = System.nanoTime() - reason.sinceNanos;
        if (!reason.first) {
            return waited > TimeUnit.MILLISECONDS.toNanos(settings.settleTimeoutMs());
        }
        long idle = Math.min(waited, System.nanoTime() - progressNanos);
        return idle > TimeUnit.MILLISECONDS.toNanos(settings.restoreTimeoutMs());
    }

    /**
     * Whether no entries of the log have arrived for so long that a load fails.
     *
     * @param since when waiting began
     */
    boolean isQuiet(long since, AgentSettings settings) {
        long now = System.nanoTime();
        return Math.min(now - since, now - progressNanos) > TimeUnit.MILLISECONDS.toNanos(
                settings.restoreTimeoutMs());
    }

    /** The exception for an operation on an unsettled partition. */
    public RuntimeException refusal(int partition, AgentSettings settings, String agent) {
        Unsettled reason = unsettled.get(partition);
        String text = "map \"" + map + "\": partition " + partition
                + (reason == null || reason.first
                ? " is restored from the log of " + agent + " before it is used"
                : " is compared with the log of " + agent
                + " before it is used, because its former owner was lost");
        return overdue(partition, settings)
                ? new LogUnavailable(text + "; this has not succeeded yet"
                    + (reason == null ? "" : ": " + reason.reason)
                        + ". Nothing was changed. The member retries until it succeeds", null)
                : new RetryableHazelcastException(text);
    }
}
