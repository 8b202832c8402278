package io.imapwal.hazelcast.member;

import com.hazelcast.config.Config;
import com.hazelcast.config.MapConfig;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.map.EntryProcessor;
import com.hazelcast.map.IMap;
import com.hazelcast.map.impl.MapService;
import com.hazelcast.map.impl.record.Record;
import com.hazelcast.map.impl.recordstore.RecordStore;
import io.imapwal.hazelcast.engine.PartitionThreads;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;

import static io.imapwal.hazelcast.member.Members.eventually;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;

/** What a backup does with the changes of the owner. */
class BackupsTest {
    private final TestCluster cluster = new TestCluster("backups");

    private HazelcastInstance start(int number, boolean offload) throws Exception {
        FakeAgent agent = cluster.startAgent();
        Config config = cluster.config(number, agent);
        // Hazelcast waits this long for a backup that does not answer.
        config.setProperty("hazelcast.operation.backup.timeout.millis", "120000");
        MapConfig map = Members.map("orders", agent.endpoint());
        map.getMapStoreConfig().setOffload(offload);
        config.addMapConfig(map);
        return cluster.start(config);
    }

    @AfterEach
    void stop() throws Exception {
        cluster.stop();
        cluster.agents.forEach(agent -> assertEquals(List.of(), agent.violations));
    }

    /** A backup does not have the keys, and must not ask the log for them: it is not the owner. */
    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    @Timeout(value = 60, unit = TimeUnit.SECONDS, threadMode = Timeout.ThreadMode.SEPARATE_THREAD)
    void backupsHaveWhatChangesOfAbsentKeysMade(boolean offload) throws Exception {
        HazelcastInstance a = start(0, offload);
        start(1, offload);
        cluster.awaitSafe();
        IMap<Integer, Integer> map = a.getMap("orders");
        EntryProcessor<Integer, Integer, Object> one = entry -> entry.setValue(1);
        EntryProcessor<Integer, Integer, Object> none = entry -> entry.setValue(null);
        Map<Integer, Integer> expected = new HashMap<>();
        for (int first = 0; first < 400; first += 20) {  // of both owners
            map.executeOnKey(first, one);
            map.submitToKey(first + 1, one).toCompletableFuture().join();
            map.executeOnKeys(Set.of(first + 2, first + 3), one);
            map.compute(first + 4, (key, value) -> value == null ? 1 : 2);
            map.computeIfAbsent(first + 5, key -> 1);
            map.computeIfPresent(first + 6, (key, value) -> 2);
            map.merge(first + 7, 1, Integer::sum);
            map.setTtl(first + 8, 1, TimeUnit.HOURS);
            map.executeOnKey(first + 9, none);
            map.putIfAbsent(first + 10, 1);
            map.set(first + 11, 1);
            map.executeOnKey(first + 11, one);
            map.setTtl(first + 11, 1, TimeUnit.HOURS);
            map.executeOnKey(first + 12, one);
            map.executeOnKey(first + 12, none);
            for (int key : List.of(0, 1, 2, 3, 4, 5, 7, 10, 11)) {
                expected.put(first + key, 1);
            }
        }
        assertEquals(expected, map.getAll(map.keySet()));
        cluster.awaitSafe();
        eventually(() -> expected.equals(backups()));
    }

    /** Hazelcast's own tests look into backups in this way: tests/hazelcast_maps. */
    @Test
    void aBackupThatIsReadWithoutAnOperationLoadsNothing() throws Exception {
        HazelcastInstance a = start(0, false);
        HazelcastInstance b = start(1, false);
        cluster.awaitSafe();
        a.getMap("orders");
        int key = TestCluster.owned(b, 1).get(0);
        var engine = WalPlugin.of(a).member().nodeEngine();
        int partition = engine.getPartitionService().getPartitionId(key);
        MapService service = engine.getService(MapService.SERVICE_NAME);
        AtomicReference<Object> read = new AtomicReference<>("nothing");
        assertEquals(0, new PartitionThreads(engine).run(List.of(partition), each -> read.set(
                service.getMapServiceContext().getRecordStore(each, "orders")
                        .get(engine.toData(key), true, null)), 10));
        assertNull(read.get());
    }

    /** What the members have for the partitions that they do not own. */
    private Map<Integer, Integer> backups() {
        Map<Integer, Integer> found = new HashMap<>();
        for (HazelcastInstance member : cluster.members) {
            var engine = WalPlugin.of(member).member().nodeEngine();
            MapService service = engine.getService(MapService.SERVICE_NAME);
            for (int id = 0; id < engine.getPartitionService().getPartitionCount(); id++) {
                RecordStore<? extends Record<?>> store = service.getMapServiceContext()
                        .getExistingRecordStore(id, "orders");
                if (store != null && !engine.getPartitionService().getPartition(id).isLocal()) {
                    store.forEach((key, record) -> found.put(engine.toObject(key),
                            engine.toObject(record.getValue())), true);
                }
            }
        }
        return found;
    }
}
