package io.imapwal.hazelcast;

import com.hazelcast.spi.exception.RetryableHazelcastException;

import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import java.util.concurrent.TimeUnit;

/**
 * What this member's memory holds of one map, for each partition that it owns.
 *
 * <pre>
 *            gained by loss; or it arrived from a member where it was unsettled
 *  whole ─────────────────────────────────────────────────────────────────▶ unsettled
 *    │ ▲                                                                      │  ▲
 *    │ └───────── Settlement compared all of it with the log ─────────────────┘  │
 *    ▼ evict                                                                     │
 *  partial ──────────────────────── gained by loss ──────────────────────────────┘
 *
 *  whole      what is not in memory is not in the log    load answers null without asking
 *  partial    a key was evicted                          load asks the log
 *  unsettled  memory and log may differ                  operations wait, and fail with
 *                                                        LogUnavailable after settle-timeout-ms
 * </pre>
 *
 * A partition counts as whole until something is known that says otherwise. So everything that can
 * make it not whole has to be noticed: {@link SettlementService} does that, and treats what it cannot
 * explain as a loss.
 */
final class Wholeness {
    private final String map;
    private final ConcurrentMap<Integer, Unsettled> unsettled = new ConcurrentHashMap<>();
    private final Set<Integer> partial = ConcurrentHashMap.newKeySet();

    Wholeness(String map) {
        this.map = map;
    }

    /** Why a partition has to be settled. Compared by identity: a settlement ends the reason that was there when it began, and no later one. */
    static final class Unsettled {
        final long sinceNanos;
        /** The member that must have left before the partition is compared with the log; or null. */
        final UUID leaving;
        volatile String reason = "it is waiting for its turn";
        /** The gate is there, and every change that began before it has ended: the log has it, or never will. */
        volatile boolean quiet;

        private Unsettled(long sinceNanos, UUID leaving) {
            this.sinceNanos = sinceNanos;
            this.leaving = leaving;
        }
    }

    /** Nothing of the map has to be settled, and nothing was evicted. */
    boolean everywhere() {
        return unsettled.isEmpty() && partial.isEmpty();
    }

    boolean partial(int partition) {
        return partial.contains(partition);
    }

    boolean settled(int partition) {
        return !unsettled.containsKey(partition);
    }

    Unsettled unsettled(int partition) {
        return unsettled.get(partition);
    }

    /** All that has to be settled now. */
    Map<Integer, Unsettled> unsettled() {
        return Map.copyOf(unsettled);
    }

    Set<Integer> partial() {
        return Set.copyOf(partial);
    }

    /** @param leaving the member that must have left before; or null */
    void doubt(int partition, UUID leaving) {
        // Waiting began with the first reason.
        unsettled.compute(partition, (id, former) ->
                new Unsettled(former == null ? System.nanoTime() : former.sinceNanos, leaving));
    }

    void evicted(int partition) {
        partial.add(partition);
    }

    /**
     * On the partition's thread: it is being compared with the log, and what was evicted before comes
     * back. What is evicted from now on does not: Hazelcast evicts also where operations wait.
     */
    void refill(int partition) {
        partial.remove(partition);
    }

    /** Memory agrees with the log now. @return false: there is a newer reason to settle it again */
    boolean settle(int partition, Unsettled proved) {
        return unsettled.remove(partition, proved);
    }

    /** The partition has another owner. */
    void forget(int partition) {
        unsettled.remove(partition);
        partial.remove(partition);
    }

    void forgetAll() {
        unsettled.clear();
        partial.clear();
    }

    /** Whether operations have waited so long that they now fail. */
    boolean overdue(int partition, AgentSettings settings) {
        Unsettled reason = unsettled.get(partition);
        return reason != null
                && System.nanoTime() - reason.sinceNanos > TimeUnit.MILLISECONDS.toNanos(settings.settleTimeoutMs());
    }

    /** The exception for an operation on an unsettled partition. */
    RuntimeException refusal(int partition, AgentSettings settings, String agent) {
        Unsettled reason = unsettled.get(partition);
        String why = reason == null ? "" : ": " + reason.reason;
        String text = "map \"" + map + "\": partition " + partition + " is compared with the log of " + agent
                + " before it is used, because its former owner was lost";
        return overdue(partition, settings)
                ? new LogUnavailable(text + "; this has not succeeded yet" + why
                        + ". Nothing was changed. The member retries until it succeeds", null)
                : new RetryableHazelcastException(text);
    }
}
