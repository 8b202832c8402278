package io.imapwal.hazelcast;

import com.hazelcast.map.impl.mapstore.MapStoreContext;
import com.hazelcast.map.impl.mapstore.writethrough.WriteThroughStore;
import com.hazelcast.map.impl.recordstore.DefaultRecordStore;
import com.hazelcast.map.impl.recordstore.RecordStore;

import java.lang.reflect.Field;
import java.util.Collection;

/**
 * Notices a {@code clear} of one partition, also when memory has none of its keys: Hazelcast calls
 * the map store only if memory has a key, and the log may have keys that were evicted. Hazelcast
 * has no public API for this. In a version where it is not possible, a clear of a partition without
 * keys in memory is not noticed.
 */
final class LoggedClear extends WriteThroughStore {
    private static final Field STORE = Reflection.field(DefaultRecordStore.class, "mapDataStore");

    private final WalMapStore map;
    private final int partition;

    private LoggedClear(MapStoreContext context, WalMapStore map, int partition) {
        super(context);
        this.map = map;
        this.partition = partition;
    }

    static void place(RecordStore<?> store, WalMapStore map, int partition) {
        if (STORE == null || store.getMapDataStore().getClass() != WriteThroughStore.class) {
            return;
        }
        try {
            STORE.set(store, new LoggedClear(store.getMapContainer().getMapStoreContext(), map,
                    partition));
        } catch (IllegalAccessException e) {
            throw new IllegalStateException(e);
        }
    }

    /** Hazelcast calls this only for {@code clear}. */
    @Override
    @SuppressWarnings("rawtypes")
    public void removeAll(Collection keys) {
        if (keys == null || keys.isEmpty()) {
            map.clearEvicted(partition);
        } else {
            super.removeAll(keys);
        }
    }
}
