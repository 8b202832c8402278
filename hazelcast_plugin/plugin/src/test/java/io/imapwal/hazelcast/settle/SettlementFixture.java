package io.imapwal.hazelcast.settle;

import com.hazelcast.config.Config;
import com.hazelcast.config.IndexConfig;
import com.hazelcast.config.IndexType;
import com.hazelcast.config.MapConfig;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.internal.serialization.Data;
import com.hazelcast.internal.util.ThreadUtil;
import com.hazelcast.map.IMap;
import com.hazelcast.map.impl.MapService;
import com.hazelcast.spi.impl.NodeEngineImpl;
import com.hazelcast.transaction.TransactionContext;
import com.hazelcast.transaction.TransactionalMap;
import io.imapwal.hazelcast.LogUnavailable;
import io.imapwal.hazelcast.engine.PartitionThreads;
import io.imapwal.hazelcast.member.FakeAgent;
import io.imapwal.hazelcast.member.FakeLog;
import io.imapwal.hazelcast.member.Members;
import io.imapwal.hazelcast.member.TestCluster;
import io.imapwal.hazelcast.member.WalPlugin;
import org.junit.jupiter.api.AfterEach;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

import static io.imapwal.hazelcast.member.Members.eventually;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

/** Members of one cluster with a map "orders", for tests of what is compared with the log. */
public abstract class SettlementFixture {
    /** Why reads fail, if a test says so. */
    public static final String NO_DISK = "the disk is away";

    public final TestCluster cluster = new TestCluster("settlement");
    public final FakeLog log = cluster.log;
    public final List<FakeAgent> agents = cluster.agents;
    public final int port = cluster.port;
    public boolean offload;
    public boolean readBackups;
    public int settleTimeoutMs = 10_000;
    public int timeoutMs = 10_000;
    public int restoreChunk = 10_000;
    public int connectTimeoutMs = 10_000;

    public HazelcastInstance start(int number) throws Exception {
        FakeAgent agent = cluster.startAgent();
        Config config = cluster.config(number, agent);
        MapConfig map = Members.map("orders", agent.endpoint());
        map.getMapStoreConfig().setOffload(offload);
        map.setReadBackupData(readBackups);
        map.getMapStoreConfig().setProperty("settle-timeout-ms", String.valueOf(settleTimeoutMs));
        map.getMapStoreConfig().setProperty("timeout-ms", String.valueOf(timeoutMs));
        map.getMapStoreConfig().setProperty("restore-chunk", String.valueOf(restoreChunk));
        map.getMapStoreConfig().setProperty("connect-timeout-ms",
                String.valueOf(connectTimeoutMs));
        map.addIndexConfig(new IndexConfig(IndexType.SORTED, "this"));
        config.addMapConfig(map);
        config.setProperty("imap-wal.transient-maps", "plain-*");
        return cluster.start(config);
    }

    @AfterEach
    public void stop() throws Exception {
        cluster.stop();
        agents.forEach(agent -> assertEquals(List.of(), agent.violations));
    }

    /** Sets keys of one partition to themselves. */
    public static Map<Integer, Integer> fillPartition(HazelcastInstance member, int partition,
            int count) {
        Map<Integer, Integer> entries = new HashMap<>();
        for (int key = 0; entries.size() < count; key++) {
            if (member.getPartitionService().getPartition(key).getPartitionId() == partition) {
                entries.put(key, key);
            }
        }
        member.<Integer, Integer>getMap("orders").putAll(entries);
        return entries;
    }

    /** Sets 40 numbers to themselves. Returns one that this member owns, with a backup. */
    int fillWithKeyOf(HazelcastInstance owner, IMap<Integer, Integer> map) throws Exception {
        TestCluster.fill(map, 40);
        cluster.awaitSafe();
        return TestCluster.owned(owner, 1).get(0);
    }

    /** Returns when reads of the key fail because the log cannot be read. */
    public static void awaitUnavailable(IMap<Integer, Integer> map, int key) throws Exception {
        eventually(() -> assertThrows(LogUnavailable.class, () -> map.get(key)).getMessage()
                .contains(NO_DISK));
    }

    public static long ownedPartitions(HazelcastInstance member) {
        return member.getPartitionService().getPartitions().stream()
                .filter(partition -> member.getCluster().getLocalMember()
                    .equals(partition.getOwner())).count();
    }

    /** One key of each partition. */
    static List<Integer> oneOfEachPartition(HazelcastInstance member) {
        Map<Integer, Integer> keys = new HashMap<>();
        int partitions = member.getPartitionService().getPartitions().size();
        for (int key = 0; keys.size() < partitions; key++) {
            keys.putIfAbsent(member.getPartitionService().getPartition(key).getPartitionId(), key);
        }
        return new ArrayList<>(keys.values());
    }

    /** As a transaction of this thread that gets no answer. */
    public static void leaveLocked(HazelcastInstance member, int key, long forMs)
            throws InterruptedException {
        NodeEngineImpl engine = WalPlugin.of(member).member().nodeEngine();
        MapService service = engine.getService(MapService.SERVICE_NAME);
        long thread = ThreadUtil.getThreadId();
        Data data = engine.toData(key);
        new PartitionThreads(engine).run(List.of(engine.getPartitionService().getPartitionId(data)),
                id -> assertTrue(service.getMapServiceContext().getRecordStore(id, "orders")
                    .txnLock(data, engine.getLocalMember().getUuid(), thread, 0, forMs, false)),
                10);
    }

    /** Adds to keys that have the same value. @return the value before */
    public static int add(HazelcastInstance member, List<Integer> keys, int more) {
        TransactionContext transaction = member.newTransactionContext();
        transaction.beginTransaction();
        try {
            TransactionalMap<Integer, Integer> changes = transaction.getMap("orders");
            int before = changes.getForUpdate(keys.get(0));
            keys.forEach(key -> changes.set(key, before + more));
            transaction.commitTransaction();
            return before;
        } catch (RuntimeException e) {
            transaction.rollbackTransaction();
            throw e;
        }
    }
}
