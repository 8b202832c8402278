package io.imapwal.hazelcast;

import com.hazelcast.config.Config;
import com.hazelcast.config.MapConfig;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.map.IMap;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

import java.util.ArrayList;
import java.util.List;

import static io.imapwal.hazelcast.Members.eventually;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

/** A member whose changes go to all of three agents. */
class ThreeCopiesTest {
    private final List<FakeAgent> agents = new ArrayList<>();
    private final FakeLog log = new FakeLog();
    private HazelcastInstance member;

    @BeforeEach
    void start() throws Exception {
        for (String node : List.of("n1", "n2", "n3")) {
            agents.add(new FakeAgent(log, node).start());
        }
        Config config = Members.config("copies", Members.port(), agents.get(0).endpoint());
        config.getMapConfigs().clear();
        config.addMapConfig(map("all", agents.get(0), "3"));
        config.addMapConfig(map("two", agents.get(1), "2"));
        member = Members.start(config);
    }

    private MapConfig map(String name, FakeAgent own, String acks) {
        MapConfig map = Members.map(name, own.endpoint());
        map.getMapStoreConfig().setProperty("copies", "3").setProperty("acks", acks)
                .setProperty("copy-agents", String.join(", ",
                    agents.stream().map(FakeAgent::endpoint).toList()))
                .setProperty("copy-timeout-ms", "300").setProperty("timeout-ms", "3000");
        return map;
    }

    @AfterEach
    void stop() throws Exception {
        member.shutdown();
        for (FakeAgent agent : agents) {
            agent.close();
            assertEquals(List.of(), agent.violations);
        }
    }

    private List<String> copies(String map, String key) {
        byte[] bytes = WalPlugin.of(member).nodeEngine().toData(key).toByteArray();
        return log.copiesOf(map, bytes).stream().sorted().toList();
    }

    private AgentLink link(String map) {
        return WalPlugin.of(member).linkOf(map);
    }

    @Test
    void eachChangeIsInThreeLogs() {
        IMap<String, String> map = member.getMap("all");
        for (int i = 0; i < 20; i++) {
            map.set("k" + i, "v");
            assertEquals(List.of("n1", "n2", "n3"), copies("all", "k" + i));
        }
        assertEquals(0, link("all").bean().getUnderCopied());
    }

    @Test
    void changeFailsWithoutThirdAgentIfAcksNeedIt() throws Exception {
        IMap<String, String> map = member.getMap("all");
        map.set("k", "v");
        agents.get(2).stop();
        assertThrows(RuntimeException.class, () -> map.set("k", "w"));
        agents.get(2).start();
        eventually(() -> {
            map.set("k", "x");
            return copies("all", "k").size() == 3;
        });
    }

    @Test
    void twoAcksAreEnoughAndTheMissingCopyIsCounted() throws Exception {
        IMap<String, String> map = member.getMap("two");
        map.set("k", "v");
        agents.get(2).stop();
        for (int i = 0; i < 20; i++) {
            map.set("k" + i, "v");
            assertTrue(copies("two", "k" + i).containsAll(List.of("n1", "n2")));
        }
        assertTrue(link("two").bean().getUnderCopied() >= 19);
        agents.get(2).start();
        eventually(() -> {
            map.set("again", "v");
            return copies("two", "again").size() == 3;
        });
    }
}
