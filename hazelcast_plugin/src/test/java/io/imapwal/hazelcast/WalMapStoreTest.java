package io.imapwal.hazelcast;

import com.hazelcast.config.Config;
import com.hazelcast.config.EvictionPolicy;
import com.hazelcast.config.InMemoryFormat;
import com.hazelcast.config.MapConfig;
import com.hazelcast.config.MapStoreConfig;
import com.hazelcast.config.MaxSizePolicy;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.core.HazelcastJsonValue;
import com.hazelcast.internal.serialization.Data;
import com.hazelcast.map.IMap;
import com.hazelcast.nio.serialization.genericrecord.GenericRecord;
import com.hazelcast.nio.serialization.genericrecord.GenericRecordBuilder;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestInfo;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.IntStream;
import java.util.stream.Collectors;

import static io.imapwal.hazelcast.Members.eventually;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

/**
 * One real member, one fake agent: what is in the log, what callers hear, what memory says after
 * faults.
 */
class WalMapStoreTest {
    private static FakeLog log;
    private static FakeAgent agent;
    private static HazelcastInstance member;
    private String name;

    @BeforeAll
    static void start() throws Exception {
        log = new FakeLog();
        agent = new FakeAgent(log).start();
        Config config = Members.config("store", Members.port(), agent.endpoint());
        MapConfig offloaded = Members.map("offloaded-*", agent.endpoint());
        offloaded.getMapStoreConfig().setOffload(true);
        config.addMapConfig(offloaded);
        MapConfig evicting = Members.map("evicting-*", agent.endpoint());
        evicting.getEvictionConfig().setEvictionPolicy(EvictionPolicy.LRU)
                .setMaxSizePolicy(MaxSizePolicy.PER_NODE).setSize(1000);
        config.addMapConfig(evicting);
        MapConfig objects = Members.map("objects-*", agent.endpoint());
        config.addMapConfig(objects.setInMemoryFormat(InMemoryFormat.OBJECT));
        MapConfig chunks = Members.map("chunks-*", agent.endpoint());
        chunks.getMapStoreConfig().setProperty("restore-chunk", "7");
        config.addMapConfig(chunks);
        MapConfig behind = Members.map("behind", agent.endpoint());
        behind.getMapStoreConfig().setWriteDelaySeconds(1);
        config.addMapConfig(behind);
        MapConfig lazy = Members.map("lazy", agent.endpoint());
        lazy.getMapStoreConfig().setInitialLoadMode(MapStoreConfig.InitialLoadMode.LAZY);
        config.addMapConfig(lazy);
        config.addMapConfig(Members.map("idle", agent.endpoint()).setMaxIdleSeconds(5));
        MapConfig misspelt = Members.map("misspelt", agent.endpoint());
        misspelt.getMapStoreConfig().setProperty("timeout", "5");
        config.addMapConfig(misspelt);
        // Some tests wait for an answer that does not come.
        config.getMapConfigs().values()
                .forEach(map -> map.getMapStoreConfig().setProperty("timeout-ms", "2000"));
        member = Members.start(config);
    }

    @AfterAll
    static void stop() throws Exception {
        member.shutdown();
        agent.close();
    }

    @BeforeEach
    void name(TestInfo info) throws Exception {
        name = info.getTestMethod().orElseThrow().getName() + info.getDisplayName().hashCode();
    }

    @AfterEach
    void agentIsSoundAgain() throws Exception {
        agent.start();
        agent.faults.onAppend = OnAppend.ACK;
        agent.faults.readError = null;
        agent.faults.unreadable = null;
        agent.faults.delayMs = 0;
        agent.faults.loadLimit = Integer.MAX_VALUE;
        eventually(() -> {
            IMap<String, String> probe = member.getMap("probe");
            probe.set("k", "v");
            return true;
        });
        assertEquals(List.of(), agent.violations);
    }

    private byte[] bytes(Object object) {
        return WalPlugin.of(member).nodeEngine().toData(object).toByteArray();
    }

    private Object logged(String map, Object key) {
        FakeLog.Record found = log.newest(map, bytes(key));
        return found == null ? null : WalPlugin.of(member).nodeEngine()
                .toObject((Data) new com.hazelcast.internal.serialization.impl.HeapData(
                    found.value()));
    }

    @ParameterizedTest
    @ValueSource(strings = {"plain-", "offloaded-", "objects-", "evicting-"})
    void changesAreInTheLogWhenTheCallReturns(String prefix) {
        IMap<String, Integer> map = member.getMap(prefix + name);
        map.set("a", 1);
        assertEquals(1, logged(map.getName(), "a"));
        assertEquals(1, map.put("a", 2));
        assertEquals(2, logged(map.getName(), "a"));
        map.remove("a");
        assertNull(logged(map.getName(), "a"));
        map.putAll(Map.of("b", 3, "c", 4));
        assertEquals(3, logged(map.getName(), "b"));
        map.clear();
        assertEquals(0, log.size(map.getName()));
        assertEquals(0, map.size());
        map.putTransient("t", 5, 0, TimeUnit.SECONDS);
        assertNull(logged(map.getName(), "t"));
    }

    @Test
    void labelsPartitionExpiryAndOrderAreLogged() {
        IMap<String, Long> map = member.getMap(name);
        long before = System.currentTimeMillis();
        map.set("a", 1L, 90_500, TimeUnit.MILLISECONDS);
        FakeLog.Record first = log.newest(name, bytes("a"));
        assertEquals("java.lang.String", first.keyClass());
        assertEquals("java.lang.Long", first.valueClass());
        assertEquals(member.getPartitionService().getPartition("a").getPartitionId(),
                first.partition());
        assertTrue(first.expiresAtMs() >= before + 90_000
                && first.expiresAtMs() <= System.currentTimeMillis() + 91_000);
        map.set("a", 2L);
        FakeLog.Record second = log.newest(name, bytes("a"));
        assertEquals(0, second.expiresAtMs());
        assertEquals(first.order().subList(0, 3), second.order().subList(0, 3));
        assertTrue(second.order().get(3) > first.order().get(3));
    }

    @Test
    void manyCallersShareMessages() throws Exception {
        IMap<Integer, Integer> map = member.getMap(name);
        map.size();
        agent.faults.delayMs = 2;
        int before = agent.appends;
        List<Thread> threads = new ArrayList<>();
        for (int t = 0; t < 32; t++) {
            int from = t * 50;
            threads.add(new Thread(() -> {
                for (int i = from; i < from + 50; i++) {
                    map.set(i, i);
                }
            }));
        }
        threads.forEach(Thread::start);
        for (Thread thread : threads) {
            thread.join();
        }
        assertEquals(1600, log.size(name));
        assertTrue(agent.appends - before < 800, "no coalescing: " + (agent.appends - before));
    }

    @Test
    void whatCallersAreToldHoldsWhileConnectionsBreak() throws Exception {
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
                        // either way is right
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
            // A key in doubt was perhaps settled: the same value once more.
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
    void clearIsOneEntryForEachPartition(String prefix) {
        IMap<Integer, Integer> map = member.getMap(prefix + name);
        for (int i = 0; i < 500; i++) {
            map.set(i, i);
        }
        int before = log.appended().size();
        map.clear();
        assertEquals(partitions(), log.appended().size() - before);
        assertEquals(0, log.size(map.getName()));
        map.clear();
        assertEquals(partitions(), log.appended().size() - before,
                "nothing to clear, nothing to log");
    }

    @ParameterizedTest
    @ValueSource(strings = {"plain-", "offloaded-"})
    void clearDeletesKeysThatWereEvicted(String prefix) {
        IMap<Integer, Integer> map = member.getMap(prefix + name);
        for (int i = 0; i < 200; i++) {
            map.set(i, i);
        }
        map.evictAll();
        assertEquals(0, map.size());
        map.clear();
        assertEquals(0, log.size(map.getName()));
        assertNull(map.get(7));
    }

    @ParameterizedTest
    @ValueSource(strings = {"plain-", "offloaded-"})
    void clearKeepsLockedKeysAndIsRefusedIfOthersOfTheirPartitionWereEvicted(String prefix) {
        IMap<Integer, Integer> map = member.getMap(prefix + name);
        for (int i = 0; i < 200; i++) {
            map.set(i, i);
        }
        map.lock(7);
        map.clear();
        assertEquals(Map.of(7, 7),
                map.getAll(IntStream.range(0, 200).boxed().collect(Collectors.toSet())));
        assertEquals(1, log.size(map.getName()));
        int same = IntStream.range(200, 10_000).filter(i -> partition(i) == partition(7))
                .findFirst().orElseThrow();
        map.set(same, 1);
        map.evict(same);
        NotAppended refused = assertThrows(NotAppended.class, map::clear);
        assertTrue(refused.getMessage().contains("locked"), refused.getMessage());
        assertEquals(1, map.get(same));
        map.unlock(7);
        map.clear();
        assertEquals(0, log.size(map.getName()));
    }

    /** The log has it or not: then memory says the same, for the partition as a whole. */
    @ParameterizedTest
    @CsvSource({"SILENT_AFTER, true", "UNKNOWN_AFTER, true", "SILENT_BEFORE, false"})
    void aClearWhoseOutcomeIsUnknownIsSettled(OnAppend fault, boolean inLog) throws Exception {
        IMap<Integer, Integer> map = member.getMap(name);
        map.set(7, 1);
        agent.faults.onAppend = fault;
        try {
            map.clear();
            assertTrue(inLog);
        } catch (OutcomeUnknown e) {
            // Hazelcast repeats a clear that failed, and the partition may be settled before that.
            assertTrue(e.getMessage().contains("may be in the log"), e.getMessage());
        }
        agent.faults.onAppend = OnAppend.ACK;
        eventually(() -> WalPlugin.of(member).reconciler().idle()
                && !WalPlugin.of(member).state(name).wholeness().isAnyUnsettled());
        assertEquals(inLog ? null : 1, map.get(7));
        assertEquals(inLog ? 0 : 1, log.size(name));
    }

    private int partitions() {
        return WalPlugin.of(member).partitionCount();
    }

    private int partition(int key) {
        return member.getPartitionService().getPartition(key).getPartitionId();
    }

    @Test
    void aDestroyIsOneEntryForEachPartition() {
        IMap<Integer, Integer> map = member.getMap(name);
        for (int i = 0; i < 1000; i++) {
            map.set(i, i);
        }
        int before = log.appended().size();
        map.destroy();
        assertEquals(partitions(), log.appended().size() - before);
        assertEquals(0, log.size(name));
    }

    @Test
    void aDestroyedMapIsEmptyWhenItIsAskedForAgain() {
        IMap<Integer, Integer> map = member.getMap(name);
        for (int i = 0; i < 200; i++) {
            map.set(i, i);
        }
        map.destroy();
        assertEquals(0, log.size(name));
        assertEquals(0, member.getMap(name).size());
        member.<Integer, Integer>getMap(name).set(7, 1);
        assertEquals(1, logged(name, 7));
    }

    @Test
    void aDestroyThatCannotBeLoggedSaysSoAndCanBeRepeated() throws Exception {
        IMap<String, Integer> map = member.getMap(name);
        map.set("a", 1);
        agent.faults.onAppend = OnAppend.FULL;
        LogUnavailable failure = assertThrows(LogUnavailable.class, map::destroy);
        assertTrue(failure.getMessage().contains("destroy it again"), failure.getMessage());
        agent.faults.onAppend = OnAppend.ACK;
        IMap<String, Integer> again = member.getMap(name);
        assertEquals(1, again.get("a"));
        again.destroy();
        assertEquals(0, member.getMap(name).size());
    }

    @ParameterizedTest
    @ValueSource(strings = {"plain-", "offloaded-"})
    void withoutAnAgentChangesFailAndMemoryStays(String prefix) throws Exception {
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
    void aRefusalByTheAgentIsCertain() {
        IMap<String, Integer> map = member.getMap(name);
        map.set("a", 1);
        agent.faults.onAppend = OnAppend.FULL;
        NotAppended refused = assertThrows(NotAppended.class, () -> map.set("a", 2));
        assertTrue(refused.getMessage().contains("full: no room"), refused.getMessage());
        assertEquals(1, map.get("a"));
    }

    @Test
    void tooLargeAValueIsRefusedBeforeItIsSent() {
        IMap<String, byte[]> map = member.getMap(name);
        assertThrows(NotAppended.class, () -> map.set("a", new byte[2 << 20]));
        map.set("a", new byte[900_000]);
        assertEquals(1, log.size(name));
    }

    @ParameterizedTest
    @ValueSource(strings = {"BREAK_AFTER", "BREAK_BEFORE"})
    void aBrokenConnectionIsMendedAndTheChangeAppendedOnce(OnAppend fault) {
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
    void anAgentThatStartedAgainIsFoundWithoutAFailure() throws Exception {
        IMap<String, Integer> map = member.getMap(name);
        map.set("a", 1);
        agent.stop();
        agent.start();
        map.set("a", 2);
        assertEquals(2, logged(name, "a"));
    }

    @ParameterizedTest
    @ValueSource(strings = {"plain-", "offloaded-", "objects-"})
    void anUnknownOutcomeThatIsInTheLogIsSettledIntoMemory(String prefix) throws Exception {
        IMap<String, Integer> map = member.getMap(prefix + name);
        map.set("set", 1);
        map.set("removed", 1);
        map.set("expiring", 1);
        agent.faults.onAppend = OnAppend.SILENT_AFTER;
        OutcomeUnknown unknown = assertThrows(OutcomeUnknown.class, () -> map.set("set", 2));
        assertTrue(unknown.getMessage().contains(agent.endpoint())
                && unknown.getMessage().contains("may be in the log"),
                unknown.getMessage());
        assertThrows(OutcomeUnknown.class, () -> map.remove("removed"));
        long before = System.currentTimeMillis();
        assertThrows(OutcomeUnknown.class, () -> map.set("expiring", 2, 600, TimeUnit.SECONDS));
        long after = System.currentTimeMillis();
        assertThrows(OutcomeUnknown.class, () -> map.set("new", 2));
        agent.faults.onAppend = OnAppend.ACK;
        eventually(() -> map.get("set") == 2 && !map.containsKey("removed")
                && map.get("expiring") == 2 && map.containsKey("new"));
        long lives = map.getEntryView("expiring").getExpirationTime() - before;
        assertTrue(lives >= 599_000 && lives <= 601_000 + after - before, "lives: " + lives);
        assertEquals(2, logged(map.getName(), "set"));
        assertNull(logged(map.getName(), "removed"));
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
    void aKeyWhoseRecordCannotBeReadDelaysNoOtherAndIsSettledWhenItCanBe() throws Exception {
        IMap<String, Integer> map = member.getMap(name);
        List<String> others = List.of("a", "b", "c");
        map.set("stuck", 1);
        others.forEach(key -> map.set(key, 1));
        agent.faults.unreadable = bytes("stuck");
        doubt(map, List.of("stuck", "a", "b", "c"));
        eventually(() -> others.stream().allMatch(key -> map.get(key) == 2));
        // Also one that comes into doubt while the reconciler is busy with the other.
        doubt(map, List.of("late"));
        eventually(() -> map.containsKey("late"));
        int tries = agent.unreadableLoads;
        eventually(() -> agent.unreadableLoads > tries + 1);
        assertEquals(1, map.get("stuck"));
        assertEquals(1, WalPlugin.of(member).reconciler().size());
        agent.faults.unreadable = null;
        eventually(() -> map.get("stuck") == 2 && WalPlugin.of(member).reconciler().size() == 0);
    }

    @Test
    void aKeyThatSomebodyHoldsLockedDelaysNoOtherAndIsSettledWhenItIsLetGo() throws Exception {
        IMap<String, Integer> map = member.getMap(name);
        List<String> others = List.of("a", "b", "c");
        map.set("locked", 1);
        others.forEach(key -> map.set(key, 1));
        // Whoever changes a key under its lock holds the lock when the outcome is unknown.
        map.lock("locked");
        try {
            doubt(map, List.of("locked", "a", "b", "c"));
            eventually(() -> others.stream().allMatch(key -> map.get(key) == 2));
            doubt(map, List.of("late"));
            eventually(() -> map.containsKey("late"));
            assertEquals(1, map.get("locked"));
        } finally {
            map.unlock("locked");
        }
        eventually(() -> map.get("locked") == 2 && WalPlugin.of(member).reconciler().size() == 0);
    }

    @Test
    void anAgentThatDiesAfterAppendingIsAskedWhenItIsBack() throws Exception {
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

    /**
     * Hazelcast acknowledges the removal of a key that it does not find without a change to log;
     * the reconciler would then bring the key back.
     */
    @ParameterizedTest
    @ValueSource(strings = {"plain-", "offloaded-", "objects-", "evicting-"})
    void aKeyThatOnlyTheLogMayHoldIsNotTakenForAbsent(String prefix) throws Exception {
        IMap<String, Integer> map = member.getMap(prefix + name);
        map.set("other", 1);
        agent.faults.onAppend = OnAppend.DIE_AFTER;
        assertThrows(OutcomeUnknown.class, () -> map.set("a", 1));
        LogUnavailable unknown = assertThrows(LogUnavailable.class, () -> map.remove("a"));
        assertTrue(unknown.getMessage().contains(agent.endpoint())
                && unknown.getMessage().contains(map.getName()), unknown.getMessage());
        assertThrows(LogUnavailable.class, () -> map.remove("a", 1));
        assertThrows(LogUnavailable.class, () -> map.get("a"));
        assertThrows(LogUnavailable.class, () -> map.containsKey("a"));
        assertThrows(LogUnavailable.class, () -> map.getAll(Set.of("a", "other")));
        assertEquals(1, map.get("other"));
        agent.start();
        eventually(() -> {
            map.remove("a");
            return true;
        });
        eventually(() -> WalPlugin.of(member).reconciler().size() == 0);
        assertNull(map.get("a"));
        assertNull(logged(map.getName(), "a"));
        assertEquals(Set.of("other"), map.keySet());
    }

    @Test
    void aReadOnAPartitionsThreadWaitsForNoOtherReadBeyondItsTime() throws Exception {
        IMap<String, Integer> map = member.getMap("evicting-" + name);
        map.set("a", 1);
        map.evict("a");
        WalPlugin plugin = WalPlugin.of(member);
        AgentSettings settings = AgentSettings.of(map.getName(),
                member.getConfig().findMapConfig(map.getName()).getMapStoreConfig()
                .getProperties());
        int before = agent.loads;
        agent.faults.readDelayMs = 6000;
        Thread slow = new Thread(() -> {
            try {
                plugin.reader(settings).load(map.getName(), List.of(
                        plugin.nodeEngine().<Data>toData("a")), settings.restoreTimeoutMs());
            } catch (java.io.IOException e) {
                // not what is asked here
            }
        });
        slow.start();
        try {
            eventually(() -> agent.loads > before);
            long from = System.nanoTime();
            assertThrows(LogUnavailable.class, () -> map.get("a"));
            assertTrue(System.nanoTime() - from < 5_000_000_000L, "timeout-ms is 2000");
        } finally {
            agent.faults.readDelayMs = 0;
            slow.join();
        }
    }

    @Test
    void aLaterChangeOfAKeyInDoubtStays() throws Exception {
        IMap<String, Integer> map = member.getMap(name);
        map.set("a", 1);
        agent.faults.onAppend = OnAppend.UNKNOWN_AFTER;
        assertThrows(OutcomeUnknown.class, () -> map.set("a", 2));
        agent.faults.onAppend = OnAppend.ACK;
        map.set("a", 3);
        Thread.sleep(300);
        assertEquals(3, map.get("a"));
        assertEquals(3, logged(name, "a"));
    }

    @Test
    void anUnknownOutcomeThatIsNotInTheLogLeavesMemory() throws Exception {
        IMap<String, Integer> map = member.getMap(name);
        map.set("a", 1);
        int before = log.appended().size();
        agent.faults.onAppend = OnAppend.SILENT_BEFORE;
        assertThrows(OutcomeUnknown.class, () -> map.set("a", 2));
        agent.faults.onAppend = OnAppend.ACK;
        map.set("b", 1);
        Thread.sleep(300);
        assertEquals(1, map.get("a"));
        assertEquals(before + 1, log.appended().size());
    }

    @Test
    void aDiskThatFailedIsAnUnknownOutcome() throws Exception {
        IMap<String, Integer> map = member.getMap(name);
        map.set("a", 1);
        agent.faults.onAppend = OnAppend.UNKNOWN_AFTER;
        OutcomeUnknown unknown = assertThrows(OutcomeUnknown.class, () -> map.set("a", 2));
        assertTrue(unknown.getMessage().contains("the disk said no"), unknown.getMessage());
        agent.faults.onAppend = OnAppend.ACK;
        eventually(() -> map.get("a") == 2);
    }

    @ParameterizedTest
    @ValueSource(strings = {"plain-", "offloaded-"})
    void absentKeysCostNoHopWithoutEviction(String prefix) {
        IMap<Integer, Integer> map = member.getMap(prefix + name);
        map.size();
        int before = agent.loads;
        for (int i = 0; i < 20; i++) {
            assertNull(map.put(i, i));
            assertNull(map.get(-1 - i));
        }
        assertTrue(map.getAll(Set.of(-1, -2, -3)).isEmpty());
        assertEquals(before, agent.loads);
    }

    @Test
    void evictedKeysComeFromTheAgentOrTheReadFails() throws Exception {
        IMap<String, Integer> map = member.getMap("evicting-" + name);
        map.set("a", 1, 600, TimeUnit.SECONDS);
        map.evict("a");
        assertEquals(1, map.get("a"));
        long left = map.getEntryView("a").getExpirationTime() - System.currentTimeMillis();
        assertTrue(left > 590_000 && left <= 601_000, "left: " + left);
        map.evict("a");
        assertEquals(Map.of("a", 1), map.getAll(Set.of("a")));
        map.evict("a");
        assertEquals(1, map.put("a", 2));
        map.evict("a");
        agent.stop();
        assertThrows(LogUnavailable.class, () -> map.get("a"));
        assertThrows(LogUnavailable.class, () -> map.containsKey("a"));
        agent.start();
        eventually(() -> map.get("a") == 2);
    }

    @ParameterizedTest
    @ValueSource(strings = {"plain-", "offloaded-"})
    void whatWasEvictedByHandIsLoadedOnRequest(String prefix) {
        IMap<Integer, Integer> map = member.getMap(prefix + name);
        for (int i = 0; i < 100; i++) {
            map.set(i, i);
        }
        map.evictAll();
        agent.faults.loadLimit = 3;
        assertEquals(0, map.size());
        map.loadAll(false);
        assertEquals(100, map.size());
        map.evict(7);
        map.loadAll(Set.of(7), false);
        assertEquals(7, map.get(7));
    }

    @Test
    void aListingThatCannotGoOnIsBegunAgainByLoadAll() {
        IMap<Integer, Integer> map = member.getMap("chunks-" + name);
        for (int i = 0; i < 100; i++) {
            map.set(i, i);
        }
        for (int trouble = 0; trouble < 2; trouble++) {
            map.evictAll();
            int before = agent.listings;
            if (trouble == 0) {
                agent.faults.goneAfterPages = 3;
            } else {
                agent.faults.skipAfterPages = 3;
            }
            map.loadAll(false);
            assertEquals(100, map.size());
            assertEquals(before + 2, agent.listings);
        }
    }

    @Test
    void whatCannotBeKeptIsRefusedWithAReason() {
        assertTrue(message("behind").contains("write-delay-seconds is 1"), message("behind"));
        assertTrue(message("idle").contains("max-idle-seconds is 5"), message("idle"));
        assertTrue(message("lazy").contains("initial-mode is LAZY"), message("lazy"));
        assertTrue(message("misspelt").contains("\"timeout\" of map \"misspelt\" is unknown"),
                message("misspelt"));
    }

    private static String message(String map) {
        return assertThrows(RuntimeException.class, () -> member.getMap(map).set("a", 1))
                .getMessage();
    }

    @Test
    void everyKindOfValueComesBackAfterAMemberRestart() throws Exception {
        Config config = Members.config("restart", Members.port(), agent.endpoint());
        GenericRecord inner = GenericRecordBuilder.compact("inner").setInt32("n", 7).build();
        GenericRecord record = GenericRecordBuilder.compact("order").setString("state", "paid")
                .setGenericRecord("inner", inner).build();
        HazelcastInstance first = Members.start(config);
        long expiry;
        try {
            IMap<Object, Object> map = first.getMap(name);
            map.set("compact", record);
            map.set(GenericRecordBuilder.compact("key").setInt64("id", 5).build(), "compact key");
            map.set("json", new HazelcastJsonValue("{\"a\": 1}"));
            map.set("list", new ArrayList<>(List.of(1, "two")));
            map.set("bytes", new byte[] {1, 2, 3});
            map.set(42L, "long key");
            map.set("ttl", 1, 1000, TimeUnit.SECONDS);
            map.set("gone", 1);
            map.delete("gone");
            map.set("passed", 1, 1, TimeUnit.SECONDS);
            expiry = log.newest(name, WalPlugin.of(first).nodeEngine().toData("ttl").toByteArray())
                    .expiresAtMs();
            assertEquals("order", log.newest(name,
                    WalPlugin.of(first).nodeEngine().toData("compact").toByteArray()).valueClass());
        } finally {
            first.getLifecycleService().terminate();
        }
        Thread.sleep(1100);
        HazelcastInstance second = Members.start(config);
        try {
            IMap<Object, Object> map = second.getMap(name);
            assertEquals(7, map.size());
            assertEquals("paid", ((GenericRecord) map.get("compact")).getString("state"));
            assertEquals(7, ((GenericRecord) map.get("compact")).getGenericRecord("inner")
                    .getInt32("n"));
            assertEquals("compact key",
                    map.get(GenericRecordBuilder.compact("key").setInt64("id", 5).build()));
            assertEquals(new HazelcastJsonValue("{\"a\": 1}"), map.get("json"));
            assertEquals(List.of(1, "two"), map.get("list"));
            assertArrayEquals(new byte[] {1, 2, 3}, (byte[]) map.get("bytes"));
            assertEquals("long key", map.get(42L));
            // Hazelcast keeps expiry in whole seconds
            assertEquals(expiry, map.getEntryView("ttl").getExpirationTime(), 1000);
            map.set("compact", "after");
            List<Long> order = log.newest(name, bytes("compact")).order();
            assertEquals(log.newestView, order.get(0));
        } finally {
            second.shutdown();
        }
    }
}
