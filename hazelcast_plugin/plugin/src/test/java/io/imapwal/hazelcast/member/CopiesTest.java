package io.imapwal.hazelcast.member;

import com.hazelcast.config.Config;
import com.hazelcast.config.MapConfig;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.internal.serialization.Data;
import com.hazelcast.internal.serialization.impl.HeapData;
import com.hazelcast.map.IMap;
import com.hazelcast.transaction.TransactionContext;
import io.imapwal.hazelcast.LogUnavailable;
import io.imapwal.hazelcast.append.AgentLink;
import io.imapwal.hazelcast.engine.JmxBeans;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestInfo;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

import java.util.ArrayList;
import java.util.List;

import static io.imapwal.hazelcast.member.Members.eventually;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

/**
 * A member whose changes go to two of three agents, of which some fail. Each test has a member of
 * its own: a member uses an agent that has failed often only after a pause of seconds.
 */
class CopiesTest {
    private final List<FakeAgent> agents = new ArrayList<>();
    private final FakeLog log = new FakeLog();
    private HazelcastInstance member;
    private String name;
    private IMap<String, String> map;

    @BeforeEach
    void start(TestInfo info) throws Exception {
        for (String node : List.of("n1", "n2", "n3")) {
            agents.add(new FakeAgent(log, node).start());
        }
        Config config = Members.config("copies", Members.port(), agents.get(0).endpoint());
        config.getMapConfigs().clear();
        config.addMapConfig(map("*", agents.get(0), "2"));
        // The same agents; the list begins after the own one.
        config.addMapConfig(map("quick-*", agents.get(1), "1"));
        config.addMapConfig(Members.map("single-*", agents.get(2).endpoint()));
        config.addMapConfig(map("double-*", agents.get(2), "2"));
        config.addMapConfig(Members.map("alone-*", agents.get(0).endpoint()));
        member = Members.start(config);
        name = info.getTestMethod().orElseThrow().getName();
        map = member.getMap(name);
        settled();
    }

    private MapConfig map(String pattern, FakeAgent own, String acks) {
        MapConfig map = Members.map(pattern, own.endpoint());
        map.getMapStoreConfig().setProperty("copies", "2").setProperty("acks", acks)
                .setProperty("copy-agents", String.join(", ",
                    agents.stream().map(FakeAgent::endpoint).toList()))
                .setProperty("copy-timeout-ms", "300").setProperty("timeout-ms", "3000")
                // A connection to a frozen agent takes this long.
                .setProperty("connect-timeout-ms", "2000");
        return map;
    }

    @AfterEach
    void stop() throws Exception {
        endFaults();
        member.getLifecycleService().terminate();
        for (FakeAgent agent : agents) {
            agent.close();
        }
    }

    private void endFaults() throws Exception {
        for (FakeAgent agent : agents) {
            agent.start();
            agent.faults.onAppend = OnAppend.ACK;
            agent.faults.frozen = false;
            assertEquals(List.of(), agent.violations);
        }
    }

    /** Returns when all agents can be used, and no key is in doubt. */
    private void settled() throws Exception {
        JmxBeans.Agent bean = WalPlugin.of(member).maps().links().of(name).bean();
        String[] now = {""};
        try {
            eventually(() -> {
                map.set("probe", "v");
                int doubts = WalPlugin.of(member).maps().reconciler().size();
                now[0] = "a change is in " + copies("probe") + ", " + bean.getUsableAgents()
                        + " agents can be used, " + doubts + " keys are in doubt, "
                        + bean.getFailure();
                return copies("probe").contains("n1") && doubts == 0
                        && bean.getUsableAgents() == agents.size();
            });
        } catch (AssertionError e) {
            throw new AssertionError(now[0], e);
        }
    }

    private byte[] bytes(Object object) {
        return WalPlugin.of(member).member().nodeEngine().toData(object).toByteArray();
    }

    private List<String> copies(String key) {
        return log.copiesOf(map.getName(), bytes(key)).stream().sorted().toList();
    }

    private Object logged(String key) {
        FakeLog.Record found = log.newest(map.getName(), bytes(key));
        return found == null ? null : WalPlugin.of(member).member().nodeEngine()
                .toObject((Data) new HeapData(found.value()));
    }

    /** Otherwise it would silently have those of the map that was opened first. */
    @Test
    void mapWithOtherCopiesOfTheSameAgentIsRefused() {
        member.getMap("single-a").set("k", "v");
        assertRefused("double-a", "copies 2, acks 2", "with copies 1, acks 1 and no copy-agents");
        assertRefused("alone-a", "copies 1, acks 1", "with copies 2, acks 2");
    }

    private void assertRefused(String name, String own, String used) {
        String why = assertThrows(LogUnavailable.class, () -> member.getMap(name).set("k", "v"))
                .getMessage();
        assertTrue(why.contains(own) && why.contains(used) && why.contains("need the same copies"),
                why);
    }

    @Test
    void eachChangeIsInTwoLogsWithOneOrder() {
        for (int i = 0; i < 50; i++) {
            map.set("k" + i, "v" + i);
        }
        map.remove("k7");
        for (int i = 0; i < 50; i++) {
            assertEquals(List.of("n1", "n2"), copies("k" + i));
            assertEquals(i == 7 ? null : "v" + i, logged("k" + i));
        }
    }

    @ParameterizedTest
    @CsvSource({
        "0, BREAK_AFTER", "0, BREAK_BEFORE", "0, DIE_AFTER", "0, SILENT_AFTER", "0, SILENT_BEFORE",
        "0, UNKNOWN_AFTER", "0, FULL", "1, BREAK_AFTER", "1, BREAK_BEFORE", "1, DIE_AFTER",
        "1, SILENT_AFTER", "1, SILENT_BEFORE", "1, UNKNOWN_AFTER", "1, FULL", "1, VIEW_AFTER",
        "0, VIEW_BEFORE"})
    void changeSucceedsIfOneAgentFails(int agent, OnAppend fault) throws Exception {
        agents.get(agent).faults.onAppend = fault;
        for (int i = 0; i < 20; i++) {
            map.set("k" + i, "v" + i);
        }
        for (int i = 0; i < 20; i++) {
            assertEquals("v" + i, logged("k" + i));
            assertTrue(copies("k" + i).size() >= 2, "k" + i + ": " + copies("k" + i));
        }
    }

    @Test
    void frozenAgentIsReplacedAndUsedAgain() throws Exception {
        agents.get(0).faults.frozen = true;
        for (int i = 0; i < 20; i++) {
            map.set("k" + i, "v" + i);
            assertTrue(copies("k" + i).containsAll(List.of("n2", "n3")));
        }
        agents.get(0).faults.frozen = false;
        settled();
        assertEquals("v5", map.get("k5"));
    }

    @Test
    void transactionIsInTwoLogs() throws Exception {
        agents.get(1).faults.onAppend = OnAppend.BREAK_BEFORE;
        TransactionContext context = member.newTransactionContext();
        context.beginTransaction();
        context.getMap(name).set("a", "1");
        context.getMap(name).set("b", "1");
        context.commitTransaction();
        assertEquals(copies("a"), copies("b"));
        assertEquals(2, copies("a").size());
    }

    @Test
    void clearIsInTwoLogs() throws Exception {
        map.set("a", "1");
        agents.get(0).stop();
        map.clear();
        assertEquals(null, logged("a"));
        assertEquals(List.of("n2", "n3"), copies("a"));
    }

    /** Nothing is acknowledged that fewer logs have; memory is equal to the log afterwards. */
    @ParameterizedTest
    @ValueSource(strings = {"BREAK_AFTER", "BREAK_BEFORE", "ACK"})
    void changeWithTooFewLogsFailsAndIsSettled(OnAppend fault) throws Exception {
        assertFailsAndIsSettled(fault);
    }

    @Tag("thorough")
    @ParameterizedTest
    @ValueSource(strings = {"SILENT_AFTER", "UNKNOWN_AFTER"})
    void changeWithTooFewLogsAndDoubtIsSettled(OnAppend fault) throws Exception {
        assertFailsAndIsSettled(fault);
    }

    private void assertFailsAndIsSettled(OnAppend fault) throws Exception {
        map.set("k", "old");
        agents.get(1).stop();
        agents.get(2).stop();
        agents.get(0).faults.onAppend = fault;
        assertThrows(RuntimeException.class, () -> map.set("k", "new"));
        agents.get(0).faults.onAppend = OnAppend.ACK;
        agents.get(1).start();
        agents.get(2).start();
        settled();
        assertEquals(logged("k"), map.get("k"));
        map.set("k", "newer");
        assertEquals("newer", logged("k"));
        assertTrue(copies("k").size() >= 2);
    }

    /** n2 has the change in its socket and may still append it, so the key stays in doubt. */
    @Test
    void changeThatAnAgentMayStillAppendStaysInDoubt() throws Exception {
        boolean died = false;
        while (!died) {
            endFaults();
            settled();
            map.set("k", "old");
            agents.get(2).stop();
            agents.get(1).faults.frozen = true;
            agents.get(0).faults.onAppend = OnAppend.DIE_AFTER;
            assertThrows(RuntimeException.class, () -> map.set("k", "new"));
            // On a busy machine the plug-in may notice the frozen agent first, and send nothing.
            died = agents.get(0).stops();
        }
        agents.get(0).start();
        agents.get(2).start();
        eventually(() -> {
            map.set("other", "v");
            return copies("other").equals(List.of("n1", "n3"));
        });
        assertFalse(WalPlugin.of(member).maps().reconciler().idle());
        agents.get(1).faults.frozen = false;
        eventually(() -> WalPlugin.of(member).maps().reconciler().idle());
        assertEquals(logged("k"), map.get("k"));
    }

    @Test
    void readsAreAnsweredByAnotherAgent() throws Exception {
        map.set("k", "v");
        map.evict("k");
        agents.get(0).stop();
        assertEquals("v", map.get("k"));
    }

    @Test
    void oneLogIsEnoughIfAcksSaySo() throws Exception {
        map = member.getMap("quick-" + name);
        map.set("a", "1");
        agents.get(1).stop();
        agents.get(2).stop();
        for (int i = 0; i < 20; i++) {
            map.set("k" + i, "v" + i);
        }
        assertEquals("v19", logged("k19"));
        assertEquals(List.of("n1"), copies("k19"));
        AgentLink link = WalPlugin.of(member).maps().links().of(map.getName());
        assertTrue(link.bean().getUnderCopied() >= 20, "" + link.bean().getUnderCopied());
    }
}
