package io.imapwal.hazelcast;

import com.hazelcast.internal.util.ConstructorFunction;
import com.hazelcast.map.impl.MapContainer;
import com.hazelcast.map.impl.MapKeyLoader;
import com.hazelcast.map.impl.MapService;
import com.hazelcast.map.impl.MapServiceContext;
import com.hazelcast.map.impl.MapStoreWrapper;
import com.hazelcast.map.impl.PartitionContainer;
import com.hazelcast.map.impl.PartitionContainerImpl;
import com.hazelcast.map.impl.recordstore.DefaultRecordStore;
import com.hazelcast.map.impl.recordstore.RecordStore;
import com.hazelcast.spi.impl.NodeEngine;

import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.util.List;

/**
 * Makes the record stores of our maps, {@link LoggedRecordStore}.
 *
 * <p>Hazelcast has no public way to do this. Its own load asks all partitions, so that each map has a
 * record store in each of them (0.9 MB for an empty map), and one member reads all keys for the others.
 */
final class RecordStores {
    /** For a user's {@code loadAll}. */
    private static final Method KEY_LOADER = keyLoader();
    private static final List<Field> CONSTRUCTORS = constructors();

    private RecordStores() {
    }

    /** Whether this version of Hazelcast lets us make them. */
    static boolean possible() {
        return KEY_LOADER != null && CONSTRUCTORS != null;
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
            MapServiceContext context = container.getMapService().getMapServiceContext();
            MapContainer mapContainer = context.getMapContainer(map);
            MapStoreWrapper wrapper = mapContainer.getMapStoreContext().getMapStoreWrapper();
            if (wrapper != null && wrapper.getImpl() instanceof WalMapStore mapStore) {
                return ours(context, mapContainer, mapStore);
            }
            RecordStore<?> store = plain.createNew(map);
            if (loads) {
                store.startLoading();
            }
            return store;
        }

        /** As Hazelcast makes its own. */
        private RecordStore<?> ours(MapServiceContext context, MapContainer map, WalMapStore mapStore) {
            int partition = container.getPartitionId();
            if (!map.shouldUseGlobalIndex()) {
                map.createIndexRegistry(false, partition);
            }
            MapKeyLoader loader;
            try {
                loader = (MapKeyLoader) KEY_LOADER.invoke(container, context, map);
            } catch (ReflectiveOperationException e) {
                throw new IllegalStateException(e);
            }
            MapState state = WalPlugin.of(nodeEngine).state(map.getName());
            LoggedRecordStore store = new LoggedRecordStore(map, partition, loader, nodeEngine.getLogger(DefaultRecordStore.class), state);
            store.init();
            if (EvictionWatch.possible()) {
                EvictionWatch.watch(store, state.wholeness(), partition);
            }
            LoggedClear.place(store, mapStore, partition);
            return store;
        }
    }

    /** First the one that does not begin to load. */
    private static List<Field> constructors() {
        Field plain = Reflection.field(PartitionContainerImpl.class, "recordStoreConstructorSkipLoading");
        Field loading = Reflection.field(PartitionContainerImpl.class, "recordStoreConstructor");
        return plain == null || loading == null ? null : List.of(plain, loading);
    }

    private static Method keyLoader() {
        try {
            Method method = PartitionContainerImpl.class.getDeclaredMethod("createMapKeyLoader", MapServiceContext.class, MapContainer.class);
            method.setAccessible(true);
            return method;
        } catch (NoSuchMethodException | RuntimeException e) {
            return null;
        }
    }
}
