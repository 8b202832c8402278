package io.imapwal.hazelcast;

import com.hazelcast.internal.util.ConstructorFunction;
import com.hazelcast.map.impl.MapService;
import com.hazelcast.map.impl.MapServiceContext;
import com.hazelcast.map.impl.MapStoreWrapper;
import com.hazelcast.map.impl.PartitionContainer;
import com.hazelcast.map.impl.PartitionContainerImpl;
import com.hazelcast.map.impl.recordstore.DefaultRecordStore;
import com.hazelcast.map.impl.recordstore.RecordStore;
import com.hazelcast.spi.impl.NodeEngine;

import java.lang.reflect.Field;
import java.util.List;

/**
 * Makes the record stores of our maps: Hazelcast does not load them, a {@link Gate} holds operations
 * until the partition is whole, and evictions are noticed.
 *
 * <p>Hazelcast has no public way to do this. Its own load asks all partitions, so that each map has a
 * record store in each of them (0.9 MB for an empty map), and one member reads all keys for the others.
 */
final class RecordStores {
    private static final Field LOADED = field(DefaultRecordStore.class, "loadedOnCreate");
    private static final List<Field> CONSTRUCTORS = constructors();

    private RecordStores() {
    }

    /** Whether this version of Hazelcast lets us make them. */
    static boolean possible() {
        return LOADED != null && CONSTRUCTORS != null;
    }

    /**
     * From now on all new record stores of this member are made here. False: the member has none of
     * the objects yet that make them.
     */
    static boolean install(NodeEngine nodeEngine) {
        MapService service = nodeEngine.getServiceOrNull(MapService.SERVICE_NAME);
        if (!possible() || service == null) {
            return false;
        }
        MapServiceContext context = service.getMapServiceContext();
        for (PartitionContainer container : context.getPartitionContainers()) {
            if (!(container instanceof PartitionContainerImpl)) {
                return false;
            }
        }
        for (PartitionContainer container : context.getPartitionContainers()) {
            try {
                for (Field field : CONSTRUCTORS) {
                    replace(field, container, nodeEngine);
                }
            } catch (IllegalAccessException e) {
                throw new IllegalStateException(e);
            }
        }
        return true;
    }

    @SuppressWarnings("unchecked")
    private static void replace(Field field, PartitionContainer container, NodeEngine nodeEngine)
            throws IllegalAccessException {
        var plain = (ConstructorFunction<String, RecordStore<?>>) CONSTRUCTORS.get(0).get(container);
        if (field.get(container) instanceof Ours) {
            return;
        }
        boolean loads = field == CONSTRUCTORS.get(1);
        field.set(container, new Ours(plain instanceof Ours ours ? ours.plain : plain, loads, container, nodeEngine));
    }

    /**
     * @param plain Hazelcast's constructor that does not begin to load
     * @param loads whether Hazelcast loads other maps with this one
     */
    private record Ours(ConstructorFunction<String, RecordStore<?>> plain, boolean loads,
                        PartitionContainer container, NodeEngine nodeEngine)
            implements ConstructorFunction<String, RecordStore<?>> {

        @Override
        public RecordStore<?> createNew(String map) {
            RecordStore<?> store = plain.createNew(map);
            MapStoreWrapper wrapper = store.getMapContainer().getMapStoreContext().getMapStoreWrapper();
            if (wrapper != null && wrapper.getImpl() instanceof WalMapStore mapStore) {
                adopt((DefaultRecordStore) store, map, mapStore);
            } else if (loads) {
                store.startLoading();
            }
            return store;
        }

        private void adopt(DefaultRecordStore store, String map, WalMapStore mapStore) {
            // To Hazelcast it is loaded, and stays so, also if it is migrated.
            store.setPreMigrationLoadedStatus(true);
            store.startLoading();
            try {
                LOADED.setBoolean(store, true);
            } catch (IllegalAccessException e) {
                throw new IllegalStateException(e);
            }
            WalPlugin.of(nodeEngine).state(map).adopt(store, mapStore, container.getPartitionId());
        }
    }

    /** First the one that does not begin to load. */
    private static List<Field> constructors() {
        Field plain = field(PartitionContainerImpl.class, "recordStoreConstructorSkipLoading");
        Field loading = field(PartitionContainerImpl.class, "recordStoreConstructor");
        return plain == null || loading == null ? null : List.of(plain, loading);
    }

    private static Field field(Class<?> type, String name) {
        try {
            Field field = type.getDeclaredField(name);
            field.setAccessible(true);
            return field;
        } catch (NoSuchFieldException | RuntimeException e) {
            return null;
        }
    }
}
