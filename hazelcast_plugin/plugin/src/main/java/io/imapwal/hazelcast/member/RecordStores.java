package io.imapwal.hazelcast.member;

import com.hazelcast.internal.services.ManagedService;
import com.hazelcast.internal.util.ConstructorFunction;
import com.hazelcast.map.impl.MapContainer;
import com.hazelcast.map.impl.MapKeyLoader;
import com.hazelcast.map.impl.MapService;
import com.hazelcast.map.impl.MapServiceContext;
import com.hazelcast.map.impl.MapStoreWrapper;
import com.hazelcast.map.impl.PartitionContainer;
import com.hazelcast.map.impl.PartitionContainerImpl;
import com.hazelcast.map.impl.operation.MapPartitionDestroyOperation;
import com.hazelcast.map.impl.recordstore.DefaultRecordStore;
import com.hazelcast.map.impl.recordstore.RecordStore;
import com.hazelcast.spi.impl.NodeEngine;
import io.imapwal.hazelcast.engine.Composed;
import io.imapwal.hazelcast.engine.PartitionThreads;
import io.imapwal.hazelcast.engine.Reflection;
import io.imapwal.hazelcast.settle.MapState;
import io.imapwal.hazelcast.settle.MemberMaps;
import io.imapwal.hazelcast.settle.MemoryWatch;
import io.imapwal.hazelcast.settle.PartitionMoves;

import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;

/**
 * Makes all record stores of our maps, {@link LoggedRecordStore}, from the start of the member.
 *
 * <p>Hazelcast has no public API for this. Its own load uses all partitions: each map gets a record
 * store in each of them (0.9 MB for an empty map), and one member reads all keys for the others.
 */
final class RecordStores {
    /** For a user's {@code loadAll}. */
    private static final Method KEY_LOADER = keyLoader();
    private static final List<Field> CONSTRUCTORS = constructors();
    private static final Field MAPS = Reflection.field(PartitionContainerImpl.class, "maps");
    private static final Field MANAGED = Reflection.field(MapService.class, "managedService");

    private RecordStores() {
    }

    /** Whether the plug-in can make them in this version of Hazelcast. */
    static boolean possible() {
        return KEY_LOADER != null && CONSTRUCTORS != null && MAPS != null && MANAGED != null;
    }

    /** Called while the services of a member are made, before its first operation. */
    static void install(NodeEngine nodeEngine) {
        if (!possible()) {
            return;
        }
        MapService service = nodeEngine.getService(MapService.SERVICE_NAME);
        try {
            if (!isReady(service)) {
                // Hazelcast decides the order of services: the map service has not started yet.
                MANAGED.set(service, new Begin((ManagedService) MANAGED.get(service), service));
            } else {
                replace(service, nodeEngine);
            }
        } catch (IllegalAccessException e) {
            throw new IllegalStateException(e);
        }
    }

    /** Starts Hazelcast's map service, and then replaces its constructors of record stores. */
    private record Begin(ManagedService hazelcasts, MapService service) implements ManagedService {
        @Override
        public void init(NodeEngine nodeEngine, Properties properties) {
            hazelcasts.init(nodeEngine, properties);
            try {
                replace(service, nodeEngine);
            } catch (IllegalAccessException e) {
                throw new IllegalStateException(e);
            }
        }

        @Override
        public void reset() {
            hazelcasts.reset();
        }

        @Override
        public void shutdown(boolean terminate) {
            hazelcasts.shutdown(terminate);
        }
    }

    private static boolean isReady(MapService service) {
        return service.getMapServiceContext().getPartitionContainers()[0] != null;
    }

    private static void replace(MapService service, NodeEngine nodeEngine)
            throws IllegalAccessException {
        for (PartitionContainer container : service.getMapServiceContext()
                .getPartitionContainers()) {
            Object plain = CONSTRUCTORS.get(0).get(container);
            for (Field field : CONSTRUCTORS) {
                @SuppressWarnings("unchecked")
                var hazelcasts = (ConstructorFunction<String, RecordStore<?>>) plain;
                field.set(container, new Ours(hazelcasts, field == CONSTRUCTORS.get(1), container,
                        nodeEngine));
            }
            MAPS.set(container, new Maps(container, nodeEngine));
        }
    }

    /**
     * The record stores of one partition by map. Hazelcast runs {@code clear} only if there is one.
     * So a partition that waits gets one as soon as an operation needs it, and the operation waits.
     */
    @SuppressWarnings("rawtypes")
    private static final class Maps extends ConcurrentHashMap<String, RecordStore>
            implements MapState.ExistingStores {
        private final transient PartitionContainer container;
        private final transient NodeEngine nodeEngine;
        /** Only on the partition's thread. */
        private boolean making;

        private Maps(PartitionContainer container, NodeEngine nodeEngine) {
            super(container.getMaps());
            this.container = container;
            this.nodeEngine = nodeEngine;
        }

        @Override
        public RecordStore existing(String map) {
            return super.get(map);
        }

        @Override
        public RecordStore get(Object map) {
            RecordStore found = super.get(map);
            return found == null && waits((String) map) ? make((String) map) : found;
        }

        private boolean waits(String map) {
            int partition = container.getPartitionId();
            if (!new PartitionThreads(nodeEngine).isOn(partition) || making) {
                return false;
            }
            MemberMaps maps = Composed.existing(nodeEngine, MemberMaps.class);
            if (maps != null && maps.isWhole(map, partition)) {
                return false;
            }
            return PartitionMoves.of(nodeEngine).ownership().isOwner(partition)
                    && DurableMaps.isDurable(nodeEngine, map)
                    && !(PartitionThreads.task(partition) instanceof MapPartitionDestroyOperation);
        }

        private RecordStore make(String map) {
            making = true;
            try {
                return container.getRecordStore(map, true);
            } finally {
                making = false;
            }
        }
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
            if (wrapper != null && wrapper.getImpl() instanceof LoggedMap mapStore) {
                return ours(context, mapContainer, mapStore);
            }
            RecordStore<?> store = plain.createNew(map);
            if (loads) {
                store.startLoading();
            }
            return store;
        }

        /** Makes it as Hazelcast makes its own. */
        private RecordStore<?> ours(MapServiceContext context, MapContainer map,
                LoggedMap mapStore) {
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
            MapState state = Composed.of(nodeEngine, MemberMaps.class).state(map.getName());
            LoggedRecordStore store = new LoggedRecordStore(map, partition, loader,
                    nodeEngine.getLogger(DefaultRecordStore.class), state);
            store.init();
            if (MemoryWatch.possible()) {
                MemoryWatch.watch(store, state.wholeness(), partition);
            }
            LoggedDataStore.place(store, mapStore);
            return store;
        }
    }

    /** The first one does not begin to load. */
    private static List<Field> constructors() {
        Field plain = Reflection.field(PartitionContainerImpl.class,
                "recordStoreConstructorSkipLoading");
        Field loading = Reflection.field(PartitionContainerImpl.class, "recordStoreConstructor");
        return plain == null || loading == null ? null : List.of(plain, loading);
    }

    private static Method keyLoader() {
        try {
            Method method = PartitionContainerImpl.class.getDeclaredMethod("createMapKeyLoader",
                    MapServiceContext.class, MapContainer.class);
            method.setAccessible(true);
            return method;
        } catch (NoSuchMethodException | RuntimeException e) {
            return null;
        }
    }
}
