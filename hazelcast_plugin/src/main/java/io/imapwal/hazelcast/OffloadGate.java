package io.imapwal.hazelcast;

import com.hazelcast.map.impl.operation.MapOperation;
import com.hazelcast.map.impl.recordstore.DefaultRecordStore;

import java.lang.reflect.Field;
import java.util.LinkedHashSet;

/**
 * The queue of a record store's offloaded operations, closed while its partition is not whole.
 * With offload, {@code containsKey} and some others look into memory without checking whether the
 * map is loaded, so {@link Gate} does not hold them. All offloaded operations go through this queue.
 */
final class OffloadGate extends LinkedHashSet<MapOperation> {
    private static final Field QUEUE = Reflection.field(DefaultRecordStore.class, "offloadedOperations");

    private final transient MapState state;
    private final int partition;

    private OffloadGate(MapState state, int partition) {
        this.state = state;
        this.partition = partition;
    }

    static void place(DefaultRecordStore store, MapState state, int partition) {
        // A queue that is in use is not replaced: the operations in it refer to it.
        if (QUEUE != null && !(store.getOffloadedOperations() instanceof OffloadGate) && store.getOffloadedOperations().isEmpty()) {
            try {
                QUEUE.set(store, new OffloadGate(state, partition));
            } catch (IllegalAccessException e) {
                throw new IllegalStateException(e);
            }
        }
    }

    @Override
    public boolean add(MapOperation operation) {
        if (state.holds(partition)) {
            state.demand(partition);
            throw state.refusal(partition);
        }
        return super.add(operation);
    }
}
