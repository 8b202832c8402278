package io.imapwal.hazelcast.member;

import com.hazelcast.config.Config;
import com.hazelcast.config.MapConfig;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.map.IMap;
import io.imapwal.hazelcast.LogUnavailable;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.function.BiConsumer;

import static io.imapwal.hazelcast.member.Members.eventually;
import static io.imapwal.hazelcast.member.TestCluster.fill;
import static io.imapwal.hazelcast.member.TestCluster.owned;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

/** Entries that a map has before it uses the log: they are never removed. */
class ExistingEntriesTest {
    private final TestCluster cluster = new TestCluster("existing-" + UUID.randomUUID());

    @AfterEach
    void stop() throws Exception {
        cluster.stop();
    }

    private HazelcastInstance start(int number, boolean logged) throws Exception {
        Config config = cluster.config(number, cluster.startAgent());
        if (!logged) {
            config.addMapConfig(new MapConfig("*"));
        }
        return cluster.start(config);
    }

    /** It always refuses, and soon because of this. */
    private static void assertRefuses(HazelcastInstance member, String why) throws Exception {
        eventually(() -> assertThrows(LogUnavailable.class,
                () -> member.getMap("orders").set(-1, -1)).getMessage().contains(why));
    }

    @Test
    void lastMemberWithoutTheLogMayLeave() throws Exception {
        HazelcastInstance a = start(0, false);
        fill(a.getMap("orders"), 100);
        HazelcastInstance b = start(1, true);
        cluster.awaitSafe();
        assertRefuses(b, "has no map-store");
        a.getLifecycleService().terminate();
        assertRefuses(b, "has 100 entries of map \"orders\" in memory, and the log has none");
        // They are still there, for a member without the log.
        HazelcastInstance c = start(2, false);
        cluster.awaitSafe();
        b.shutdown();
        IMap<Integer, Integer> map = c.getMap("orders");
        assertEquals(100, map.size());
        assertEquals(99, map.get(99));
    }

    /** Otherwise it would log a change, and then the log would be right for the other one. */
    @Test
    void memberWithoutSuchEntriesRefusesToo() throws Exception {
        HazelcastInstance a = start(0, false);
        a.getMap("orders").set(1, 1);
        HazelcastInstance b = start(1, true);
        HazelcastInstance c = start(2, true);
        cluster.awaitSafe();
        a.getLifecycleService().terminate();
        for (int round = 0; round < 3; round++) {
            assertRefuses(b, "entries of map \"orders\" in memory");
            assertRefuses(c, "entries of map \"orders\" in memory");
        }
        HazelcastInstance again = start(0, false);
        cluster.awaitSafe();
        b.getLifecycleService().terminate();
        cluster.awaitSafe();
        c.getLifecycleService().terminate();
        assertEquals(1, again.getMap("orders").get(1));
    }

    /** Its first entries arrive here as backups, after this member's agent has read the log. */
    @Test
    void entriesOfTheMemberThatOpensItFirstAreLogged() throws Exception {
        assertOpenedBeside((map, key) -> map.set(key, 1));
    }

    /** The same with entries that are never logged. */
    @Test
    void transientEntriesOfItsFirstMemberAreNoReason() throws Exception {
        assertOpenedBeside((map, key) -> map.putTransient(key, 1, 0, TimeUnit.SECONDS));
    }

    /** @param first stores the first entry, on a member that has opened the map meanwhile */
    private void assertOpenedBeside(BiConsumer<IMap<Integer, Integer>, Integer> first)
            throws Exception {
        HazelcastInstance a = start(0, true);
        HazelcastInstance b = start(1, true);
        cluster.awaitSafe();
        CountDownLatch held = new CountDownLatch(1);
        cluster.agents.get(1).faults.heldMaps = held;
        CompletableFuture<IMap<Integer, Integer>> opening =
                CompletableFuture.supplyAsync(() -> b.getMap("orders"));
        eventually(() -> cluster.agents.get(1).merges == 1);
        int key = owned(a, 1).get(0);
        first.accept(a.getMap("orders"), key);
        held.countDown();
        assertEquals(1, opening.get(30, TimeUnit.SECONDS).get(key));
    }

    /** The log has nothing of this map, whatever members do. */
    @Test
    void mapWithTransientEntriesOutlivesRestarts() throws Exception {
        HazelcastInstance a = start(0, true);
        HazelcastInstance b = start(1, true);
        cluster.awaitSafe();
        for (int key = 0; key < 50; key++) {
            a.<Integer, Integer>getMap("orders").putTransient(key, key, 0, TimeUnit.SECONDS);
        }
        HazelcastInstance c = start(2, true);
        cluster.awaitSafe();
        a.shutdown();
        cluster.awaitSafe();
        b.shutdown();
        c.getMap("orders").set(-1, -1);
        HazelcastInstance again = start(0, true);
        cluster.awaitSafe();
        c.getMap("orders").destroy();
        again.getMap("orders").set(-1, -2);
        assertEquals(-2, c.getMap("orders").get(-1));
    }
}
