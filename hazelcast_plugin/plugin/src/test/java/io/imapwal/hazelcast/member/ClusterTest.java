package io.imapwal.hazelcast.member;

import com.hazelcast.client.HazelcastClient;
import com.hazelcast.client.config.ClientConfig;
import com.hazelcast.config.Config;
import com.hazelcast.config.ConfigAccessor;
import com.hazelcast.config.MapConfig;
import com.hazelcast.config.ServiceConfig;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.internal.serialization.impl.HeapData;
import com.hazelcast.internal.services.ManagedService;
import com.hazelcast.map.IMap;
import com.hazelcast.spi.impl.NodeEngine;
import io.imapwal.hazelcast.LogUnavailable;
import io.imapwal.hazelcast.OutcomeUnknown;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.IntStream;

import static io.imapwal.hazelcast.member.Members.eventually;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

/** Several members, each with an agent of its own. All agents have the same log. */
class ClusterTest {
    private final TestCluster cluster = new TestCluster("cluster");
    private final List<FakeAgent> agents = cluster.agents;
    private final FakeLog log = cluster.log;
    private boolean offload;
    private int timeoutMs = 10_000;

    private HazelcastInstance start(int number) throws Exception {
        return start(number, null);
    }

    /** @param service a service of Hazelcast that the member has too; null: none */
    private HazelcastInstance start(int number, ManagedService service) throws Exception {
        FakeAgent agent = cluster.startAgent();
        Config config = cluster.config(number, agent);
        MapConfig map = Members.map("orders", agent.endpoint());
        map.getMapStoreConfig().setOffload(offload)
                .setProperty("timeout-ms", String.valueOf(timeoutMs));
        config.addMapConfig(map);
        if (service != null) {
            ConfigAccessor.getServicesConfig(config).addServiceConfig(new ServiceConfig()
                    .setEnabled(true).setName("of the test").setImplementation(service));
        }
        return cluster.start(config);
    }

    @AfterEach
    void stop() throws Exception {
        cluster.stop();
        agents.forEach(agent -> assertEquals(List.of(), agent.violations));
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void memoryEqualsLogWhileMembersJoinAndLeave(boolean offloaded) throws Exception {
        offload = offloaded;
        HazelcastInstance a = start(0);
        IMap<Integer, Long> map = a.getMap("orders");
        AtomicBoolean stop = new AtomicBoolean();
        Map<Integer, Long> acknowledged = new ConcurrentHashMap<>();
        List<Thread> writers = new ArrayList<>();
        List<Throwable> failures = Collections.synchronizedList(new ArrayList<>());
        for (int t = 0; t < 4; t++) {
            int first = t * 50;
            writers.add(new Thread(() -> {
                long value = 0;
                while (!stop.get()) {
                    value++;
                    int key = first + (int) (value % 50);
                    try {
                        map.set(key, value);
                        acknowledged.put(key, value);
                    } catch (RuntimeException e) {
                        failures.add(e);
                    }
                }
            }));
        }
        writers.forEach(Thread::start);
        // The writers run meanwhile. The pauses let migrations begin and end at random points.
        Thread.sleep(200);
        HazelcastInstance b = start(1);
        Thread.sleep(700);
        HazelcastInstance c = start(2);
        Thread.sleep(700);
        b.getLifecycleService().terminate();
        Thread.sleep(500);
        c.shutdown();
        Thread.sleep(300);
        stop.set(true);
        for (Thread writer : writers) {
            writer.join();
        }
        assertEquals(List.of(), failures);
        Map<Integer, Long> memory = new HashMap<>();
        map.forEach(memory::put);
        assertEquals(new HashMap<>(acknowledged), memory);
        // One version of a partition has changes of one session only, and memory has the newest
        // entries by order.
        Map<List<Object>, Long> sessions = new HashMap<>();
        for (FakeLog.Record record : log.appended()) {
            Long other = sessions.putIfAbsent(
                    List.of(record.partition(), record.order().get(0), record.order().get(1)),
                    record.order().get(2));
            assertTrue(other == null || other.equals(record.order().get(2)),
                    "two owners of one version: " + record);
        }
        for (Map.Entry<Integer, Long> entry : memory.entrySet()) {
            FakeLog.Record newest = log.newest("orders",
                    WalPlugin.of(a).member().nodeEngine().toData(entry.getKey()).toByteArray());
            assertEquals(entry.getValue(), WalPlugin.of(a).member().nodeEngine()
                    .toObject(new HeapData(newest.value())));
        }
    }

    /**
     * Hazelcast clears a member's list of members before it stops the threads that use it. A view
     * with that list would leave out all members that stay.
     */
    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void memberThatLeavesClaimsNoView(boolean graceful) throws Exception {
        List<HazelcastInstance> members = new ArrayList<>();
        List<String> refusals = new ArrayList<>();
        HazelcastInstance a = start(0);
        HazelcastInstance b = start(1, new AtEnd(() -> {
            WalPlugin plugin = WalPlugin.of(members.get(0));
            // Hazelcast does this next.
            plugin.member().nodeEngine().getNode().getClusterService().shutdown(!graceful);
            assertEquals(1, plugin.member().cluster().members().size(), "the list is cleared");
            plugin.maps().links().all().forEach(link -> refusals.add(assertThrows(
                    LogUnavailable.class, () -> link.view(Set.of(UUID.randomUUID())))
                    .getMessage()));
        }));
        members.add(b);
        IMap<Integer, Integer> map = a.getMap("orders");
        TestCluster.fill(map, 100);
        assertEquals(100, b.getMap("orders").size());
        if (graceful) {
            b.shutdown();
        } else {
            b.getLifecycleService().terminate();
        }
        assertEquals(1, refusals.size());
        assertTrue(refusals.get(0).contains("this member leaves its cluster"), refusals.get(0));
        map.set(1, 2);
        assertEquals(2, map.get(1));
    }

    /** A service of Hazelcast that does something when its member ends. */
    private record AtEnd(Runnable action) implements ManagedService {
        @Override
        public void init(NodeEngine nodeEngine, Properties properties) {
            // Nothing to do.
        }

        @Override
        public void reset() {
            // Nothing to do.
        }

        @Override
        public void shutdown(boolean terminate) {
            action.run();
        }
    }

    @Test
    void restartedClusterHasAllEntries() throws Exception {
        HazelcastInstance a = start(0);
        HazelcastInstance b = start(1);
        IMap<Integer, Integer> map = a.getMap("orders");
        for (int i = 0; i < 1000; i++) {
            map.set(i, i);
        }
        a.getLifecycleService().terminate();
        b.getLifecycleService().terminate();
        HazelcastInstance a2 = start(0);
        HazelcastInstance b2 = start(1);
        assertEquals(1000, b2.getMap("orders").size());
        assertEquals(1000, a2.getMap("orders").size());
        b2.getMap("orders").set(1, 2);
        a2.getLifecycleService().terminate();
        eventually(() -> b2.getMap("orders").size() == 1000);
        assertEquals(2, b2.getMap("orders").get(1));
    }

    /** For its statistics, Hazelcast creates the map on the client's member after the change. */
    @Test
    void forwardingMemberDoesNotRefuseCompletedChange() throws Exception {
        HazelcastInstance a = start(0);
        HazelcastInstance b = start(1);
        IMap<Integer, Integer> map = a.getMap("orders");
        for (int i = 0; i < 100; i++) {
            map.set(i, i);
        }
        int key = IntStream.range(0, 100)
                .filter(each -> a.getPartitionService().getPartition(each).getOwner().localMember())
                .findFirst().orElseThrow();
        ClientConfig config = new ClientConfig().setClusterName("cluster");
        config.getNetworkConfig().setSmartRouting(false)
                .addAddress("127.0.0.1:" + (cluster.port + 1));
        HazelcastInstance client = HazelcastClient.newHazelcastClient(config);
        try {
            IMap<Integer, Integer> remote = client.getMap("orders");
            assertEquals(key, remote.get(key));
            agents.get(1).stop();
            WalPlugin.of(b).localMaps().drop(List.of("orders"));
            assertEquals(key, remote.put(key, 1000));
            assertEquals(1000, remote.put(key, 1001));
            assertEquals(1001, remote.remove(key));
            assertEquals(null, remote.get(key));
        } finally {
            client.shutdown();
        }
    }

    @Test
    void restoreSurvivesDeathOfLoadingMember() throws Exception {
        HazelcastInstance filler = start(0);
        IMap<Integer, Integer> map = filler.getMap("orders");
        for (int i = 0; i < 2000; i++) {
            map.set(i, i);
        }
        filler.getLifecycleService().terminate();
        HazelcastInstance a = start(0);
        HazelcastInstance b = start(1);
        int loader = a.getPartitionService().getPartition("orders").getOwner()
                .equals(a.getCluster().getLocalMember()) ? 0 : 1;
        HazelcastInstance dies = loader == 0 ? a : b;
        HazelcastInstance lives = loader == 0 ? b : a;
        agents.get(1 + loader).faults.readDelayMs = 500;
        Thread touch = new Thread(() -> {
            try {
                lives.getMap("orders").size();
            } catch (RuntimeException e) {
                // The member that it waited for died.
            }
        });
        touch.start();
        eventually(() -> agents.get(1 + loader).loads > 0);
        dies.getLifecycleService().terminate();
        eventually(() -> lives.getMap("orders").size() == 2000);
        for (int i = 0; i < 2000; i += 100) {
            assertEquals(i, lives.<Integer, Integer>getMap("orders").get(i));
        }
        touch.join();
    }

    @Test
    void keyInDoubtIsSettledOnItsBackupToo() throws Exception {
        timeoutMs = 2000;
        HazelcastInstance a = start(0);
        HazelcastInstance b = start(1);
        IMap<Integer, Integer> map = a.getMap("orders");
        for (int i = 0; i < 40; i++) {
            map.set(i, i);
        }
        agents.forEach(agent -> agent.faults.onAppend = OnAppend.SILENT_AFTER);
        int mine = 0;
        while (!a.getPartitionService().getPartition(mine).getOwner()
                .equals(a.getCluster().getLocalMember())) {
            mine++;
        }
        int key = mine;
        OutcomeUnknown unknown =
                assertThrows(OutcomeUnknown.class, () -> b.getMap("orders").set(key, 1000));
        assertTrue(unknown.getMessage().contains(agents.get(0).endpoint()), unknown.getMessage());
        agents.forEach(agent -> agent.faults.onAppend = OnAppend.ACK);
        eventually(() -> map.get(key) == 1000);
        a.getLifecycleService().terminate();
        eventually(() -> b.<Integer, Integer>getMap("orders").get(key) == 1000);
    }
}
