package io.imapwal.hazelcast.member;

import com.hazelcast.map.IMap;
import io.imapwal.hazelcast.NotAppended;
import io.imapwal.hazelcast.OutcomeUnknown;
import io.imapwal.hazelcast.read.AgentReader;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

import static io.imapwal.hazelcast.member.Members.eventually;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

/** What callers get, and what memory has, after faults of the agent or the connection. */
class StoreFaultsTest extends StoreFixture {
    @ParameterizedTest
    @ValueSource(strings = {"plain-", "offloaded-"})
    void changesFailWithoutAgentAndMemoryStays(String prefix) throws Exception {
        IMap<String, Integer> map = member.getMap(prefix + name);
        map.set("a", 1);
        agent.stop();
        NotAppended refused = assertThrows(NotAppended.class, () -> map.set("a", 2));
        assertTrue(refused.getMessage().contains(agent.endpoint())
                && refused.getMessage().contains(map.getName())
                && refused.getMessage().contains("127.0.0.1"), refused.getMessage());
        assertThrows(NotAppended.class, () -> map.remove("a"));
        assertThrows(NotAppended.class, map::clear);
        assertThrows(NotAppended.class, () -> map.executeOnKey("a", entry -> entry.setValue(9)));
        assertEquals(1, map.get("a"));
        assertEquals(1, map.size());
        agent.start();
        eventually(() -> {
            map.set("a", 3);
            return true;
        });
        assertEquals(3, logged(map.getName(), "a"));
    }

    @Test
    void agentsRefusalIsNotAppended() {
        IMap<String, Integer> map = member.getMap(name);
        map.set("a", 1);
        agent.faults.onAppend = OnAppend.FULL;
        NotAppended refused = assertThrows(NotAppended.class, () -> map.set("a", 2));
        assertTrue(refused.getMessage().contains("full: no room"), refused.getMessage());
        assertEquals(1, map.get("a"));
    }

    @Test
    void restartedAgentCausesNoFailure() throws Exception {
        IMap<String, Integer> map = member.getMap(name);
        map.set("a", 1);
        agent.stop();
        agent.start();
        map.set("a", 2);
        assertEquals(2, logged(name, "a"));
    }

    @Test
    void olderCopyOfTheLogIsRefused() throws Exception {
        IMap<String, Integer> map = member.getMap(name);
        map.set("a", 1);
        map.set("a", 2);
        Map<Long, Long> own = new HashMap<>(agent.lastRequests);
        agent.stop();
        agent.lastRequests.replaceAll((session, last) -> last - 1);
        agent.start();
        NotAppended refused = assertThrows(NotAppended.class, () -> map.set("a", 3));
        assertTrue(refused.getMessage().contains("an older copy replaced the node's folder"),
                refused.getMessage());
        assertEquals(2, map.get("a"));
        agent.stop();
        agent.lastRequests.putAll(own);
        agent.start();
        eventually(() -> {
            map.set("a", 4);
            return true;
        });
        assertEquals(4, logged(name, "a"));
    }

    /** The agent has counted the requests of the log before, and the welcome arrives later. */
    @Test
    void changeDuringHelloIsNoOlderCopy() throws Exception {
        IMap<String, Integer> map = member.getMap(name);
        map.set("a", 1);
        int before = agent.hellos;
        agent.faults.heldHellos = new CountDownLatch(1);
        WalPlugin plugin = WalPlugin.of(member);
        CompletableFuture<String> read = CompletableFuture.supplyAsync(() -> {
            try (AgentReader reader = plugin.maps().readers().make(plugin.maps().state(name)
                    .settings())) {
                return reader.maps(List.of(name)).known().toString();
            } catch (IOException e) {
                return e.getMessage();
            }
        });
        eventually(() -> agent.hellos > before);
        map.set("a", 2);
        agent.faults.heldHellos.countDown();
        assertEquals("[" + name + "]", read.join());
    }

    @ParameterizedTest
    @ValueSource(strings = {"BREAK_AFTER", "BREAK_BEFORE"})
    void changeIsAppendedOnceWhenConnectionBreaks(OnAppend fault) {
        IMap<String, Integer> map = member.getMap(name);
        map.set("a", 1);
        int before = log.appended().size();
        agent.faults.onAppend = fault;
        map.set("a", 2);
        assertEquals(2, map.get("a"));
        assertEquals(2, logged(name, "a"));
        assertEquals(before + 1, log.appended().size());
    }

    @Test
    void outcomesAreTrueWhileConnectionsBreak() throws Exception {
        long seed = System.nanoTime();
        IMap<Integer, Integer> map = member.getMap(name);
        map.size();
        int from = log.appended().size();
        agent.faults.delayMs = 1;
        int callers = 16;
        int[] acknowledged = new int[callers];
        List<Set<Integer>> refused = new ArrayList<>();
        AtomicInteger working = new AtomicInteger(callers);
        List<Thread> threads = new ArrayList<>();
        for (int t = 0; t < callers; t++) {
            int key = t;
            Set<Integer> no = new HashSet<>();
            refused.add(no);
            threads.add(new Thread(() -> {
                for (int i = 1; i <= 100; i++) {
                    try {
                        map.set(key, i);
                        acknowledged[key] = i;
                    } catch (NotAppended e) {
                        no.add(i);
                    } catch (OutcomeUnknown e) {
                        // It may be in the log or not.
                    }
                }
                working.decrementAndGet();
            }));
        }
        threads.forEach(Thread::start);
        Random random = new Random(seed);
        OnAppend[] faults = {OnAppend.BREAK_AFTER, OnAppend.BREAK_BEFORE,
                OnAppend.FULL, OnAppend.UNKNOWN_AFTER};
        while (working.get() > 0) {
            agent.faults.onAppend = faults[random.nextInt(faults.length)];
            // Random times: faults must meet each step of a call.
            Thread.sleep(random.nextInt(4));
            agent.faults.onAppend = OnAppend.ACK;
            Thread.sleep(random.nextInt(20));
        }
        for (Thread thread : threads) {
            thread.join();
        }
        Map<Integer, List<Integer>> logged = new HashMap<>();
        Map<ByteBuffer, int[]> known = new HashMap<>();
        for (int value = 0; value <= 100; value++) {
            known.put(ByteBuffer.wrap(bytes(value)), new int[] {value});
        }
        for (FakeLog.Record record : log.appended().subList(from, log.appended().size())) {
            logged.computeIfAbsent(known.get(ByteBuffer.wrap(record.key()))[0], k ->
                    new ArrayList<>())
                    .add(known.get(ByteBuffer.wrap(record.value()))[0]);
        }
        for (int t = 0; t < callers; t++) {
            int key = t;
            List<Integer> values = logged.get(key);
            // Settling a key in doubt may append the same value once more.
            assertEquals(values.stream().sorted().toList(), values,
                    "no change after a later one; seed " + seed);
            assertTrue(values.contains(acknowledged[key]),
                    "an acknowledged change is not in the log; seed " + seed);
            assertTrue(values.stream().noneMatch(refused.get(key)::contains),
                    "NotAppended, yet in the log; seed " + seed);
            eventually(() -> map.get(key).equals(values.get(values.size() - 1)));
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"plain-", "offloaded-"})
    void unknownOutcomeInLogIsSettledIntoMemory(String prefix) throws Exception {
        assertSettledIntoMemory(prefix);
    }

    @Tag("thorough")
    @Test
    void unknownOutcomeIsSettledIntoMemoryWithObjects() throws Exception {
        assertSettledIntoMemory("objects-");
    }

    private void assertSettledIntoMemory(String prefix) throws Exception {
        IMap<String, Integer> map = member.getMap(prefix + name);
        map.set("set", 1);
        map.set("removed", 1);
        map.set("expiring", 1);
        agent.faults.onAppend = OnAppend.SILENT_AFTER;
        OutcomeUnknown unknown = assertThrows(OutcomeUnknown.class, () -> map.set("set", 2));
        assertTrue(unknown.getMessage().contains(agent.endpoint())
                && unknown.getMessage().contains("may be in the log"),
                unknown.getMessage());
        agent.faults.onAppend = OnAppend.UNKNOWN_AFTER;  // without the wait
        assertThrows(OutcomeUnknown.class, () -> map.remove("removed"));
        long before = System.currentTimeMillis();
        assertThrows(OutcomeUnknown.class, () -> map.set("expiring", 2, 600, TimeUnit.SECONDS));
        long after = System.currentTimeMillis();
        assertThrows(OutcomeUnknown.class, () -> map.set("new", 2));
        agent.faults.onAppend = OnAppend.ACK;
        eventually(() -> map.get("set") == 2 && !map.containsKey("removed")
                && map.get("expiring") == 2 && map.containsKey("new"));
        long lives = map.getEntryView("expiring").getExpirationTime() - before;
        // Hazelcast keeps times in seconds. The time in the log and the remaining time are each
        // rounded down.
        assertTrue(lives >= 598_000 && lives <= 601_000 + after - before, "lives: " + lives);
        assertEquals(2, logged(map.getName(), "set"));
        assertNull(logged(map.getName(), "removed"));
    }

    @Test
    void unknownOutcomeNotInLogLeavesMemory() throws Exception {
        IMap<String, Integer> map = member.getMap(name);
        map.set("a", 1);
        int before = log.appended().size();
        agent.faults.onAppend = OnAppend.SILENT_BEFORE;
        assertThrows(OutcomeUnknown.class, () -> map.set("a", 2));
        agent.faults.onAppend = OnAppend.ACK;
        map.set("b", 1);
        awaitSettled();
        assertEquals(1, map.get("a"));
        assertEquals(before + 1, log.appended().size());
    }

    @Test
    void failedDiskIsUnknownOutcome() throws Exception {
        IMap<String, Integer> map = member.getMap(name);
        map.set("a", 1);
        agent.faults.onAppend = OnAppend.UNKNOWN_AFTER;
        OutcomeUnknown unknown = assertThrows(OutcomeUnknown.class, () -> map.set("a", 2));
        assertTrue(unknown.getMessage().contains("the disk said no"), unknown.getMessage());
        agent.faults.onAppend = OnAppend.ACK;
        eventually(() -> map.get("a") == 2);
    }

    @Test
    void agentThatDiedAfterAppendIsAskedAgain() throws Exception {
        IMap<String, Integer> map = member.getMap(name);
        map.set("a", 1);
        agent.faults.onAppend = OnAppend.DIE_AFTER;
        assertThrows(OutcomeUnknown.class, () -> map.set("a", 2));
        assertThrows(NotAppended.class, () -> map.set("b", 2));
        assertEquals(1, map.get("a"));
        agent.start();
        eventually(() -> map.get("a") == 2);
        assertEquals(1, map.size());
    }

    @Test
    void laterChangeOfKeyInDoubtStays() throws Exception {
        IMap<String, Integer> map = member.getMap(name);
        map.set("a", 1);
        agent.faults.onAppend = OnAppend.UNKNOWN_AFTER;
        assertThrows(OutcomeUnknown.class, () -> map.set("a", 2));
        agent.faults.onAppend = OnAppend.ACK;
        map.set("a", 3);
        awaitSettled();
        assertEquals(3, map.get("a"));
        assertEquals(3, logged(name, "a"));
    }

    /** Changes these keys, in this order; no outcome is known, and all are in the log. */
    private static void doubt(IMap<String, Integer> map, List<String> keys) {
        agent.faults.onAppend = OnAppend.UNKNOWN_AFTER;
        for (String key : keys) {
            assertThrows(OutcomeUnknown.class, () -> map.set(key, 2), key);
        }
        agent.faults.onAppend = OnAppend.ACK;
    }

    @Test
    void unreadableKeyDelaysNoOtherKeyInDoubt() throws Exception {
        IMap<String, Integer> map = member.getMap(name);
        List<String> others = List.of("a", "b", "c");
        map.set("stuck", 1);
        others.forEach(key -> map.set(key, 1));
        agent.faults.unreadable = bytes("stuck");
        doubt(map, List.of("stuck", "a", "b", "c"));
        eventually(() -> others.stream().allMatch(key -> map.get(key) == 2));
        // Nor does it delay a key that comes into doubt while the reconciler is busy with it.
        doubt(map, List.of("late"));
        eventually(() -> map.containsKey("late"));
        int tries = agent.unreadableLoads;
        eventually(() -> agent.unreadableLoads > tries + 1);
        assertEquals(1, map.get("stuck"));
        assertEquals(1, WalPlugin.of(member).maps().reconciler().size());
        agent.faults.unreadable = null;
        eventually(() -> map.get("stuck") == 2
                && WalPlugin.of(member).maps().reconciler().size() == 0);
    }

    @Test
    void lockDelaysNoKeyInDoubt() throws Exception {
        IMap<String, Integer> map = member.getMap(name);
        List<String> others = List.of("a", "b", "c");
        map.set("locked", 1);
        others.forEach(key -> map.set(key, 1));
        // A caller that changes a key under its lock holds the lock when the outcome is unknown.
        map.lock("locked");
        try {
            doubt(map, List.of("locked", "a", "b", "c"));
            eventually(() -> others.stream().allMatch(key -> map.get(key) == 2));
            doubt(map, List.of("late"));
            eventually(() -> map.containsKey("late"));
            eventually(() -> map.get("locked") == 2
                    && WalPlugin.of(member).maps().reconciler().size() == 0);
        } finally {
            map.unlock("locked");
        }
    }
}
