package io.imapwal.hazelcast.member;

import com.hazelcast.internal.serialization.Data;
import com.hazelcast.map.IMap;
import com.hazelcast.partition.PartitionService;
import io.imapwal.hazelcast.LogUnavailable;
import io.imapwal.hazelcast.OutcomeUnknown;
import io.imapwal.hazelcast.read.ReadWait;
import io.imapwal.wire.AgentSettings;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

import java.io.IOException;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

import static io.imapwal.hazelcast.member.Members.eventually;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

/** Reads of keys that are not in memory, and loads on request. */
class StoreReadsTest extends StoreFixture {
    @ParameterizedTest
    @ValueSource(strings = {"plain-", "offloaded-"})
    void absentKeysAreNotLoadedWithoutEviction(String prefix) {
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
    void evictedKeysAreLoadedOrReadFails() throws Exception {
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

    /**
     * Hazelcast acknowledges the removal of an absent key, and there is no change to log. The
     * reconciler would then load the key into memory again.
     */
    @ParameterizedTest
    @ValueSource(strings = {"plain-", "offloaded-", "objects-", "evicting-"})
    void keyInDoubtIsNotTakenForAbsent(String prefix) throws Exception {
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
        eventually(() -> WalPlugin.of(member).maps().reconciler().size() == 0);
        assertNull(map.get("a"));
        assertNull(logged(map.getName(), "a"));
        assertEquals(Set.of("other"), map.keySet());
    }

    @Test
    void readOnPartitionThreadEndsWithItsTimeout() throws Exception {
        IMap<String, Integer> map = member.getMap("evicting-" + name);
        map.set("a", 1);
        map.evict("a");
        WalPlugin plugin = WalPlugin.of(member);
        AgentSettings settings = AgentSettings.of(map.getName(),
                member.getConfig().findMapConfig(map.getName()).getMapStoreConfig()
                .getProperties());
        int before = agent.loads;
        agent.faults.holdsAfterLoads = before;
        Thread slow = new Thread(() -> {
            try {
                plugin.maps().readers().of(settings).shared().load(map.getName(), List.of(
                        plugin.member().nodeEngine().<Data>toData("a")), ReadWait.LONG);
            } catch (IOException e) {
                // This test is about the other read.
            }
        });
        slow.start();
        try {
            eventually(() -> agent.loads > before);
            long from = System.nanoTime();
            assertThrows(LogUnavailable.class, () -> map.get("a"));
            assertTrue(System.nanoTime() - from < 5_000_000_000L, "timeout-ms is 2000");
        } finally {
            agent.faults.holdsAfterLoads = Integer.MAX_VALUE;
            agent.faults.heldLoads.countDown();
            slow.join();
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"plain-", "offloaded-"})
    void loadAllLoadsEvictedKeys(String prefix) {
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

    /** They are loaded after the operation of loadAll. */
    @ParameterizedTest
    @ValueSource(strings = {"plain-", "offloaded-"})
    void loadAllLoadsManyKeysOfOnePartition(String prefix) {
        IMap<Integer, Integer> map = member.getMap(prefix + name);
        PartitionService partitions = member.getPartitionService();
        Set<Integer> keys = IntStream.iterate(0, i -> i + 1)
                .filter(i -> partitions.getPartition(i).getPartitionId() == 0)
                .limit(150).boxed().collect(Collectors.toSet());
        keys.forEach(key -> map.set(key, key));
        map.evictAll();
        map.loadAll(keys, false);
        assertEquals(150, map.size());
    }

    @ParameterizedTest
    @ValueSource(strings = {"plain-", "offloaded-"})
    void loadAllThatCannotReadFailsAndLeavesKeysEvicted(String prefix) {
        IMap<Integer, Integer> map = member.getMap(prefix + name);
        map.set(7, 7);
        map.evict(7);
        agent.faults.readError = "the disk is gone";
        try {
            assertThrows(LogUnavailable.class, () -> map.loadAll(Set.of(7), true));
            assertThrows(LogUnavailable.class, () -> map.get(7));
        } finally {
            agent.faults.readError = null;
        }
        map.loadAll(Set.of(7), true);
        assertEquals(1, map.size());
    }

    @Test
    void loadAllRestartsBrokenListing() {
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
}
