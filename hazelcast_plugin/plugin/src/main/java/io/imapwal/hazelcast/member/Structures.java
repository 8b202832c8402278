package io.imapwal.hazelcast.member;

import com.hazelcast.cache.HazelcastCacheManager;
import com.hazelcast.cache.impl.ICacheService;
import com.hazelcast.cardinality.impl.CardinalityEstimatorService;
import com.hazelcast.collection.impl.list.ListService;
import com.hazelcast.collection.impl.queue.QueueService;
import com.hazelcast.collection.impl.set.SetService;
import com.hazelcast.config.MapConfig;
import com.hazelcast.core.DistributedObject;
import com.hazelcast.durableexecutor.impl.DistributedDurableExecutorService;
import com.hazelcast.internal.crdt.pncounter.PNCounterService;
import com.hazelcast.internal.services.RemoteService;
import com.hazelcast.internal.services.TenantContextAwareService;
import com.hazelcast.map.impl.MapService;
import com.hazelcast.map.impl.proxy.MapProxyImpl;
import com.hazelcast.multimap.impl.MultiMapService;
import com.hazelcast.replicatedmap.impl.ReplicatedMapService;
import com.hazelcast.ringbuffer.impl.RingbufferService;
import com.hazelcast.scheduledexecutor.impl.DistributedScheduledExecutorService;
import com.hazelcast.spi.impl.NodeEngine;
import com.hazelcast.spi.impl.NodeEngineImpl;
import com.hazelcast.spi.impl.proxyservice.impl.ProxyRegistry;
import com.hazelcast.spi.impl.proxyservice.impl.ProxyServiceImpl;
import com.hazelcast.topic.impl.reliable.ReliableTopicService;
import io.imapwal.hazelcast.engine.Reflection;

import java.lang.reflect.Field;
import java.util.Map;
import java.util.UUID;

/**
 * Reports or refuses the structures that no log keeps: {@link Durability#demandStructure}.
 *
 * <p>A member creates the object of each structure before its first use, also for clients.
 * Hazelcast's listener for such objects is called after that, on another thread: too late to
 * refuse.
 */
final class Structures {
    private static final Field SERVICE = Reflection.field(ProxyRegistry.class, "service");

    private static final String TOPIC = "reliable topic";

    private static final Map<String, String> BY_SERVICE = Map.ofEntries(
            Map.entry(QueueService.SERVICE_NAME, "queue"),
            Map.entry(SetService.SERVICE_NAME, "set"),
            Map.entry(ListService.SERVICE_NAME, "list"),
            Map.entry(MultiMapService.SERVICE_NAME, "multimap"),
            Map.entry(ReplicatedMapService.SERVICE_NAME, "replicated map"),
            Map.entry(RingbufferService.SERVICE_NAME, "ringbuffer"),
            Map.entry(ReliableTopicService.SERVICE_NAME, TOPIC),
            Map.entry(PNCounterService.SERVICE_NAME, "PN counter"),
            Map.entry(CardinalityEstimatorService.SERVICE_NAME, "cardinality estimator"),
            Map.entry(ICacheService.SERVICE_NAME, "cache"),
            Map.entry(DistributedScheduledExecutorService.SERVICE_NAME, "scheduled executor"),
            Map.entry(DistributedDurableExecutorService.SERVICE_NAME, "durable executor"));

    /** Maps of Hazelcast whose entries are structures of users. */
    private static final Map<String, String> BY_MAP = Map.of(
            "__sql.catalog", "SQL mapping", "__jet.records", "Jet job");

    private Structures() {
    }

    /** Called while the services of a member are made. */
    static void install(NodeEngine nodeEngine, Durability durability) {
        if (SERVICE == null) {
            throw new IllegalStateException("imap-wal does not work with this version of Hazelcast:"
                    + " it creates structures in another way");
        }
        ProxyServiceImpl proxies = (ProxyServiceImpl) nodeEngine.getProxyService();
        BY_SERVICE.forEach((service, kind) -> {
            if (((NodeEngineImpl) nodeEngine).getServiceOrNull(service) == null) {
                return;  // caches, without the JCache API
            }
            ProxyRegistry registry = proxies.getOrCreateRegistry(service);
            try {
                RemoteService theirs = (RemoteService) SERVICE.get(registry);
                SERVICE.set(registry, theirs instanceof TenantContextAwareService
                        ? new OfTenants(theirs, kind, durability)
                        : new Gate(theirs, kind, durability));
            } catch (IllegalAccessException e) {
                throw new IllegalStateException(e);
            }
        });
    }

    /** Hazelcast's service of a structure, which creates each new object. */
    private static class Gate implements RemoteService {
        private final RemoteService hazelcasts;
        private final String kind;
        private final Durability durability;

        Gate(RemoteService hazelcasts, String kind, Durability durability) {
            this.hazelcasts = hazelcasts;
            this.kind = kind;
            this.durability = durability;
        }

        @Override
        public DistributedObject createDistributedObject(String name, UUID source, boolean local) {
            // A reliable topic keeps its messages in a ringbuffer; a client creates only that.
            boolean ofTopic = name.startsWith(RingbufferService.TOPIC_RB_PREFIX);
            String structure = without(RingbufferService.TOPIC_RB_PREFIX,
                    without(HazelcastCacheManager.CACHE_MANAGER_PREFIX, name));
            if (!MemberSettings.isInternal(structure)) {
                durability.demandStructure(ofTopic ? TOPIC : kind, structure);
            }
            return hazelcasts.createDistributedObject(name, source, local);
        }

        private static String without(String prefix, String name) {
            return name.startsWith(prefix) ? name.substring(prefix.length()) : name;
        }

        @Override
        public void destroyDistributedObject(String name, boolean local) {
            hazelcasts.destroyDistributedObject(name, local);
        }
    }

    /** Hazelcast keeps the context of such objects for application servers. */
    private static final class OfTenants extends Gate implements TenantContextAwareService {
        OfTenants(RemoteService hazelcasts, String kind, Durability durability) {
            super(hazelcasts, kind, durability);
        }
    }

    /** Whether the entries of this map of Hazelcast are structures of users. */
    static boolean isKeptIn(String map) {
        return BY_MAP.containsKey(map);
    }

    /** A map of Hazelcast whose new entries are structures of users. */
    static final class Kept extends MapProxyImpl<Object, Object> {
        private final Durability durability;

        Kept(String name, MapService service, NodeEngine nodeEngine, MapConfig config,
                Durability durability) {
            super(name, service, nodeEngine, config);
            this.durability = durability;
        }

        @Override
        public Object put(Object key, Object value) {
            demand(key);
            return super.put(key, value);
        }

        @Override
        public Object putIfAbsent(Object key, Object value) {
            demand(key);
            return super.putIfAbsent(key, value);
        }

        private void demand(Object key) {
            durability.demandStructure(BY_MAP.get(name), String.valueOf(key));
        }
    }
}
