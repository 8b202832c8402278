package io.imapwal.hazelcast.append;

import com.hazelcast.internal.serialization.Data;
import com.hazelcast.spi.exception.RetryableHazelcastException;

import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import java.util.function.Predicate;

/**
 * The keys in this member's partitions that transactions are changing now, with the state of each.
 *
 * <pre>
 *            PlaceOperation          the coordinator has logged the transaction
 *  nothing ───────────────▶ placed ─────────────────────────────────────────────▶ logged
 *     ▲                       │  other changes of the key wait                      │
 *     │                       │  not logged: ReleaseOperation                       │ memory
 *     │                       │  not known, or coordinator lost: DoubtProcessor     │ is changed
 *     └───────────────────────┴─────────────────────────────────────────────────────┘
 * </pre>
 *
 * A partition with such keys is not migrated. If its owner is lost, the next owner settles it from
 * the log.
 */
public final class Placements {
    private final OrderGuard guard;
    private final ConcurrentMap<Key, Placement> placements = new ConcurrentHashMap<>();

    public Placements(OrderGuard guard) {
        this.guard = guard;
    }

    private record Key(String map, Data key) {
    }

    /**
     * @param coordinator the member that logs the transaction
     * @param sinceNanos  when the key got its place
     * @param value       in the log; null: a tombstone
     */
    private record Placement(UUID transaction, UUID coordinator, long sinceNanos, int partition,
            long order, boolean logged, Data value) {

        Placement loggedAs(Data now) {
            return new Placement(transaction, coordinator, sinceNanos, partition, order, true, now);
        }

        public Placement notLogged() {
            return new Placement(transaction, coordinator, sinceNanos, partition, order, false,
                    null);
        }
    }

    /** A key that a transaction was changing. */
    public record Left(String map, Data key, int partition, UUID transaction) {
    }

    /** @throws RetryableHazelcastException another transaction is changing the key */
    public void check(String map, Data key, UUID transaction) {
        if (isChanged(map, key, transaction)) {
            throw busy(map);
        }
    }

    /** Whether a transaction other than this one is changing the key. */
    public boolean isChanged(String map, Data key, UUID transaction) {
        Placement other = placements.get(new Key(map, key));
        return other != null && !other.transaction.equals(transaction);
    }

    public boolean contains(String map, Data key) {
        return placements.containsKey(new Key(map, key));
    }

    /** @param order the key's place */
    public void place(String map, Data key, UUID transaction, UUID coordinator, int partition,
            long order) {
        Placement placed = new Placement(transaction, coordinator, System.nanoTime(), partition,
                order, false, null);
        placements.put(new Key(map, key), placed);
    }

    /** @return false: the key was changed or settled since then, or had another owner then */
    public boolean setLogged(String map, Data key, UUID transaction, Data value) {
        Placement now = placements.computeIfPresent(new Key(map, key),
                (each, known) -> known.transaction.equals(transaction) ? known.loggedAs(value)
                : known);
        return now != null && now.transaction.equals(transaction);
    }

    /**
     * Memory is about to be set to the value that the log has. The key keeps its place until then,
     * except if a backup has moved: see {@link #isLogged}.
     */
    public void settle(String map, Data key, UUID transaction, Data value) {
        placements.computeIfPresent(new Key(map, key), (each, known) ->
                !known.transaction.equals(transaction) ? known
                : guard.isPresentVersion(known.partition, known.order) ? known.loggedAs(value)
                : null);
    }

    /**
     * Memory was not set. Other changes of the key wait again. Otherwise one with the same value
     * and another expiry would count as logged.
     */
    public void notSet(String map, Data key) {
        placements.computeIfPresent(new Key(map, key), (each, known) -> known.notLogged());
    }

    /**
     * The transaction that has logged a change of the key which memory may not have yet. The place
     * ends when a change of the key is in the log and is about to be in memory: if that fails, the
     * key still has to be settled.
     *
     * @return null: none
     * @throws RetryableHazelcastException the outcome of the transaction is not known yet
     */
    UUID logged(String map, Data key) {
        Placement known = placements.get(new Key(map, key));
        if (known == null) {
            return null;
        }
        if (!known.logged) {
            throw busy(map);
        }
        return known.transaction;
    }

    /**
     * Whether the change that Hazelcast passes to the map store is in the log already, as a part of
     * a transaction. If not, it is a later change, or this one changed by an interceptor: it is
     * logged with a later order.
     */
    public boolean isLogged(String map, Data key, Data value) {
        Placement known = placements.get(new Key(map, key));
        // If a backup has moved since then, the owner may have logged changes with the new version.
        // A rewrite that has read these would treat older ones as changes of a former owner, so the
        // change is logged again.
        return known != null && known.logged
                && guard.isPresentVersion(known.partition, known.order)
                && (value == null ? known.value == null : value.equals(known.value));
    }

    /** @return whether it was there, so that memory was not set through the map store */
    public boolean remove(String map, Data key, UUID transaction) {
        Key each = new Key(map, key);
        Placement known = placements.get(each);
        return known != null && known.transaction.equals(transaction)
                && placements.remove(each, known);
    }

    public void removeAll(UUID transaction) {
        placements.values().removeIf(each -> each.transaction.equals(transaction));
    }

    /**
     * The keys of a partition of which transactions have logged changes, with these transactions.
     *
     * @throws RetryableHazelcastException the outcome of a transaction is not known yet
     */
    Map<Data, UUID> logged(String map, int partition) {
        if (placements.isEmpty()) {
            return Map.of();
        }
        Map<Data, UUID> logged = new HashMap<>();
        placements.forEach((key, each) -> {
            if (key.map.equals(map) && each.partition == partition) {
                if (!each.logged) {
                    throw busy(map);
                }
                logged.put(key.key, each.transaction);
            }
        });
        return logged;
    }

    public void forget(String map) {
        placements.keySet().removeIf(each -> each.map.equals(map));
    }

    public void clear() {
        placements.clear();
    }

    public boolean none() {
        return placements.isEmpty();
    }

    public int size() {
        return placements.size();
    }

    /** The maps of which transactions are changing keys in this partition. */
    public Set<String> maps(int partition) {
        Set<String> maps = new HashSet<>();
        placements.forEach((key, each) -> {
            if (each.partition == partition) {
                maps.add(key.map);
            }
        });
        return maps;
    }

    /** Whether all keys in this partition have had their places for longer than that. */
    public boolean areOlder(int partition, long nanos) {
        long now = System.nanoTime();
        return placements.values().stream().noneMatch(each -> each.partition == partition
                && now - each.sinceNanos < nanos);
    }

    /** The keys whose transaction that member coordinates. */
    public List<Left> of(UUID coordinator) {
        return left(each -> each.coordinator.equals(coordinator));
    }

    /** The keys of these transactions. */
    public List<Left> of(Collection<UUID> transactions) {
        return left(each -> transactions.contains(each.transaction));
    }

    private List<Left> left(Predicate<Placement> which) {
        List<Left> left = new ArrayList<>();
        placements.forEach((key, each) -> {
            if (which.test(each)) {
                left.add(new Left(key.map, key.key, each.partition, each.transaction));
            }
        });
        return left;
    }

    /** Coordinator → its transactions that have a place for longer than that. */
    public Map<UUID, Set<UUID>> olderThan(long nanos) {
        Map<UUID, Set<UUID>> older = new HashMap<>();
        long now = System.nanoTime();
        placements.values().forEach(each -> {
            if (now - each.sinceNanos >= nanos) {
                older.computeIfAbsent(each.coordinator, id -> new HashSet<>())
                        .add(each.transaction);
            }
        });
        return older;
    }

    private static RetryableHazelcastException busy(String map) {
        return new RetryableHazelcastException("map \"" + map
                + "\": a transaction changes the key, and its outcome is not known yet");
    }
}
