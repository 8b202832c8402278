package io.imapwal.hazelcast.member;

import com.hazelcast.config.Config;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.core.HazelcastJsonValue;
import com.hazelcast.map.IMap;
import com.hazelcast.nio.serialization.genericrecord.GenericRecord;
import com.hazelcast.nio.serialization.genericrecord.GenericRecordBuilder;
import io.imapwal.hazelcast.LogUnavailable;
import io.imapwal.hazelcast.NotAppended;
import io.imapwal.hazelcast.OutcomeUnknown;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

import static io.imapwal.hazelcast.member.Members.eventually;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

/** What is in the log after each kind of change, and after a restart. */
class WalMapStoreTest extends StoreFixture {
    @ParameterizedTest
    @ValueSource(strings = {"plain-", "offloaded-", "objects-", "evicting-"})
    void changesAreInLogWhenCallReturns(String prefix) {
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
    void classesPartitionExpiryAndOrderAreLogged() {
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

    @ParameterizedTest
    @ValueSource(strings = {"plain-", "offloaded-"})
    void clearIsOneEntryPerPartition(String prefix) {
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
    void clearDeletesEvictedKeys(String prefix) {
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
    void clearKeepsLockedKeysOrIsRefused(String prefix) {
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

    /** The whole partition is compared with the log, which has the clear or not. */
    @ParameterizedTest
    @CsvSource({"SILENT_AFTER, true", "UNKNOWN_AFTER, true", "SILENT_BEFORE, false"})
    void clearWithUnknownOutcomeIsSettled(OnAppend fault, boolean inLog) throws Exception {
        IMap<Integer, Integer> map = member.getMap(name);
        map.set(7, 1);
        agent.faults.onAppend = fault;
        try {
            map.clear();
            assertTrue(inLog);
        } catch (OutcomeUnknown e) {
            // Hazelcast repeats a clear that failed. The partition may be settled before that.
            assertTrue(e.getMessage().contains("may be in the log"), e.getMessage());
        }
        agent.faults.onAppend = OnAppend.ACK;
        eventually(() -> WalPlugin.of(member).maps().reconciler().idle()
                && !WalPlugin.of(member).maps().state(name).wholeness().isAnyUnsettled());
        assertEquals(inLog ? null : 1, map.get(7));
        assertEquals(inLog ? 0 : 1, log.size(name));
    }

    private int partitions() {
        return WalPlugin.of(member).member().partitionCount();
    }

    private int partition(int key) {
        return member.getPartitionService().getPartition(key).getPartitionId();
    }

    @Test
    void destroyIsOneEntryPerPartition() {
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
    void destroyedMapIsEmptyWhenUsedAgain() {
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
    void destroyThatIsNotLoggedCanBeRepeated() throws Exception {
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

    @Test
    void tooLargeValueIsNotSent() {
        IMap<String, byte[]> map = member.getMap(name);
        assertThrows(NotAppended.class, () -> map.set("a", new byte[2 << 20]));
        map.set("a", new byte[900_000]);
        assertEquals(1, log.size(name));
    }

    @Test
    void unsafeConfigurationIsRefusedWithReason() {
        assertTrue(message("behind").contains("write-delay-seconds is 1"), message("behind"));
        assertTrue(message("idle").contains("max-idle-seconds is 5"), message("idle"));
        assertTrue(message("lazy").contains("initial-mode is LAZY"), message("lazy"));
        assertTrue(message("misspelt").contains("\"timeout\" of map \"misspelt\" is unknown"),
                message("misspelt"));
    }

    @Test
    void wrongIndexIsRefusedByHazelcastsOwnError() {
        String message = assertThrows(IllegalArgumentException.class, () -> member.getMap("twice"))
                .getMessage();
        assertTrue(message.startsWith("Duplicate attribute name"), message);
    }

    private static String message(String map) {
        return assertThrows(RuntimeException.class, () -> member.getMap(map).set("a", 1))
                .getMessage();
    }

    @Test
    void allKindsOfValuesSurviveMemberRestart() throws Exception {
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
            expiry = log.newest(name,
                    WalPlugin.of(first).member().nodeEngine().toData("ttl").toByteArray())
                    .expiresAtMs();
            assertEquals("order", log.newest(name,
                    WalPlugin.of(first).member().nodeEngine().toData("compact").toByteArray())
                            .valueClass());
        } finally {
            first.getLifecycleService().terminate();
        }
        // The time to live of "passed" is one second, which is the shortest that Hazelcast has.
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
            // Hazelcast stores the expiry in whole seconds.
            long off = Math.abs(map.getEntryView("ttl").getExpirationTime() - expiry);
            assertTrue(off <= 1000, off + " ms");
            map.set("compact", "after");
            List<Long> order = log.newest(name, bytes("compact")).order();
            assertEquals(log.newestView, order.get(0));
        } finally {
            second.shutdown();
        }
    }
}
