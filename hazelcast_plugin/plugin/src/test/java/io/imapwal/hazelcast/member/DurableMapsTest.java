package io.imapwal.hazelcast.member;

import com.hazelcast.config.Config;
import com.hazelcast.config.IndexConfig;
import com.hazelcast.config.IndexType;
import com.hazelcast.config.InvalidConfigurationException;
import com.hazelcast.config.MapConfig;
import com.hazelcast.config.MapStoreConfig;
import com.hazelcast.core.HazelcastInstance;
import io.imapwal.wire.AgentSettings;
import io.imapwal.wire.DurabilityReport;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

import java.util.List;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

/** Which maps are durable, by the names in the properties of a member and by its sections. */
class DurableMapsTest {
    private final TestCluster cluster = new TestCluster("durable");
    private FakeAgent agent;
    private Config config;

    @BeforeEach
    void start() throws Exception {
        agent = cluster.startAgent();
        config = cluster.config(0, agent);
        config.getMapConfigs().clear();
    }

    @AfterEach
    void stop() throws Exception {
        cluster.stop();
    }

    private void set(String name, String value) {
        config.setProperty("imap-wal." + name, value);
    }

    private static MapConfig indexed(String section) {
        return new MapConfig(section).addIndexConfig(new IndexConfig(IndexType.SORTED, "this"));
    }

    private int logged(HazelcastInstance member, String map) {
        member.getMap(map).set(1, 1);
        return cluster.log.size(map);
    }

    private String refusal() {
        return assertThrows(InvalidConfigurationException.class, () -> cluster.start(config))
                .getMessage();
    }

    @Test
    void everyMapIsDurableWhateverSectionItHas() {
        set("agent", agent.endpoint());
        config.addMapConfig(indexed("orders"));
        HazelcastInstance member = cluster.start(config);
        member.getConfig().addMapConfig(indexed("late"));
        for (String map : List.of("orders", "late", "other", "default")) {
            assertEquals(1, logged(member, map), map);
        }
        assertEquals(1, member.getMap("orders").values(entry -> true).size());
    }

    @Test
    void sectionOfAllMapsGivesItsMapStoreToOthers() {
        MapConfig all = Members.map("default", agent.endpoint());
        all.getMapStoreConfig().setProperty("restore-chunk", "7");
        config.addMapConfig(all);
        config.addMapConfig(indexed("orders"));
        config.addMapConfig(Members.map("eu-*", agent.endpoint()));
        HazelcastInstance member = cluster.start(config);
        member.getConfig().addMapConfig(indexed("eu-late"));
        for (String map : List.of("orders", "other", "eu-late")) {
            assertEquals(1, logged(member, map), map);
        }
        assertEquals(7, WalPlugin.of(member).maps().state("orders").settings().restoreChunk());
        assertEquals(10_000, WalPlugin.of(member).maps().state("eu-late").settings()
                .restoreChunk());
    }

    @Test
    void transientMapsAreNotLoggedWithAnySection() {
        set("agent", agent.endpoint());
        set("transient-maps", "cache-*, *-tmp");
        config.addMapConfig(Members.map("cache-own", agent.endpoint()));
        HazelcastInstance member = cluster.start(config);
        for (String map : List.of("cache-own", "cache-", "orders-tmp")) {
            assertEquals(0, logged(member, map), map);
        }
        assertEquals(1, logged(member, "my-cache-1"));
        DurableMaps maps = Durability.of(WalPlugin.of(member).member().nodeEngine()).maps();
        assertEquals(List.of("*"), maps.durablePatterns());
        assertEquals(List.of("cache-*", "*-tmp"), maps.transientPatterns());
    }

    @Test
    void propertiesOfMemberAreDefaultsOfEachSection() {
        set("agent", agent.endpoint());
        set("restore-chunk", "7");
        set("settle-timeout-ms", "7000");
        MapConfig own = Members.map("own", agent.endpoint());
        own.getMapStoreConfig().getProperties().remove("agent");
        own.getMapStoreConfig().setProperty("restore-chunk", "9");
        config.addMapConfig(own);
        HazelcastInstance member = cluster.start(config);
        assertEquals(1, logged(member, "own"));
        AgentSettings settings = WalPlugin.of(member).maps().state("own").settings();
        assertEquals(9, settings.restoreChunk());
        assertEquals(7000, settings.settleTimeoutMs());
    }

    @Test
    void unnamedMapsAreReportedAtStartAndAtFirstUse() {
        set("agent", agent.endpoint());
        set("durable-maps", "orders");
        set("transient-maps", "cache-*");
        config.addMapConfig(indexed("stock"));
        config.addMapConfig(indexed("cache-1"));
        HazelcastInstance member = cluster.start(config);
        assertEquals(List.of("stock"),
                Durability.of(WalPlugin.of(member).member().nodeEngine()).maps()
                .unnamedSections());
        for (String map : List.of("orders", "cache-1", "stock", "stock", "__internal")) {
            member.getMap(map).set(1, 1);
        }
        DurabilityReport report = Durability.of(WalPlugin.of(member).member().nodeEngine())
                .report();
        assertEquals(List.of(List.of("orders"), List.of("cache-1"), List.of("stock"), List.of()),
                report.lists());
        assertEquals(List.of(1, 1, 1, 0), report.counts());
    }

    @Test
    void mapsOfHazelcastAreNotDurable() {
        config.addMapConfig(Members.map("default", agent.endpoint()));
        HazelcastInstance member = cluster.start(config);
        for (String map : List.of("__sql.catalog", "__jet.results", "__other")) {
            assertEquals(0, logged(member, map), map);
        }
    }

    @Test
    void mapsOfHazelcastAreRefusedAsDurable() {
        set("agent", agent.endpoint());
        for (String map : List.of("__sql.other", "__jet.results", "__*")) {
            set("durable-maps", "orders, " + map);
            String text = refusal();
            assertTrue(text.contains(map) && text.contains("Hazelcast's own"), text);
        }
        set("durable-maps", "*");
        config.addMapConfig(Members.map("__sql.catalog", agent.endpoint()));
        assertTrue(refusal().contains("section \"__sql.catalog\""));
    }

    @Test
    void wrongPropertiesRefuseTheStart() {
        set("durable-maps", "*");
        assertTrue(refusal().contains("needs imap-wal.agent"));
        set("agent", agent.endpoint());
        set("durable-structures", "no");
        assertTrue(refusal().contains("must be warn or refuse"));
        set("durable-structures", "warn");
        set("durable-map", "*");
        assertTrue(refusal().contains("\"imap-wal.durable-map\" is unknown"));
    }

    @Test
    void anotherMapStoreOfDurableMapIsRefused() {
        set("agent", agent.endpoint());
        set("transient-maps", "allowed");
        MapStoreConfig other = new MapStoreConfig().setClassName("com.example.Store");
        config.addMapConfig(new MapConfig("orders").setMapStoreConfig(other));
        HazelcastInstance member = cluster.start(config);
        String text = assertThrows(InvalidConfigurationException.class,
                () -> member.getMap("orders")).getMessage();
        assertTrue(text.contains("another map store") && text.contains("transient-maps"), text);
        assertEquals(1, logged(member, "other"));
    }

    /** A section that a program gets, to change it, must be the one of the configuration. */
    @Test
    void programsGetSectionsUnchanged() {
        set("agent", agent.endpoint());
        config.addMapConfig(indexed("orders"));
        HazelcastInstance member = cluster.start(config);
        assertFalse(member.getConfig().getMapConfig("orders").getMapStoreConfig().isEnabled());
        assertTrue(member.getConfig().findMapConfig("orders").getMapStoreConfig().isEnabled());
    }
}
