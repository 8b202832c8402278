package io.imapwal.hazelcast.member;

import com.hazelcast.config.MapConfig;
import com.hazelcast.core.DistributedObject;
import com.hazelcast.internal.services.RemoteService;
import com.hazelcast.internal.util.ExceptionUtil;
import com.hazelcast.map.impl.MapService;
import com.hazelcast.map.impl.proxy.MapProxyImpl;
import com.hazelcast.map.impl.proxy.NearCachedMapProxyImpl;
import com.hazelcast.spi.exception.RetryableHazelcastException;
import com.hazelcast.spi.impl.NodeEngine;
import io.imapwal.hazelcast.engine.Composed;
import io.imapwal.hazelcast.engine.Reflection;
import io.imapwal.hazelcast.settle.MemberMaps;

import java.lang.reflect.Field;
import java.util.UUID;

/**
 * Makes the object that {@code getMap} returns for our maps. Hazelcast's own object waits until
 * each partition reports that it is loaded. That creates a record store in each of them, also in
 * empty ones. Ours waits for the map as a whole. Hazelcast has no public API for this.
 */
final class LoggedMaps implements RemoteService {
    private static final Field SERVICE = Reflection.field(MapService.class, "remoteService");

    private final RemoteService hazelcasts;
    private final MapService maps;
    private final NodeEngine nodeEngine;

    private LoggedMaps(RemoteService hazelcasts, MapService maps, NodeEngine nodeEngine) {
        this.hazelcasts = hazelcasts;
        this.maps = maps;
        this.nodeEngine = nodeEngine;
    }

    /** Without it, {@code getMap} works as for Hazelcast's own map stores. */
    static void install(NodeEngine nodeEngine) {
        if (SERVICE == null) {
            return;
        }
        MapService service = nodeEngine.getService(MapService.SERVICE_NAME);
        try {
            SERVICE.set(service, new LoggedMaps((RemoteService) SERVICE.get(service), service,
                    nodeEngine));
        } catch (IllegalAccessException e) {
            throw new IllegalStateException(e);
        }
    }

    @Override
    public DistributedObject createDistributedObject(String name, UUID source, boolean local) {
        // Checks the map's configuration.
        DistributedObject map = hazelcasts.createDistributedObject(name, source, local);
        Durability durability = Durability.of(nodeEngine);
        durability.used(name);
        MapConfig config = nodeEngine.getConfig().findMapConfig(name);
        if (Structures.isKeptIn(name) && !isOurs(name)) {
            return new Structures.Kept(name, maps, nodeEngine, config, durability);
        }
        if (!isOurs(name)) {
            return map;
        }
        return map instanceof NearCachedMapProxyImpl
                ? new NearCached(name, maps, nodeEngine, config)
                : new Plain(name, maps, nodeEngine, config);
    }

    /** Without a container of the map, Hazelcast does nothing, but the log may have entries. */
    @Override
    public void destroyDistributedObject(String name, boolean local) {
        if (isOurs(name) && maps.getMapServiceContext().getExistingMapContainer(name) == null) {
            MemberMaps logged = Composed.of(nodeEngine, MemberMaps.class);
            if (Destruction.isAsked(logged.member())) {
                destroy(logged, name);
            }
        }
        hazelcasts.destroyDistributedObject(name, local);
    }

    /** Logs the destruction of a map of which this member has nothing in memory. */
    private static void destroy(MemberMaps logged, String name) {
        Destruction destruction = new Destruction(logged, name, logged.links().settings(name));
        try {
            destruction.run();
        } finally {
            logged.state(name).close();
            destruction.informMembers();
        }
    }

    private boolean isOurs(String name) {
        return DurableMaps.isDurable(nodeEngine, name)
                && !nodeEngine.getLocalMember().isLiteMember();
    }

    /** The part that both kinds of map objects share. */
    private static final class Opening {
        private boolean initialized;

        /** Before indexes are added: Hazelcast would count unloaded partitions as complete. */
        void initialize(MapService service, NodeEngine nodeEngine, String map,
                Runnable hazelcasts) {
            awaitLoaded(service, nodeEngine, map);
            hazelcasts.run();
            initialized = true;
        }

        /** Hazelcast calls it when it initializes the object, and in {@code loadAll}. */
        void waitUntilLoaded(Runnable hazelcasts) {
            if (initialized) {
                hazelcasts.run();
            }
        }

        private static void awaitLoaded(MapService service, NodeEngine nodeEngine, String map) {
            // Throws if the configuration is wrong.
            service.getMapServiceContext().getMapContainer(map);
            try {
                Composed.of(nodeEngine, MemberMaps.class).state(map).opening().awaitLoaded();
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
                throw new RetryableHazelcastException("interrupted while map \"" + map
                        + "\" was opened");
            } catch (RuntimeException e) {
                throw ExceptionUtil.rethrow(e);
            }
        }
    }

    private static final class Plain extends MapProxyImpl<Object, Object> {
        private final Opening opening = new Opening();

        private Plain(String name, MapService service, NodeEngine nodeEngine, MapConfig config) {
            super(name, service, nodeEngine, config);
        }

        @Override
        public void initialize() {
            opening.initialize(getService(), getNodeEngine(), name, super::initialize);
        }

        @Override
        public void waitUntilLoaded() {
            opening.waitUntilLoaded(super::waitUntilLoaded);
        }
    }

    private static final class NearCached extends NearCachedMapProxyImpl<Object, Object> {
        private final Opening opening = new Opening();

        private NearCached(String name, MapService service, NodeEngine nodeEngine,
                MapConfig config) {
            super(name, service, nodeEngine, config);
        }

        @Override
        public void initialize() {
            opening.initialize(getService(), getNodeEngine(), name, super::initialize);
        }

        @Override
        public void waitUntilLoaded() {
            opening.waitUntilLoaded(super::waitUntilLoaded);
        }
    }
}
