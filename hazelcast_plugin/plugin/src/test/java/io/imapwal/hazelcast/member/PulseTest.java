package io.imapwal.hazelcast.member;

import com.hazelcast.config.Config;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.internal.serialization.Data;
import com.hazelcast.map.IMap;
import io.imapwal.hazelcast.NotAppended;
import io.imapwal.hazelcast.OutcomeUnknown;
import io.imapwal.hazelcast.read.AgentReader;
import io.imapwal.hazelcast.read.ReadWait;
import io.imapwal.wire.AgentSettings;
import io.imapwal.wire.HungAgent;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

import java.io.IOException;
import java.util.List;
import java.util.concurrent.CompletableFuture;

import static io.imapwal.hazelcast.member.Members.eventually;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

/**
 * A stopped agent is noticed long before an append times out. A slow storage does not count as a
 * stopped agent.
 */
class PulseTest {
    private static final int HUNG_MS = 800;

    private final FakeLog log = new FakeLog();
    private FakeAgent agent;
    private Config config;
    private HazelcastInstance member;
    private IMap<String, Integer> map;

    @BeforeEach
    void start() throws Exception {
        agent = new FakeAgent(log).start();
        config = Members.config("pulse", Members.port(), agent.endpoint());
        config.getMapConfig("*").getMapStoreConfig()
                .setProperty("agent-timeout-ms", String.valueOf(HUNG_MS))
                // A test that waits for these has failed.
                .setProperty("timeout-ms", "600000").setProperty("restore-timeout-ms", "600000");
        member = Members.start(config);
        map = member.getMap("orders");
        map.set("before", 1);
        eventually(() -> agent.beats > 0);
    }

    @AfterEach
    void stop() throws Exception {
        agent.faults.frozen = false;
        member.shutdown();
        agent.close();
        assertEquals(List.of(), agent.violations);
    }

    private static void saysThatItHangs(RuntimeException e) {
        assertTrue(e.getMessage().contains("has not answered for " + HUNG_MS + " ms"),
                e.getMessage());
    }

    @Test
    void stoppedAgentFailsCallersUntilItContinues() throws Exception {
        agent.faults.frozen = true;
        saysThatItHangs(assertThrows(OutcomeUnknown.class, () -> map.set("sent", 2)));
        saysThatItHangs(assertThrows(NotAppended.class, () -> map.set("not sent", 3)));
        assertEquals(1, map.get("before"));
        agent.faults.frozen = false;
        eventually(() -> {
            map.set("after", 4);
            return true;
        });
        // The agent may have read the request or not, so the log decides.
        eventually(() -> WalPlugin.of(member).maps().reconciler().idle());
        boolean logged = log.newest("orders",
                WalPlugin.of(member).member().nodeEngine().toData("sent").toByteArray()) != null;
        assertEquals(logged ? 2 : null, map.get("sent"));
        assertNull(map.get("not sent"));
    }

    @Test
    void readsOfStoppedAgentFailToo() throws Exception {
        WalPlugin plugin = WalPlugin.of(member);
        AgentReader reader = plugin.maps().readers().make(AgentSettings.of("orders",
                member.getConfig().findMapConfig("orders").getMapStoreConfig().getProperties()));
        Data key = plugin.member().nodeEngine().toData("before");
        CompletableFuture<IOException> reading = CompletableFuture.supplyAsync(() -> {
            while (true) {
                try {
                    reader.load("orders", List.of(key), ReadWait.SHORT);
                } catch (IOException e) {
                    return e;
                }
            }
        });
        eventually(() -> agent.loads > 2);
        agent.faults.frozen = true;
        assertInstanceOf(HungAgent.class, reading.join());
    }

    @Test
    void slowStorageIsNotAStoppedAgent() {
        agent.faults.delayMs = 3 * HUNG_MS;
        map.set("slow", 2);
        assertEquals(2, map.get("slow"));
    }

    @Test
    void beatsSayHowManyPartitionsWait() throws Exception {
        eventually(() -> agent.settling == 0);
        member.shutdown();
        agent.faults.holdsAfterLoads = agent.loads;
        member = Members.start(config);
        CompletableFuture<Integer> waiting = CompletableFuture.supplyAsync(
                () -> member.<String, Integer>getMap("orders").get("before"));
        eventually(() -> agent.settling > 0);
        agent.faults.heldLoads.countDown();
        assertEquals(1, waiting.join());
        eventually(() -> agent.settling == 0);
    }

    @Test
    void stoppingMemberSendsBye() {
        member.shutdown();
        assertEquals(1, agent.byes);
    }
}
