package io.imapwal.hazelcast.member;

import com.hazelcast.config.Config;
import com.hazelcast.config.MapConfig;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.map.IMap;
import com.hazelcast.nio.serialization.genericrecord.GenericRecord;
import com.hazelcast.nio.serialization.genericrecord.GenericRecordBuilder;
import com.hazelcast.transaction.TransactionContext;
import io.imapwal.hazelcast.append.AgentLink;
import io.imapwal.hazelcast.engine.JmxBeans;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

import java.util.ArrayList;
import java.util.List;
import java.util.Set;

import static io.imapwal.hazelcast.member.Members.eventually;
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
        config.addMapConfig(map("one", agents.get(2), "1"));
        member = Members.start(config);
    }

    private MapConfig map(String name, FakeAgent own, String acks) {
        MapConfig map = Members.map(name, own.endpoint());
        map.getMapStoreConfig().setProperty("copies", "3").setProperty("acks", acks)
                .setProperty("copy-agents", String.join(", ",
                    agents.stream().map(FakeAgent::endpoint).toList()))
                // One test delays answers: they must count on a busy machine too.
                .setProperty("copy-timeout-ms", acks.equals("1") ? "5000" : "300")
                .setProperty("timeout-ms", "10000");
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
        byte[] bytes = WalPlugin.of(member).member().nodeEngine().toData(key).toByteArray();
        return log.copiesOf(map, bytes).stream().sorted().toList();
    }

    private AgentLink link(String map) {
        return WalPlugin.of(member).maps().links().of(map);
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

    /** Changes that n3 lacks, one of them a transaction. */
    private IMap<String, String> withoutThirdAgent() throws Exception {
        IMap<String, String> map = member.getMap("two");
        map.set("k", "v");
        agents.get(2).stop();
        for (int i = 0; i < 20; i++) {
            map.set("k" + i, "v");
        }
        TransactionContext context = member.newTransactionContext();
        context.beginTransaction();
        context.getMap("two").set("a", "1");
        context.getMap("two").set("b", "1");
        context.commitTransaction();
        assertTrue(link("two").bean().getWaitingForCopies() >= 22);
        return map;
    }

    private boolean isInThreeLogs(int changes) {
        for (int i = 0; i < changes; i++) {
            if (copies("two", "k" + i).size() < 3) {
                return false;
            }
        }
        return true;
    }

    /** Without a further change. */
    @Test
    void returnedAgentGetsTheMissingChanges() throws Exception {
        withoutThirdAgent();
        agents.get(2).start();
        JmxBeans.Agent bean = link("two").bean();
        eventually(() -> bean.getWaitingForCopies() == 0);
        assertTrue(isInThreeLogs(20));
        assertEquals(3, copies("two", "a").size());
        assertEquals(3, copies("two", "b").size());
        assertEquals(bean.getUnderCopied(), bean.getCopiedAgain());
    }

    /** It is used for new changes; the missing ones stay counted. */
    @ParameterizedTest
    @EnumSource(names = {"FULL", "BREAK_BEFORE", "DIE_AFTER"})
    void noChangeFailsBecauseOfMissingCopies(OnAppend fault) throws Exception {
        assertNoChangeFails(fault);
    }

    /** The agent is used again only after pauses of seconds. */
    @Tag("thorough")
    @Test
    void noChangeFailsBecauseOfSilentThirdAgent() throws Exception {
        assertNoChangeFails(OnAppend.SILENT_BEFORE);
    }

    private void assertNoChangeFails(OnAppend fault) throws Exception {
        IMap<String, String> map = withoutThirdAgent();
        agents.get(2).faults.onAppend = fault;
        agents.get(2).start();
        long longest = 0;
        for (int i = 0; i < 100; i++) {
            long from = System.nanoTime();
            map.set("n" + i, "v");
            longest = Math.max(longest, System.nanoTime() - from);
            Thread.sleep(10);
        }
        // 0.3 s is copy-timeout-ms, 10 s is timeout-ms; a busy machine needs more for itself.
        assertTrue(longest < 7_000_000_000L, longest + " ns");
        agents.get(2).faults.onAppend = OnAppend.ACK;
        agents.get(2).start();
        eventually(() -> {
            map.set("again", "v");
            return copies("two", "again").size() == 3
                    && link("two").bean().getWaitingForCopies() == 0;
        });
    }

    @Test
    void copiesWithLateAnswersArriveWithoutFurtherChanges() throws Exception {
        withoutThirdAgent();
        agents.get(2).faults.delayMs = 700;
        agents.get(2).start();
        eventually(() -> link("two").bean().getWaitingForCopies() == 0);
        assertTrue(isInThreeLogs(20));
    }

    /** A log would not count what it gets of an earlier view. */
    @Test
    void newerViewEndsTheWait() throws Exception {
        IMap<String, String> map = withoutThirdAgent();
        log.claimView(Set.of(member.getCluster().getLocalMember().getUuid().toString()));
        map.set("next", "v");
        // Only what was appended since.
        assertTrue(link("two").bean().getWaitingForCopies() <= 1);
        agents.get(2).start();
        eventually(() -> link("two").bean().getWaitingForCopies() == 0);
        assertEquals(2, copies("two", "k19").size());
    }

    /** Two agents have not answered the change before it, which one acknowledgement completed. */
    @Test
    void schemaIsLoggedAfterLateAnswers() throws Exception {
        IMap<String, Object> map = member.getMap("one");
        map.set("k", GenericRecordBuilder.compact("first").setString("name", "x").build());
        GenericRecord second = GenericRecordBuilder.compact("second").setString("name", "x")
                .build();
        agents.get(0).faults.delayMs = 250;
        agents.get(1).faults.delayMs = 250;
        map.set("k", "w");
        map.set("k", second);
        assertEquals(2, log.schemas.size());
        assertEquals(0, link("one").bean().getUnderCopied());
    }
}
