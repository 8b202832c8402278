package io.imapwal.hazelcast.member;

import com.hazelcast.client.HazelcastClient;
import com.hazelcast.client.config.ClientConfig;
import com.hazelcast.config.Config;
import com.hazelcast.config.IndexConfig;
import com.hazelcast.config.IndexType;
import com.hazelcast.config.MapConfig;
import com.hazelcast.config.NearCacheConfig;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.map.IMap;
import io.imapwal.hazelcast.settle.OpeningFixture;
import org.junit.jupiter.api.Test;

import java.util.List;

import static io.imapwal.hazelcast.member.Members.eventually;
import static io.imapwal.hazelcast.member.TestCluster.fill;
import static io.imapwal.hazelcast.member.TestCluster.owned;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;

/** Maps that are destroyed, or dropped from the memory of one member. */
class DropTest extends OpeningFixture {
    @Test
    void destroyedMapIsGone() throws Exception {
        HazelcastInstance a = start(0);
        for (int i = 0; i < 50; i++) {
            IMap<Integer, Integer> map = a.getMap("temporary" + i);
            map.set(1, 1);
            map.destroy();
        }
        // No event says that background work will not create a container again.
        Thread.sleep(3000);
        List<String> left = context(a).getMapContainers().values().stream().map(c -> c.getName())
                .toList();
        assertEquals(List.of(), left);
    }

    @Test
    void destroyAfterDropIsLogged() throws Exception {
        HazelcastInstance a = start(0);
        HazelcastInstance b = start(1);
        IMap<Integer, Integer> map = a.getMap("orders");
        fill(map, 100);
        // As LeftOut and a merge into another cluster do.
        WalPlugin.of(a).localMaps().drop(List.of("orders"));
        map.destroy();
        assertEquals(0, b.getMap("orders").size());
    }

    /** The oldest member has dropped the map, and has not opened it since. */
    @Test
    void clientDestroyAfterDropIsLogged() throws Exception {
        HazelcastInstance a = start(0);
        HazelcastInstance b = start(1);
        ClientConfig config = clientOf(1);
        config.getNetworkConfig().setSmartRouting(false);
        HazelcastInstance client = HazelcastClient.newHazelcastClient(config);
        try {
            IMap<Integer, Integer> map = client.getMap("orders");
            fill(map, 100);
            WalPlugin.of(a).localMaps().drop(List.of("orders"));
            map.destroy();
            assertEquals(0, client.getMap("orders").size());
        } finally {
            client.shutdown();
        }
    }

    /** The oldest member serves the client on a thread that must not wait for other members. */
    @Test
    void clientDestroyThroughOldestMemberIsLogged() throws Exception {
        HazelcastInstance a = start(0);
        HazelcastInstance b = start(1);
        ClientConfig config = clientOf(0);
        config.getNetworkConfig().setSmartRouting(false);
        HazelcastInstance client = HazelcastClient.newHazelcastClient(config);
        try {
            for (int round = 0; round < 10; round++) {
                IMap<Integer, Integer> map = client.getMap("orders" + round);
                fill(map, 100);
                map.destroy();
                assertEquals(0, client.getMap("orders" + round).size(), "round " + round
                        + ": destroyed, without an error");
            }
        } finally {
            client.shutdown();
        }
    }

    /** A client destroys the map. The oldest member has not used it since the last destroy. */
    @Test
    void clientDestroysMapUnusedByOldestMember() throws Exception {
        HazelcastInstance a = start(0);
        HazelcastInstance b = start(1);
        ClientConfig config = clientOf(1);
        HazelcastInstance one = HazelcastClient.newHazelcastClient(config);
        HazelcastInstance two = HazelcastClient.newHazelcastClient(config);
        try {
            IMap<Integer, Integer> map = one.getMap("orders");
            IMap<Integer, Integer> again = two.getMap("orders");
            int key = owned(b, 1).get(0);
            map.set(key, 1);
            map.destroy();
            assertNull(again.get(key));
            again.set(key, 2);
            again.destroy();
            assertEquals(0, two.getMap("orders").size());
        } finally {
            one.shutdown();
            two.shutdown();
        }
    }

    /** A client that connects to the member of this number first. */
    private ClientConfig clientOf(int number) {
        ClientConfig config = new ClientConfig().setClusterName("opening");
        config.getNetworkConfig().addAddress("127.0.0.1:" + (port + number));
        return config;
    }

    private HazelcastInstance startNear(int number, boolean near) throws Exception {
        FakeAgent agent = cluster.startAgent();
        Config config = cluster.config(number, agent);
        config.setProperty("hazelcast.map.invalidation.batch.enabled", "false");
        // Otherwise a background task would repair near caches without an invalidation.
        config.setProperty("hazelcast.invalidation.reconciliation.interval.seconds", "0");
        MapConfig map = Members.map("orders", agent.endpoint());
        if (near) {
            map.setNearCacheConfig(new NearCacheConfig().setInvalidateOnChange(true));
        }
        config.addMapConfig(map);
        return cluster.start(config);
    }

    /** After a drop (LeftOut, a merge) the owner still knows which members have near caches. */
    @Test
    void nearCachesAreInvalidatedAfterDrop() throws Exception {
        HazelcastInstance a = startNear(0, false);
        HazelcastInstance b = startNear(1, true);
        IMap<Integer, Integer> at = a.getMap("orders");
        IMap<Integer, Integer> near = b.getMap("orders");
        int key = owned(a, 1).get(0);
        at.set(key, 1);
        assertEquals(1, near.get(key));
        assertEquals(1, near.get(key));
        at.set(key, 2);
        eventually(() -> near.get(key) == 2);
        WalPlugin.of(a).localMaps().drop(List.of("orders"));
        at.set(key, 3);
        assertEquals(3, at.get(key));
        eventually(() -> near.get(key) == 3);
    }

    @Test
    void indexesAndInterceptorsStayAfterDrop() throws Exception {
        HazelcastInstance a = start(0);
        IMap<Integer, Integer> at = a.getMap("orders");
        at.addInterceptor(new Refuses());
        at.addIndex(new IndexConfig(IndexType.SORTED, "this"));
        assertThrows(RuntimeException.class, () -> at.put(1, -1));
        WalPlugin.of(a).localMaps().drop(List.of("orders"));
        at.put(2, 1);
        assertThrows(RuntimeException.class, () -> at.put(1, -1));
    }

    private static final class Refuses extends PutInterceptor {
        private static final long serialVersionUID = 1L;

        @Override
        public Object interceptPut(Object former, Object value) {
            if ((Integer) value < 0) {
                throw new IllegalArgumentException("negative");
            }
            return value;
        }
    }
}
