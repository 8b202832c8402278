package io.imapwal.hazelcast.member;

import com.hazelcast.client.HazelcastClient;
import com.hazelcast.client.config.ClientConfig;
import com.hazelcast.config.CacheSimpleConfig;
import com.hazelcast.config.Config;
import com.hazelcast.core.DistributedObject;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.jet.pipeline.Pipeline;
import com.hazelcast.jet.pipeline.Sinks;
import com.hazelcast.jet.pipeline.test.TestSources;
import com.hazelcast.map.IMap;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.BiFunction;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

/** Structures that no log keeps. */
class StructuresTest {
    private static final Map<String, BiFunction<HazelcastInstance, String, DistributedObject>>
            STRUCTURES = new TreeMap<>(Map.ofEntries(
            Map.entry("queue", HazelcastInstance::getQueue),
            Map.entry("set", HazelcastInstance::getSet),
            Map.entry("list", HazelcastInstance::getList),
            Map.entry("multimap", HazelcastInstance::getMultiMap),
            Map.entry("replicated map", HazelcastInstance::getReplicatedMap),
            Map.entry("ringbuffer", HazelcastInstance::getRingbuffer),
            Map.entry("reliable topic", HazelcastInstance::getReliableTopic),
            Map.entry("PN counter", HazelcastInstance::getPNCounter),
            Map.entry("cardinality estimator", HazelcastInstance::getCardinalityEstimator),
            Map.entry("cache", (member, name) -> member.getCacheManager().getCache(name)),
            Map.entry("scheduled executor", HazelcastInstance::getScheduledExecutorService),
            Map.entry("durable executor", HazelcastInstance::getDurableExecutorService)));

    private final TestCluster cluster = new TestCluster("structures");
    private Config config;

    @BeforeEach
    void start() throws Exception {
        config = cluster.config(0, cluster.startAgent());
        config.addCacheConfig(new CacheSimpleConfig("jobs"));
    }

    @AfterEach
    void stop() throws Exception {
        cluster.stop();
    }

    private static List<String> reported(HazelcastInstance member) {
        return Durability.of(WalPlugin.of(member).member().nodeEngine()).report().lists().get(3);
    }

    @Test
    void eachStructureIsReportedOnce() {
        HazelcastInstance member = cluster.start(config);
        STRUCTURES.forEach((kind, get) -> {
            get.apply(member, "jobs");
            get.apply(member, "jobs");
            assertTrue(reported(member).contains(kind + " \"jobs\""), kind);
        });
        // The ringbuffer of the reliable topic is not a structure by itself.
        assertEquals(STRUCTURES.size(), reported(member).size(), reported(member).toString());
        member.getQueue("jobs").add("still works");
        member.getTopic("news");
        member.getMap("orders").set(1, 1);
        assertEquals(STRUCTURES.size(), reported(member).size());
    }

    /** Programs may create any number; an agent accepts 50 names of each kind. */
    @Test
    void fewNamesAreReportedAndAllAreCounted() {
        HazelcastInstance member = cluster.start(config);
        for (int number = 0; number < 120; number++) {
            member.getQueue("queue-" + number % 60);
        }
        assertEquals(50, reported(member).size());
        assertEquals(60, Durability.of(WalPlugin.of(member).member().nodeEngine()).report().counts()
                .get(3));
    }

    @Test
    void refusedStructuresAreNotCreated() {
        config.setProperty("imap-wal.durable-structures", "refuse");
        HazelcastInstance member = cluster.start(config);
        ClientConfig where = new ClientConfig();
        where.setClusterName(config.getClusterName());
        where.getNetworkConfig().addAddress("127.0.0.1:" + cluster.port);
        HazelcastInstance client = HazelcastClient.newHazelcastClient(where);
        try {
            STRUCTURES.forEach((kind, get) -> {
                for (HazelcastInstance caller : List.of(member, client)) {
                    String text = assertThrows(UnsupportedOperationException.class,
                            () -> get.apply(caller, "jobs"), kind).getMessage();
                    assertTrue(text.contains(kind + " \"jobs\" is refused"), text);
                }
            });
        } finally {
            client.shutdown();
        }
        assertFalse(member.getDistributedObjects().stream()
                .anyMatch(each -> each.getName().equals("jobs")));
        member.getMap("orders").set(1, 1);
    }

    /** SQL is in another jar of Hazelcast: it keeps its mappings in this map. */
    @Test
    void sqlMappingIsReportedOrRefused() {
        HazelcastInstance member = cluster.start(config);
        IMap<String, String> catalog = member.getMap("__sql.catalog");
        catalog.put("trades", "mapping");
        catalog.putIfAbsent("prices", "mapping");
        assertEquals(List.of("SQL mapping \"prices\"", "SQL mapping \"trades\""),
                reported(member));
        assertEquals("mapping", catalog.get("trades"));
        config.setProperty("imap-wal.durable-structures", "refuse");
        config.getNetworkConfig().setPort(cluster.port + 1);
        HazelcastInstance refusing = cluster.start(config);
        assertThrows(UnsupportedOperationException.class,
                () -> refusing.getMap("__sql.catalog").put("more", "mapping"));
    }

    @Test
    @Tag("thorough")
    void jetJobIsReportedOrRefused() {
        config.getJetConfig().setEnabled(true);
        HazelcastInstance member = cluster.start(config);
        Pipeline pipeline = Pipeline.create();
        pipeline.readFrom(TestSources.items(1, 2)).writeTo(Sinks.noop());
        member.getJet().newJob(pipeline).join();
        assertTrue(reported(member).get(0).startsWith("Jet job "), reported(member).toString());
        member.getLifecycleService().terminate();
        config.setProperty("imap-wal.durable-structures", "refuse");
        HazelcastInstance refusing = cluster.start(config);
        Throwable refused = assertThrows(RuntimeException.class,
                () -> refusing.getJet().newJob(pipeline).join());
        assertTrue(refused.toString().contains("is refused"), refused.toString());
    }
}
