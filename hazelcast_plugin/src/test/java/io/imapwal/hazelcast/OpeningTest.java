package io.imapwal.hazelcast;

import com.hazelcast.client.HazelcastClient;
import com.hazelcast.client.config.ClientConfig;
import com.hazelcast.config.Config;
import com.hazelcast.config.MapConfig;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.map.IMap;
import com.hazelcast.map.impl.MapService;
import com.hazelcast.map.impl.MapServiceContext;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.IntStream;

import static io.imapwal.hazelcast.Members.eventually;
import static io.imapwal.hazelcast.TestCluster.fill;
import static io.imapwal.hazelcast.TestCluster.owned;
import static org.junit.jupiter.api.Assertions.*;

/** Maps that are opened, dropped and destroyed in unusual states of their cluster. */
class OpeningTest {
    private final TestCluster cluster = new TestCluster("attack");
    private final List<FakeAgent> agents = cluster.agents;
    private final int port = cluster.port;
    private boolean lite;

    private HazelcastInstance start(int number) throws Exception {
        FakeAgent agent = cluster.startAgent();
        Config config = cluster.config(number, agent);
        config.setLiteMember(lite);
        MapConfig map = Members.map("orders", agent.endpoint());
        map.getMapStoreConfig().setProperty("restore-timeout-ms", "3000");
        map.getMapStoreConfig().setProperty("connect-timeout-ms", "1000");
        config.addMapConfig(map);
        return cluster.start(config);
    }

    private static MapServiceContext context(HazelcastInstance member) {
        MapService service = WalPlugin.of(member).nodeEngine().getService(MapService.SERVICE_NAME);
        return service.getMapServiceContext();
    }

    @AfterEach
    void stop() throws Exception {
        cluster.stop();
    }

    /** A lite member's getMap, while the log is away. */
    @Test
    void liteMemberGetMapEnds() throws Exception {
        start(0);
        lite = true;
        HazelcastInstance b = start(1);
        agents.get(0).stop();
        agents.get(1).stop();
        assertTimeoutPreemptively(Duration.ofSeconds(60), () -> {
            try {
                b.getMap("orders").get(1);
            } catch (RuntimeException e) {
            }
        });
    }

    @Test
    void destroyedMapIsGone() throws Exception {
        HazelcastInstance a = start(0);
        for (int i = 0; i < 50; i++) {
            IMap<Integer, Integer> map = a.getMap("temporary" + i);
            map.set(1, 1);
            map.destroy();
        }
        Thread.sleep(3000);
        List<String> left = context(a).getMapContainers().values().stream().map(c -> c.getName())
                .toList();
        assertEquals(List.of(), left);
    }

    /** b has the map open without entries. A view leaves b out, so it must not answer. */
    @Test
    void leftOutMemberWithoutContainerRefuses() throws Exception {
        HazelcastInstance a = start(0);
        HazelcastInstance b = start(1);
        eventually(() -> a.getPartitionService().isClusterSafe());
        // a opens it: b is asked, opens it too, and settles its (empty) partitions.
        context(a).getMapContainer("orders");
        eventually(() -> WalPlugin.of(b).state("orders").isLoaded());
        assertNull(context(b).getExistingMapContainer("orders"), "precondition");
        AgentLink link = WalPlugin.of(b).link(WalPlugin.of(b).state("orders").settings());
        int key = owned(b, 1).get(0);
        // What LeftOut.look does, once the log's newest view leaves b out.
        link.leaveOut(WalPlugin.of(b).guard().member(), "not in the view");
        WalPlugin.of(b).states().forEach(state -> WalPlugin.of(b).localMaps().drop(state.map()));
        assertTrue(WalPlugin.of(b).leftOut().isOut());
        Object read;
        try {
            read = b.getMap("orders").get(key);
        } catch (LogUnavailable e) {
            return;
        }
        fail("a member that is left out answered " + read + ", size " + b.getMap("orders").size());
    }

    @Test
    void destroyAfterADropIsLogged() throws Exception {
        HazelcastInstance a = start(0);
        HazelcastInstance b = start(1);
        IMap<Integer, Integer> map = a.getMap("orders");
        fill(map, 100);
        // As LeftOut and each merge into another cluster do.
        WalPlugin.of(a).localMaps().drop("orders");
        map.destroy();
        assertEquals(0, b.getMap("orders").size());
    }

    private static final class Sleep implements com.hazelcast.map.EntryProcessor<Integer, Integer,
            Integer>, java.io.Serializable {
        private final int ms;
        private Sleep(int ms) {
            this.ms = ms;
        }
        @Override
        public Integer process(java.util.Map.Entry<Integer, Integer> entry) {
            try {
                Thread.sleep(ms);
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
            return 1;
        }
    }

    /** An index is added while partitions wait. Queries must not use it before they are settled. */
    @Test
    void indexQueryWhilePartitionsWait() throws Exception {
        FakeAgent agent = cluster.startAgent();
        Config config = cluster.config(0, agent);
        config.setProperty("hazelcast.operation.thread.count", "1");
        config.setProperty("hazelcast.partition.count", "31");
        config.addMapConfig(new MapConfig("plain"));
        HazelcastInstance a = cluster.start(config);
        IMap<Integer, Integer> map = a.getMap("orders");
        fill(map, 200);
        IMap<Integer, Integer> plain = a.getMap("plain");
        plain.set(1, 1);
        map.addIndex(new com.hazelcast.config.IndexConfig(com.hazelcast.config.IndexType.SORTED,
                "this"));
        assertEquals(200, map.values(com.hazelcast.query.Predicates.greaterEqual("this", 0))
                .size());
        // Partition 0 was gained by loss: the log has one entry more than memory, and is slow.
        agent.faults.readDelayMs = 8000;
        int key = IntStream.range(1000, 2000).filter(each ->
                a.getPartitionService().getPartition(each).getPartitionId() == 0).findFirst()
                .orElseThrow();
        cluster.logOnly(a, key, key, 0);
        MapState state = WalPlugin.of(a).state("orders");
        new PartitionThreads(WalPlugin.of(a).nodeEngine())
                .run(List.of(0), id -> state.doubt(id, null), 5);
        WalPlugin.of(a).settlements().wake();
        Thread.sleep(500);
        assertFalse(state.wholeness().whole(0));
        var one = plain.submitToKey(1, new Sleep(1000));
        Thread.sleep(200);
        Thread adds = new Thread(() -> map.addIndex(new com.hazelcast.config.IndexConfig(
                com.hazelcast.config.IndexType.SORTED, "this")));
        adds.start();
        Thread.sleep(300);
        var two = plain.submitToKey(1, new Sleep(4000));
        one.toCompletableFuture().join();
        long from = System.nanoTime();
        int sizeSeen = -1;
        while (System.nanoTime() - from < 3_000_000_000L && sizeSeen < 0) {
            Thread.sleep(100);
            for (var index : context(a).getMapContainer("orders").getGlobalIndexRegistry()
                    .getIndexes()) {
            }
            var query = java.util.concurrent.CompletableFuture.supplyAsync(() ->
                    map.values(com.hazelcast.query.Predicates.greaterEqual("this", 0)).size());
            try {
                sizeSeen = query.get(1500, java.util.concurrent.TimeUnit.MILLISECONDS);
            } catch (java.util.concurrent.TimeoutException e) {
                // it waits, as it should
            }
        }
        two.toCompletableFuture().join();
        adds.join();
        assertTrue(sizeSeen == -1 || sizeSeen == 201, "a query found " + sizeSeen
                + " of 201 entries");
    }

    /** The oldest member has not needed the map since; a client destroys it. */
    @Test
    void clientDestroysMapThatTheOldestMemberHasNotInMemory() throws Exception {
        HazelcastInstance a = start(0);
        HazelcastInstance b = start(1);
        ClientConfig config = new ClientConfig().setClusterName("attack");
        config.getNetworkConfig().addAddress("127.0.0.1:" + (port + 1));
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
            byte[] bytes = WalPlugin.of(b).nodeEngine().toData(key).toByteArray();
            int size = two.getMap("orders").size();
            int partition = b.getPartitionService().getPartition(key).getPartitionId();
            Thread.sleep(3000);
            assertEquals(0, size);
        } finally {
            one.shutdown();
            two.shutdown();
        }
    }

    /** A listener is in the configuration, and getMap fails a few times while the log is away. */
    @Test
    void configuredListenerHearsOnce() throws Exception {
        FakeAgent agent = cluster.startAgent();
        Config config = Members.config("attack", port, agent.endpoint());
        MapConfig orders = Members.map("orders", agent.endpoint());
        orders.getMapStoreConfig().setProperty("connect-timeout-ms", "1000");
        var heard = new java.util.concurrent.atomic.AtomicInteger();
        com.hazelcast.map.listener.EntryAddedListener<Integer, Integer> listener = event ->
                heard.incrementAndGet();
        orders.addEntryListenerConfig(
                new com.hazelcast.config.EntryListenerConfig(listener, false, true));
        config.addMapConfig(orders);
        HazelcastInstance a = cluster.start(config);
        agent.stop();
        int failed = 0;
        for (int i = 0; i < 3; i++) {
            try {
                a.getMap("orders");
            } catch (RuntimeException e) {
                failed++;
            }
        }
        agent.start();
        eventually(() -> a.getMap("orders") != null);
        a.getMap("orders").set(1, 1);
        Thread.sleep(1000);
        assertEquals(1, heard.get());
    }

    private static final class Opens implements com.hazelcast.map.EntryProcessor<Integer, Integer,
            String>, com.hazelcast.core.HazelcastInstanceAware, java.io.Serializable {
        private transient HazelcastInstance instance;
        @Override
        public String process(java.util.Map.Entry<Integer, Integer> entry) {
            try {
                return "size " + instance.getMap("orders").getName();
            } catch (RuntimeException e) {
                return e.getClass().getSimpleName();
            }
        }
        @Override
        public void setHazelcastInstance(HazelcastInstance hazelcastInstance) {
            instance = hazelcastInstance;
        }
    }

    /** getMap on the thread of a partition. Hazelcast's own fails at once. */
    @Test
    void getMapOnAPartitionThread() throws Exception {
        HazelcastInstance a = start(0);
        IMap<Integer, Integer> map = a.getMap("orders");
        fill(map, 300);
        a.getLifecycleService().terminate();
        FakeAgent agent = cluster.startAgent();
        Config config = Members.config("attack2", port + 1, agent.endpoint());
        config.addMapConfig(new MapConfig("plain"));
        HazelcastInstance b = cluster.start(config);
        IMap<Integer, Integer> plain = b.getMap("plain");
        long from = System.nanoTime();
        String answer = plain.submitToKey(1, new Opens()).toCompletableFuture().get();
        long ms = (System.nanoTime() - from) / 1_000_000;
        assertTrue(ms < 10_000, "the thread of a partition was held for " + ms + " ms");
    }

    /** Partitions that are settled without an operation must release their indexes. */
    @Test
    void indexesOfEmptyMapsAreUsedInTheEnd() throws Exception {
        FakeAgent agent = cluster.startAgent();
        Config config = Members.config("attack", port, agent.endpoint());
        config.setProperty("hazelcast.partition.count", "271");
        config.setProperty("hazelcast.operation.thread.count", "16");
        MapConfig indexed = Members.map("indexed*", agent.endpoint());
        indexed.addIndexConfig(new com.hazelcast.config.IndexConfig(
                com.hazelcast.config.IndexType.SORTED, "this"));
        config.addMapConfig(indexed);
        HazelcastInstance a = cluster.start(config);
        List<String> bad = new ArrayList<>();
        for (int i = 0; i < 150; i++) {
            String name = "indexed" + i;
            if (i % 2 == 0) {
                a.getMap(name);
            } else {
                // As when another member asks for its status: the map is opened in between.
                context(a).getMapContainer(name);
                a.getMap(name);
            }
            new PartitionThreads(WalPlugin.of(a).nodeEngine())
                    .run(IntStream.range(0, 271).boxed().toList(), id -> { }, 10);
            for (var index : context(a).getMapContainer(name).getGlobalIndexRegistry()
                    .getIndexes()) {
                long is = IntStream.range(0, 271).filter(index::hasPartitionIndexed).count();
                if (is != 271) {
                    bad.add(name + ":" + is);
                }
            }
        }
        Thread.sleep(1000);
        List<String> still = new ArrayList<>();
        for (String each : bad) {
            String name = each.substring(0, each.indexOf(':'));
            for (var index : context(a).getMapContainer(name).getGlobalIndexRegistry()
                    .getIndexes()) {
                if (!index.allPartitionsIndexed(271)) {
                    still.add(each + " loaded " + WalPlugin.of(a).state(name).isLoaded());
                }
            }
        }
        assertEquals(List.of(), still);
    }

    private HazelcastInstance startNear(int number, boolean near) throws Exception {
        FakeAgent agent = cluster.startAgent();
        Config config = cluster.config(number, agent);
        config.setProperty("hazelcast.map.invalidation.batch.enabled", "false");
        MapConfig map = Members.map("orders", agent.endpoint());
        if (near) {
            map.setNearCacheConfig(new com.hazelcast.config.NearCacheConfig()
                    .setInvalidateOnChange(true));
        }
        config.addMapConfig(map);
        return cluster.start(config);
    }

    /** A drop (LeftOut, a merge) must not make the owner forget who has near caches. */
    @Test
    void nearCachesAreInvalidatedAfterADrop() throws Exception {
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
        WalPlugin.of(a).localMaps().drop("orders");
        at.set(key, 3);
        assertEquals(3, at.get(key));
        Thread.sleep(5000);
        assertEquals(3, near.get(key));
    }

    /** The same for what else Hazelcast keeps with a map. */
    @Test
    void indexesAndInterceptorsStayAfterADrop() throws Exception {
        HazelcastInstance a = start(0);
        IMap<Integer, Integer> at = a.getMap("orders");
        at.addInterceptor(new Refuses());
        at.addIndex(new com.hazelcast.config.IndexConfig(com.hazelcast.config.IndexType.SORTED,
                "this"));
        assertThrows(RuntimeException.class, () -> at.put(1, -1));
        WalPlugin.of(a).localMaps().drop("orders");
        at.put(2, 1);
        assertThrows(RuntimeException.class, () -> at.put(1, -1));
    }

    private static final class Refuses implements com.hazelcast.map.MapInterceptor {
        @Override
        public Object interceptGet(Object value) {
            return value;
        }
        @Override
        public void afterGet(Object value) {
        }
        @Override
        public Object interceptPut(Object old, Object value) {
            if ((Integer) value < 0) {
                throw new IllegalArgumentException("negative");
            }
            return value;
        }
        @Override
        public void afterPut(Object value) {
        }
        @Override
        public Object interceptRemove(Object value) {
            return value;
        }
        @Override
        public void afterRemove(Object value) {
        }
    }

    @org.junit.jupiter.params.ParameterizedTest
    @org.junit.jupiter.params.provider.EnumSource(value = com.hazelcast.cluster.ClusterState.class,
        names = {"FROZEN", "PASSIVE", "NO_MIGRATION"})
    void frozenClusterGetMapEnds(com.hazelcast.cluster.ClusterState state) throws Exception {
        HazelcastInstance a = start(0);
        a.getCluster().changeClusterState(state);
        assertTimeoutPreemptively(Duration.ofSeconds(40), () -> {
            try {
                a.getMap("orders").put(1, 1);
            } catch (RuntimeException e) {
            }
        });
    }

    @Test
    void getMapEndsWithTheMember() throws Exception {
        HazelcastInstance a = start(0);
        IMap<Integer, Integer> map = a.getMap("orders");
        fill(map, 300);
        a.getLifecycleService().terminate();
        HazelcastInstance b = start(1);
        agents.get(1).faults.readDelayMs = 60_000;
        var got = java.util.concurrent.CompletableFuture.supplyAsync(() -> {
            try {
                return "got " + b.getMap("orders").getName();
            } catch (RuntimeException e) {
                return String.valueOf(e);
            }
        });
        Thread.sleep(1500);
        b.getLifecycleService().terminate();
    }

    /** A client destroys the map. The oldest member has dropped it, and has not opened it since. */
    @Test
    void clientDestroyAfterADropIsLogged() throws Exception {
        HazelcastInstance a = start(0);
        HazelcastInstance b = start(1);
        ClientConfig config = new ClientConfig().setClusterName("attack");
        config.getNetworkConfig().setSmartRouting(false).addAddress("127.0.0.1:" + (port + 1));
        HazelcastInstance client = HazelcastClient.newHazelcastClient(config);
        try {
            IMap<Integer, Integer> map = client.getMap("orders");
            fill(map, 100);
            WalPlugin.of(a).localMaps().drop("orders");
            map.destroy();
            assertEquals(0, client.getMap("orders").size());
        } finally {
            client.shutdown();
        }
    }

    /** The oldest member serves the client on a thread that must not wait for other members. */
    @Test
    void clientDestroyThroughTheOldestMemberIsLogged() throws Exception {
        HazelcastInstance a = start(0);
        HazelcastInstance b = start(1);
        ClientConfig config = new ClientConfig().setClusterName("attack");
        config.getNetworkConfig().setSmartRouting(false).addAddress("127.0.0.1:" + port);
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

}
