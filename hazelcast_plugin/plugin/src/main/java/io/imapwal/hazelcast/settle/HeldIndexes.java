package io.imapwal.hazelcast.settle;

import com.hazelcast.map.impl.MapContainer;
import com.hazelcast.query.impl.IndexRegistry;
import com.hazelcast.query.impl.InternalIndex;

import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import java.util.stream.Stream;

/**
 * The indexes of one map that are not used while a partition waits. A query by an index does not
 * ask a {@code LoggedRecordStore}. Hazelcast uses the indexes of a member while all of its
 * partitions count as indexed, and scans the partitions otherwise.
 *
 * <p>After the wait, only an index that had all entries of the partition counts again. An index
 * that was added meanwhile may lack entries, and Hazelcast fills it only while it does not count.
 */
final class HeldIndexes {
    private final ConcurrentMap<Integer, Set<InternalIndex>> held = new ConcurrentHashMap<>(1);

    /** On the partition's thread. @param container null: the map is not in memory */
    void hold(MapContainer container, int partition) {
        IndexRegistry registry = container == null ? null : container.getGlobalIndexRegistry();
        if (registry == null) {
            return;
        }
        InternalIndex[] used = Stream.of(registry.getIndexes())
                .filter(index -> index.hasPartitionIndexed(partition))
                .toArray(InternalIndex[]::new);
        if (used.length > 0) {
            IndexRegistry.beginPartitionUpdate(used);
            IndexRegistry.markPartitionAsUnindexed(partition, used);
            held.computeIfAbsent(partition, id -> ConcurrentHashMap.newKeySet())
                    .addAll(List.of(used));
        }
    }

    boolean any(int partition) {
        return held.containsKey(partition);
    }

    /** On the partition's thread. */
    void release(int partition) {
        Set<InternalIndex> indexes = held.remove(partition);
        if (indexes != null) {
            InternalIndex[] complete = indexes.toArray(new InternalIndex[0]);
            IndexRegistry.beginPartitionUpdate(complete);
            IndexRegistry.markPartitionAsIndexed(partition, complete);
        }
    }

    /** The partition has another owner: Hazelcast removed its entries from the indexes. */
    void forget(int partition) {
        held.remove(partition);
    }

    void forgetAll() {
        held.clear();
    }
}
