package io.imapwal.hazelcast.settle;

import com.hazelcast.config.Config;
import com.hazelcast.config.IndexConfig;
import com.hazelcast.config.IndexType;
import com.hazelcast.config.MapConfig;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.map.IMap;
import io.imapwal.hazelcast.member.FakeAgent;
import io.imapwal.hazelcast.member.Members;
import io.imapwal.hazelcast.member.TestCluster;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

import java.util.List;
import java.util.function.Supplier;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

/** An index that Hazelcast refuses: the log is not the cause, and is not named as such. */
class WrongIndexTest {
    private final TestCluster cluster = new TestCluster("wrong-index");
    private FakeAgent agent;

    @AfterEach
    void stop() throws Exception {
        cluster.stop();
    }

    private static IndexConfig wrong(String what) {
        return switch (what) {
            case "duplicate" -> new IndexConfig(IndexType.HASH, "this", "this");
            case "key and alias" -> new IndexConfig(IndexType.SORTED, "__key#a", "__key#a");
            case "composite bitmap" -> new IndexConfig(IndexType.BITMAP, "a", "b");
            default -> throw new AssertionError(what);
        };
    }

    /** @param logged whether the map uses the plug-in */
    private MapConfig map(String name, IndexConfig index, boolean logged) {
        MapConfig map = logged ? Members.map(name, agent.endpoint()) : new MapConfig(name);
        return map.addIndexConfig(index);
    }

    private static RuntimeException error(Supplier<?> use) {
        return assertThrows(RuntimeException.class, use::get);
    }

    /** As for a map without the plug-in, also the second time. */
    @ParameterizedTest
    @ValueSource(strings = {"duplicate", "key and alias", "composite bitmap"})
    void wrongIndexIsHazelcastsOwnError(String what) throws Exception {
        agent = cluster.startAgent();
        Config config = cluster.config(0, agent);
        config.addMapConfig(map("plain", wrong(what), false));
        config.addMapConfig(map("logged", wrong(what), true));
        HazelcastInstance member = cluster.start(config);
        RuntimeException expected = error(() -> member.getMap("plain"));
        for (int i = 0; i < 2; i++) {
            RuntimeException found = error(() -> member.getMap("logged"));
            assertEquals(expected.getClass(), found.getClass());
            assertEquals(expected.getMessage(), found.getMessage());
        }
        assertEquals(List.of(), agent.violations);
    }

    /** Other maps of the member are not affected. */
    @Test
    void otherMapsAreUsed() throws Exception {
        agent = cluster.startAgent();
        Config config = cluster.config(0, agent);
        config.addMapConfig(map("logged", wrong("duplicate"), true));
        config.addMapConfig(Members.map("orders", agent.endpoint()));
        HazelcastInstance member = cluster.start(config);
        error(() -> member.getMap("logged"));
        IMap<Integer, Integer> orders = member.getMap("orders");
        orders.set(1, 1);
        assertEquals(1, orders.get(1));
    }
}
