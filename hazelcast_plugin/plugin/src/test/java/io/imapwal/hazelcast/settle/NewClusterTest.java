package io.imapwal.hazelcast.settle;

import com.hazelcast.cluster.Address;
import com.hazelcast.cluster.Member;
import com.hazelcast.cluster.MembershipEvent;
import com.hazelcast.config.Config;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.internal.cluster.impl.ClusterServiceImpl;
import com.hazelcast.internal.services.MembershipServiceEvent;
import com.hazelcast.map.IMap;
import com.hazelcast.map.impl.MapService;
import com.hazelcast.map.impl.recordstore.RecordStore;
import com.hazelcast.partition.Partition;
import com.hazelcast.spi.impl.NodeEngineImpl;
import com.hazelcast.spi.impl.operationservice.Operation;
import io.imapwal.hazelcast.member.FakeAgent;
import io.imapwal.hazelcast.member.FakeLog;
import io.imapwal.hazelcast.member.Members;
import io.imapwal.hazelcast.member.WalPlugin;
import io.imapwal.wire.Membership;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.UUID;

import static io.imapwal.hazelcast.member.Members.eventually;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

/** Members that leave their cluster and form a new one keep nothing of the former cluster. */
class NewClusterTest {
    private static final int KEYS = 200;

    private final FakeLog log = new FakeLog();
    private final List<FakeAgent> agents = new ArrayList<>();
    private final int port = Members.port();
    private final List<HazelcastInstance> members = new ArrayList<>();
    private HazelcastInstance a;

    @BeforeEach
    void start() throws Exception {
        for (int number = 0; number < 3; number++) {
            members.add(start(number));
        }
        a = members.get(0);
        IMap<Integer, Integer> map = a.getMap("orders");
        for (int i = 0; i < KEYS; i++) {
            map.set(i, i);
        }
        eventually(() -> members.stream()
                .allMatch(each -> each.getPartitionService().isClusterSafe()));
        assertEquals(KEYS, map.entrySet().size());
    }

    private HazelcastInstance start(int number) throws Exception {
        FakeAgent agent = new FakeAgent(log).start();
        agents.add(agent);
        Config config = Members.config("anew", port + number, agent.endpoint());
        config.setProperty("hazelcast.invocation.max.retry.count", "250");
        // A member that starts asks the members of its list for the oldest. For 1.5 s, Hazelcast
        // repeats the question to members that have not started. If the sender then has another
        // UUID, it is taken for two members.
        config.getNetworkConfig().getJoin().getTcpIpConfig()
                .setMembers(List.of("127.0.0.1:" + port));
        return Members.start(config);
    }

    @AfterEach
    void stop() throws Exception {
        members.forEach(member -> member.getLifecycleService().terminate());
        for (FakeAgent agent : agents) {
            assertEquals(List.of(), agent.violations);
            agent.close();
        }
    }

    private static ClusterServiceImpl cluster(HazelcastInstance member) {
        return WalPlugin.of(member).member().nodeEngine().getNode().getClusterService();
    }

    /** As members that are left out of a view. Partitions are assigned when all have joined. */
    private void formNewCluster() throws Exception {
        UUID former = cluster(a).getClusterId();
        Address target = cluster(a).getThisAddress();
        List<Thread> others = new ArrayList<>();
        for (HazelcastInstance member : members.subList(1, 3)) {
            others.add(new Thread(() -> cluster(member).merge(target)));
        }
        others.forEach(Thread::start);
        cluster(a).merge(target);
        for (Thread other : others) {
            other.join();
        }
        eventually(() -> members.stream().allMatch(each -> cluster(each).getSize() == 3));
        assertNotEquals(former, cluster(a).getClusterId());
    }

    /** Counts entries on their owners and on one backup each. */
    private int inMemory() {
        int size = 0;
        for (HazelcastInstance member : members) {
            MapService service = WalPlugin.of(member).member().nodeEngine()
                    .getService(MapService.SERVICE_NAME);
            for (Partition partition : member.getPartitionService().getPartitions()) {
                RecordStore<?> store = service.getMapServiceContext()
                        .getExistingRecordStore(partition.getPartitionId(), "orders");
                size += store == null ? 0 : store.size();
            }
        }
        return size;
    }

    private static Set<Integer> owned(HazelcastInstance member) {
        Set<Integer> owned = new HashSet<>();
        for (Partition partition : member.getPartitionService().getPartitions()) {
            if (member.getCluster().getLocalMember().equals(partition.getOwner())) {
                owned.add(partition.getPartitionId());
            }
        }
        return owned;
    }

    @Test
    void queriesFindAllEntries() throws Exception {
        Set<Integer> before = owned(a);
        formNewCluster();
        IMap<Integer, Integer> map = a.getMap("orders");
        eventually(() -> map.get(1) == 1);
        assertNotEquals(before, owned(a), "the test shows nothing");
        for (HazelcastInstance member : members) {
            assertEquals(KEYS, member.getMap("orders").entrySet().size());
            assertEquals(KEYS, member.getMap("orders").values().size());
        }
    }

    @Test
    void backupsAreStored() throws Exception {
        formNewCluster();
        IMap<Integer, Integer> map = a.getMap("orders");
        eventually(() -> map.get(1) == 1);
        eventually(() -> inMemory() == 2 * KEYS);
        for (int i = 0; i < KEYS; i++) {
            map.remove(i);
        }
        assertEquals(0, inMemory());
    }

    /**
     * Hazelcast repeats an operation whose target has left, also in the cluster that both join
     * next.
     */
    @Test
    void changesSentInFormerClusterDoNotCount() throws Exception {
        Membership former = WalPlugin.of(a).member().cluster().membership();
        assertTrue(WalPlugin.of(members.get(1)).maps().state("orders").isLoaded());
        formNewCluster();
        NodeEngineImpl engine = WalPlugin.of(a).member().nodeEngine();
        for (HazelcastInstance member : members.subList(1, 3)) {
            assertFalse(WalPlugin.of(member).maps().state("orders").isLoaded());
            assertNotEquals(StatusOperation.READY,
                    send(engine, new StatusOperation("orders", former, false), member));
        }
        IMap<Integer, Integer> map = a.getMap("orders");
        eventually(() -> map.get(1) == 1);
        assertEquals(KEYS, map.entrySet().size());
    }

    /** Otherwise every settlement would wait for a view without a member of the cluster. */
    @Test
    void memberOfFormerClusterIsNotCountedAsLost() throws Exception {
        formNewCluster();
        PartitionOwnership ownership = WalPlugin.of(a).maps().ownership();
        Member present = members.get(1).getCluster().getLocalMember();
        PartitionMoves.of(WalPlugin.of(a).member().nodeEngine())
                .memberRemoved(new MembershipServiceEvent(
                new MembershipEvent(a.getCluster(), present, MembershipEvent.MEMBER_REMOVED,
                a.getCluster().getMembers())));
        assertEquals(Set.of(), ownership.departures().members());
    }

    /** A member that was left out drops its maps, perhaps only after it has joined again. */
    @Test
    void mapDroppedOnOneMemberIsReadAgain() {
        // If it owned the partition of the map's name, Hazelcast would load the map again.
        HazelcastInstance b = members.stream().filter(each -> !each.getCluster().getLocalMember()
                .equals(each.getPartitionService().getPartition("orders").getOwner())).findFirst()
                .orElseThrow();
        WalPlugin.of(b).localMaps().drop(List.of("orders"));
        for (int i = 0; i < KEYS; i++) {
            assertEquals(i, b.getMap("orders").get(i));
        }
        assertEquals(KEYS, a.getMap("orders").size());
    }

    private static Object send(NodeEngineImpl engine, Operation operation,
            HazelcastInstance member) {
        return engine.getOperationService().invokeOnTarget(MapService.SERVICE_NAME, operation,
                cluster(member).getThisAddress()).joinInternal();
    }
}
