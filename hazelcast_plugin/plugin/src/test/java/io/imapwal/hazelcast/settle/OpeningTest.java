package io.imapwal.hazelcast.settle;

import com.hazelcast.cluster.ClusterState;
import com.hazelcast.config.Config;
import com.hazelcast.config.EntryListenerConfig;
import com.hazelcast.config.IndexConfig;
import com.hazelcast.config.IndexType;
import com.hazelcast.config.MapConfig;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.core.HazelcastInstanceAware;
import com.hazelcast.map.EntryProcessor;
import com.hazelcast.map.IMap;
import com.hazelcast.map.listener.EntryAddedListener;
import com.hazelcast.query.Predicates;
import com.hazelcast.spi.impl.PartitionSpecificRunnable;
import com.hazelcast.spi.impl.operationservice.Operation;
import com.hazelcast.spi.impl.operationservice.impl.OperationServiceImpl;
import com.hazelcast.spi.properties.ClusterProperty;
import io.imapwal.hazelcast.LogUnavailable;
import io.imapwal.hazelcast.append.AgentLink;
import io.imapwal.hazelcast.engine.PartitionThreads;
import io.imapwal.hazelcast.member.FakeAgent;
import io.imapwal.hazelcast.member.Members;
import io.imapwal.hazelcast.member.WalPlugin;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

import java.io.Serializable;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

import static io.imapwal.hazelcast.member.Members.eventually;
import static io.imapwal.hazelcast.member.TestCluster.fill;
import static io.imapwal.hazelcast.member.TestCluster.owned;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTimeoutPreemptively;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assertions.fail;

/** Maps that are opened in unusual states of their cluster. */
class OpeningTest extends OpeningFixture {
    /** No agent answers. */
    @Test
    void getMapOnLiteMemberEnds() throws Exception {
        start(0);
        lite = true;
        HazelcastInstance b = start(1);
        agents.get(0).stop();
        agents.get(1).stop();
        assertTimeoutPreemptively(Duration.ofSeconds(60), () -> {
            try {
                b.getMap("orders").get(1);
            } catch (RuntimeException e) {
                // It may fail, but must end.
            }
        });
    }

    /** Member b has opened the map and has no entries. A view leaves b out: it must not answer. */
    @Test
    void leftOutMemberWithoutContainerRefuses() throws Exception {
        HazelcastInstance a = start(0);
        HazelcastInstance b = start(1);
        cluster.awaitSafe();
        // Member a opens it and asks b, which opens it too and settles its empty partitions.
        context(a).getMapContainer("orders");
        eventually(() -> WalPlugin.of(b).maps().state("orders").isLoaded());
        assertNull(context(b).getExistingMapContainer("orders"), "precondition");
        AgentLink link = WalPlugin.of(b).maps().links().of(WalPlugin.of(b).maps().state("orders")
                .settings());
        int key = owned(b, 1).get(0);
        // As LeftOut.look does when the log's newest view leaves b out.
        link.leaveOut(WalPlugin.of(b).member().cluster().member(), "not in the view");
        WalPlugin.of(b).localMaps().drop(List.of("orders"));
        assertTrue(WalPlugin.of(b).leftOut().isOut());
        Object read;
        try {
            read = b.getMap("orders").get(key);
        } catch (LogUnavailable e) {
            return;
        }
        fail("a member that is left out answered " + read + ", size " + b.getMap("orders").size());
    }

    /** As they are while destroys wait for the end of all migrations, which may wait for a map. */
    @Test
    void mapIsOpenedThoughGenericThreadsAreOccupied() throws Exception {
        HazelcastInstance a = start(0);
        HazelcastInstance b = start(1);
        cluster.awaitSafe();
        OperationServiceImpl operations = WalPlugin.of(a).member().nodeEngine()
                .getOperationService();
        int threads = WalPlugin.of(a).member().nodeEngine().getProperties()
                .getInteger(ClusterProperty.GENERIC_OPERATION_THREAD_COUNT);
        CountDownLatch occupied = new CountDownLatch(threads);
        CountDownLatch end = new CountDownLatch(1);
        for (int i = 0; i < threads; i++) {
            operations.getOperationExecutor().execute(new Occupation(occupied, end));
        }
        occupied.await();
        try {
            assertTimeoutPreemptively(Duration.ofSeconds(20), () -> b.getMap("orders").set(1, 2));
        } finally {
            end.countDown();
        }
        assertEquals(2, a.getMap("orders").get(1));
    }

    /** Occupies a generic thread. */
    private record Occupation(CountDownLatch occupied, CountDownLatch end)
            implements PartitionSpecificRunnable {
        @Override
        public int getPartitionId() {
            return Operation.GENERIC_PARTITION_ID;
        }

        @Override
        public void run() {
            occupied.countDown();
            try {
                end.await();
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
        }
    }

    /** The agent reads its storage for a hello, for longer than a connection may take. */
    @Test
    void slowHelloIsAwaited() throws Exception {
        HazelcastInstance a = start(0);
        agents.get(0).faults.helloDelayMs = 1500;
        a.getMap("orders").set(1, 1);
        assertEquals(1, a.getMap("orders").get(1));
    }

    @Test
    void getMapAwaitsOtherMembers() throws Exception {
        HazelcastInstance a = start(0);
        HazelcastInstance b = start(1);
        cluster.awaitSafe();
        for (int key = 0; key < 50; key++) {
            cluster.logOnly(a, key, key, 0);
        }
        agents.get(1).faults.readDelayMs = 200;
        a.getMap("orders");
        assertTrue(WalPlugin.of(b).maps().state("orders").isLoaded());
    }

    /** Holds the thread of its partition until the test lets it continue. */
    private static final class Hold implements EntryProcessor<Integer, Integer, Integer>,
            Serializable {
        private static final Map<String, CountDownLatch> STARTED = new ConcurrentHashMap<>();
        private static final Map<String, CountDownLatch> RELEASED = new ConcurrentHashMap<>();
        private final String name;

        Hold(String name) {
            this.name = name;
            STARTED.put(name, new CountDownLatch(1));
            RELEASED.put(name, new CountDownLatch(1));
        }

        void awaitStarted() throws InterruptedException {
            assertTrue(STARTED.get(name).await(60, TimeUnit.SECONDS), name + " has not started");
        }

        void release() {
            RELEASED.get(name).countDown();
        }

        @Override
        public Integer process(Map.Entry<Integer, Integer> entry) {
            STARTED.get(name).countDown();
            try {
                RELEASED.get(name).await(60, TimeUnit.SECONDS);
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
            return 1;
        }
    }

    /** An index is added while partitions wait. Queries must not use it before they are settled. */
    @Test
    void indexQueryWaitsForUnsettledPartitions() throws Exception {
        FakeAgent agent = cluster.startAgent();
        Config config = cluster.config(0, agent);
        config.setProperty("hazelcast.operation.thread.count", "1");
        config.setProperty("hazelcast.partition.count", "31");
        config.setProperty("imap-wal.transient-maps", "plain");
        HazelcastInstance a = cluster.start(config);
        IMap<Integer, Integer> map = a.getMap("orders");
        fill(map, 200);
        IMap<Integer, Integer> plain = a.getMap("plain");
        plain.set(1, 1);
        map.addIndex(new IndexConfig(IndexType.SORTED, "this"));
        assertEquals(200, map.values(Predicates.greaterEqual("this", 0)).size());
        // As if the member got partition 0 after a loss: the log has one entry more than memory.
        int loads = agent.loads;
        agent.faults.holdsAfterLoads = loads;
        int key = IntStream.range(1000, 2000).filter(each ->
                a.getPartitionService().getPartition(each).getPartitionId() == 0).findFirst()
                .orElseThrow();
        cluster.logOnly(a, key, key, 0);
        MapState state = WalPlugin.of(a).maps().state("orders");
        new PartitionThreads(WalPlugin.of(a).member().nodeEngine())
                .run(List.of(0), id -> state.doubt(id, null), 5);
        WalPlugin.of(a).maps().wake();
        eventually(() -> agent.loads > loads);
        assertFalse(state.wholeness().whole(0));
        Hold first = new Hold("first");
        Hold second = new Hold("second");
        var one = plain.submitToKey(1, first);
        first.awaitStarted();
        var executor = WalPlugin.of(a).member().nodeEngine().getOperationService()
                .getOperationExecutor();
        int queued = executor.getQueueSize();
        Thread adds = new Thread(() -> map.addIndex(new IndexConfig(IndexType.SORTED, "this")));
        adds.start();
        eventually(() -> executor.getQueueSize() > queued);
        // The one partition thread runs the first step of addIndex between the two.
        var two = plain.submitToKey(1, second);
        first.release();
        one.toCompletableFuture().join();
        second.awaitStarted();
        int sizeSeen = -1;
        try {
            sizeSeen = CompletableFuture.supplyAsync(() ->
                    map.values(Predicates.greaterEqual("this", 0)).size()).get(2, TimeUnit.SECONDS);
        } catch (TimeoutException e) {
            // It waits, as it should. That a query waits can only be seen after some time.
        } finally {
            second.release();
        }
        two.toCompletableFuture().join();
        agent.faults.heldLoads.countDown();
        adds.join();
        assertTrue(sizeSeen == -1 || sizeSeen == 201, "a query found " + sizeSeen
                + " of 201 entries");
    }

    /** A listener is in the configuration, and getMap fails a few times without an agent. */
    @Test
    void configuredListenerGetsEachEventOnce() throws Exception {
        FakeAgent agent = cluster.startAgent();
        Config config = Members.config("opening", port, agent.endpoint());
        MapConfig orders = Members.map("orders", agent.endpoint());
        orders.getMapStoreConfig().setProperty("connect-timeout-ms", "1000");
        List<Integer> heard = Collections.synchronizedList(new ArrayList<>());
        EntryAddedListener<Integer, Integer> listener = event -> heard.add(event.getValue());
        orders.addEntryListenerConfig(new EntryListenerConfig(listener, false, true));
        config.addMapConfig(orders);
        HazelcastInstance a = cluster.start(config);
        agent.stop();
        for (int i = 0; i < 3; i++) {
            try {
                a.getMap("orders");
            } catch (RuntimeException e) {
                // No agent answers.
            }
        }
        agent.start();
        eventually(() -> a.getMap("orders") != null);
        // Events of one key arrive in order, so a second event of the first value would arrive
        // before the event of the last one.
        a.getMap("orders").set(1, 1);
        a.getMap("orders").delete(1);
        a.getMap("orders").set(1, 2);
        eventually(() -> heard.contains(2));
        assertEquals(List.of(1, 2), heard);
    }

    private static final class Opens implements EntryProcessor<Integer, Integer, String>,
            HazelcastInstanceAware, Serializable {
        private transient HazelcastInstance instance;

        @Override
        public String process(Map.Entry<Integer, Integer> entry) {
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

    /** Hazelcast's own getMap fails at once on such a thread. */
    @Test
    void getMapOnPartitionThreadEndsInTime() throws Exception {
        HazelcastInstance a = start(0);
        IMap<Integer, Integer> map = a.getMap("orders");
        fill(map, 300);
        a.getLifecycleService().terminate();
        FakeAgent agent = cluster.startAgent();
        Config config = Members.config("opening2", port + 1, agent.endpoint());
        config.setProperty("imap-wal.transient-maps", "plain");
        HazelcastInstance b = cluster.start(config);
        IMap<Integer, Integer> plain = b.getMap("plain");
        long from = System.nanoTime();
        plain.submitToKey(1, new Opens()).toCompletableFuture().get();
        long ms = (System.nanoTime() - from) / 1_000_000;
        assertTrue(ms < 10_000, "the thread of a partition was held for " + ms + " ms");
    }

    /** As a map of a program is, in each round of restores. */
    @Test
    void refusedMapDelaysNoOtherMap() throws Exception {
        List<String> names = IntStream.range(0, 20).mapToObj(i -> "map" + i).toList();
        List<String> refused = names.subList(0, 19);
        FakeAgent agent = cluster.startAgent();
        Config config = cluster.config(0, agent);
        names.forEach(name -> config.addMapConfig(Members.map(name, agent.endpoint())));
        HazelcastInstance a = cluster.start(config);
        names.forEach(name -> a.getMap(name).set(1, 1));
        a.getLifecycleService().terminate();
        HazelcastInstance b = cluster.start(config);
        agent.faults.refusedMaps = Set.copyOf(names);
        names.forEach(context(b)::getMapContainer);
        MemberMaps maps = WalPlugin.of(b).maps();
        eventually(() -> names.stream().allMatch(name -> reasons(maps, name).contains(name)));
        agent.faults.refusedMaps = Set.copyOf(refused);
        eventually(() -> maps.state("map19").isLoaded());
        assertEquals(1, b.getMap("map19").get(1));
        refused.forEach(name -> assertEquals("bad-request: map " + name + " is a program's",
                reasons(maps, name)));
    }

    /** Why partitions of the map wait; all for one reason. */
    private static String reasons(MemberMaps maps, String name) {
        return maps.state(name).wholeness().unsettled().values().stream()
                .map(each -> String.valueOf(each.reason)).distinct()
                .collect(Collectors.joining());
    }

    /** Partitions that are settled without an operation must release their indexes. */
    @Test
    void indexesOfEmptyMapsBecomeUsable() throws Exception {
        FakeAgent agent = cluster.startAgent();
        Config config = Members.config("opening", port, agent.endpoint());
        config.setProperty("hazelcast.partition.count", "271");
        config.setProperty("hazelcast.operation.thread.count", "16");
        MapConfig indexed = Members.map("indexed*", agent.endpoint());
        indexed.addIndexConfig(new IndexConfig(IndexType.SORTED, "this"));
        config.addMapConfig(indexed);
        HazelcastInstance a = cluster.start(config);
        for (int i = 0; i < 150; i++) {
            String name = "indexed" + i;
            if (i % 2 == 0) {
                a.getMap(name);
            } else {
                // As when another member asks for its status, which opens the map.
                context(a).getMapContainer(name);
                a.getMap(name);
            }
            new PartitionThreads(WalPlugin.of(a).member().nodeEngine())
                    .run(IntStream.range(0, 271).boxed().toList(), id -> { }, 10);
        }
        for (int i = 0; i < 150; i++) {
            String name = "indexed" + i;
            eventually(() -> Arrays.stream(context(a).getMapContainer(name)
                    .getGlobalIndexRegistry().getIndexes())
                    .allMatch(index -> index.allPartitionsIndexed(271)));
        }
    }

    @Test
    void getMapInFrozenClusterEnds() throws Exception {
        assertGetMapEnds(ClusterState.FROZEN);
    }

    @Tag("thorough")
    @ParameterizedTest
    @EnumSource(value = ClusterState.class, names = {"PASSIVE", "NO_MIGRATION"})
    void getMapWithoutMigrationsEnds(ClusterState state) throws Exception {
        assertGetMapEnds(state);
    }

    private void assertGetMapEnds(ClusterState state) throws Exception {
        HazelcastInstance a = start(0);
        a.getCluster().changeClusterState(state);
        assertTimeoutPreemptively(Duration.ofSeconds(40), () -> {
            try {
                a.getMap("orders").put(1, 1);
            } catch (RuntimeException e) {
                // It may fail, but must end.
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
        var got = CompletableFuture.supplyAsync(() -> {
            try {
                return "got " + b.getMap("orders").getName();
            } catch (RuntimeException e) {
                return String.valueOf(e);
            }
        });
        eventually(() -> agents.get(1).loads > 0);
        b.getLifecycleService().terminate();
        got.get(60, TimeUnit.SECONDS);
    }
}
