package io.imapwal.hazelcast.member;

import com.hazelcast.config.Config;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.map.IMap;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

import java.lang.management.ManagementFactory;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Collectors;
import javax.management.MBeanServer;
import javax.management.ObjectName;

import static io.imapwal.hazelcast.member.Members.eventually;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

/** What the beans show of a member, its agent and its maps. */
class JmxTest {
    private static final MBeanServer SERVER = ManagementFactory.getPlatformMBeanServer();

    private final TestCluster cluster = new TestCluster("jmx");

    @AfterEach
    void stop() throws Exception {
        cluster.stop();
    }

    private HazelcastInstance start(boolean jmx) throws Exception {
        FakeAgent agent = cluster.startAgent();
        Config config = cluster.config(0, agent);
        config.setProperty("hazelcast.jmx", String.valueOf(jmx));
        config.addMapConfig(Members.map("ord:e\"rs", agent.endpoint()));
        return cluster.start(config);
    }

    private static Set<ObjectName> beans(HazelcastInstance member) throws Exception {
        return SERVER.queryNames(new ObjectName("io.imapwal:instance="
                + ObjectName.quote(member.getName()) + ",*"), null);
    }

    private static Map<String, ObjectName> byType(HazelcastInstance member) throws Exception {
        return beans(member).stream()
                .collect(Collectors.toMap(name -> name.getKeyProperty("type"), name -> name));
    }

    private static Object value(HazelcastInstance member, String type, String attribute)
            throws Exception {
        return SERVER.getAttribute(byType(member).get(type), attribute);
    }

    @Test
    void countersShowAppendsAndRefusals() throws Exception {
        HazelcastInstance member = start(true);
        IMap<Integer, Integer> map = member.getMap("ord:e\"rs");
        map.set(1, 1);
        map.set(2, 2);
        assertEquals(new TreeSet<>(Set.of("Agent", "Map", "Member")),
                new TreeSet<>(byType(member).keySet()));
        assertEquals("\"ord:e\\\"rs\"", byType(member).get("Map").getKeyProperty("map"));
        assertEquals(2L, value(member, "Agent", "Appended"));
        assertEquals(0L, value(member, "Agent", "Refused"));
        assertEquals(0, value(member, "Agent", "Waiting"));
        assertEquals(true, value(member, "Agent", "Connected"));
        assertEquals("", value(member, "Agent", "Failure"));
        assertEquals(true, value(member, "Map", "Open"));
        assertEquals(true, value(member, "Map", "Loaded"));
        assertEquals(0, value(member, "Map", "UnsettledPartitions"));
        assertTrue((Long) value(member, "Map", "SettledPartitions") > 0);
        assertTrue((Double) value(member, "Map", "SettleSeconds") > 0);
        assertEquals(1, value(member, "Member", "Maps"));
        assertEquals(0, value(member, "Member", "KeysInDoubt"));

        cluster.agents.get(0).stop();
        assertThrows(RuntimeException.class, () -> map.set(3, 3));
        eventually(() -> (Long) value(member, "Agent", "Refused")
                + (Long) value(member, "Agent", "Unknown") == 1);
        assertEquals(2L, value(member, "Agent", "Appended"));
        assertEquals(false, value(member, "Agent", "Connected"));
        assertTrue(!value(member, "Agent", "Failure").equals(""), "the reason");
    }

    @Test
    void beansEndWithTheirMember() throws Exception {
        HazelcastInstance member = start(true);
        member.getMap("ord:e\"rs").set(1, 1);
        assertEquals(3, beans(member).size());
        member.shutdown();
        eventually(() -> beans(member).isEmpty());
    }

    @Test
    void noBeansWithoutJmxOfHazelcast() throws Exception {
        HazelcastInstance member = start(false);
        member.getMap("ord:e\"rs").set(1, 1);
        assertEquals(Set.of(), beans(member));
    }
}
