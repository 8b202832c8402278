package io.imapwal.hazelcast.settle;

import com.hazelcast.config.Config;
import com.hazelcast.config.InMemoryFormat;
import com.hazelcast.config.MapConfig;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.internal.partition.impl.InternalPartitionImpl;
import com.hazelcast.internal.serialization.Data;
import com.hazelcast.map.IMap;
import io.imapwal.hazelcast.NotAppended;
import io.imapwal.hazelcast.member.FakeAgent;
import io.imapwal.hazelcast.member.Members;
import io.imapwal.hazelcast.member.OnAppend;
import io.imapwal.hazelcast.member.TestCluster;
import io.imapwal.hazelcast.member.WalPlugin;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.ValueSource;

import java.io.IOException;
import java.io.ObjectInputStream;
import java.io.Serializable;
import java.lang.reflect.Method;
import java.util.HashMap;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

import static io.imapwal.hazelcast.member.Members.eventually;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

/** The place that a key has from a transaction whose coordinator is gone, and its settlement. */
class SettledPlaceTest {
    private static final int KEY = 1;
    private final TestCluster cluster = new TestCluster("settled");
    private FakeAgent agent;
    private HazelcastInstance member;
    private WalPlugin plugin;
    private IMap<Integer, Object> map;
    private int partition;

    private void start(InMemoryFormat format, boolean offload) throws Exception {
        agent = cluster.startAgent();
        Config config = cluster.config(0, agent);
        MapConfig orders = Members.map("orders", agent.endpoint());
        orders.getMapStoreConfig().setOffload(offload);
        config.addMapConfig(orders.setInMemoryFormat(format));
        member = cluster.start(config);
        map = member.getMap("orders");
        plugin = WalPlugin.of(member);
        partition = member.getPartitionService().getPartition(KEY).getPartitionId();
    }

    @AfterEach
    void stop() throws Exception {
        Value.onRead = null;
        cluster.stop();
    }

    private Data data(Object object) {
        return plugin.member().nodeEngine().toData(object);
    }

    /** The log has the value of the transaction. */
    private UUID placeAndLog(Object value) {
        UUID transaction = UUID.randomUUID();
        plugin.maps().placements().place("orders", data(KEY), transaction, UUID.randomUUID(),
                partition,
                plugin.maps().guard().place(partition).order());
        cluster.logOnly(member, KEY, value, 0);
        return transaction;
    }

    private void settle(UUID transaction) {
        plugin.maps().settle("orders", data(KEY), transaction);
    }

    private boolean isSettled() {
        return plugin.maps().reconciler().idle();
    }

    /** Members often do not have the classes of values. */
    private static final class Value implements Serializable {
        private static final long serialVersionUID = 1;
        private static volatile Runnable onRead;
        private final int number;

        private Value(int number) {
            this.number = number;
        }

        private void readObject(ObjectInputStream from)
                throws IOException, ClassNotFoundException {
            from.defaultReadObject();
            Runnable now = onRead;
            if (now != null) {
                now.run();
            }
        }
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void valueWhoseClassTheMemberDoesNotHaveIsSettled(boolean offload) throws Exception {
        start(InMemoryFormat.BINARY, offload);
        map.set(KEY, new Value(0));
        UUID transaction = placeAndLog(new Value(1000));
        Value.onRead = () -> {
            throw new IllegalStateException("the member does not have the class");
        };
        int before = agent.appends;
        settle(transaction);
        eventually(this::isSettled);
        assertTrue(plugin.maps().placements().none());
        assertEquals(before, agent.appends);
        Value.onRead = null;
        assertEquals(1000, ((Value) map.get(KEY)).number);
    }

    /** The member does not have the class. */
    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void deletionOfAValueOfAnUnknownClassIsSettled(boolean offload) throws Exception {
        start(InMemoryFormat.BINARY, offload);
        map.set(KEY, new Value(0));
        UUID transaction = placeAndLog(null);
        Value.onRead = () -> {
            throw new IllegalStateException("the member does not have the class");
        };
        settle(transaction);
        eventually(this::isSettled);
        assertTrue(plugin.maps().placements().none());
        assertEquals(0, map.size());
    }

    /** Hazelcast reads it into a smaller table, and would write it in another order. */
    private static Map<Integer, Integer> wideMap() {
        Map<Integer, Integer> value = new HashMap<>(1024);
        value.put(1, 1);
        value.put(16, 16);
        return value;
    }

    /** A member that has objects writes this value again, and it has other bytes then. */
    @ParameterizedTest
    @EnumSource(value = InMemoryFormat.class, names = {"BINARY", "OBJECT"})
    void valueWithOtherBytesKeepsItsPlaceUntilLogged(InMemoryFormat format) throws Exception {
        start(format, false);
        map.set(KEY, 0);
        Map<Integer, Integer> value = wideMap();
        UUID transaction = placeAndLog(value);
        agent.faults.onAppend = OnAppend.FULL;
        int before = agent.loads;
        settle(transaction);
        if (format == InMemoryFormat.OBJECT) {
            eventually(() -> agent.loads > before + 4);
            assertEquals(1, plugin.maps().placements().size());
            agent.faults.onAppend = OnAppend.ACK;
        }
        eventually(this::isSettled);
        assertTrue(plugin.maps().placements().none());
        assertEquals(value, map.get(KEY));
    }

    /** The change is logged once more then. */
    @Test
    void placeEndsIfBackupMovesBeforeSettledChangeIsStored() throws Exception {
        start(InMemoryFormat.OBJECT, false);
        map.set(KEY, new Value(0));
        UUID transaction = placeAndLog(new Value(1000));
        var hazelcastPartition = (InternalPartitionImpl)
                plugin.member().nodeEngine().getPartitionService().getPartition(partition);
        Method set = InternalPartitionImpl.class.getDeclaredMethod("setVersion", int.class);
        set.setAccessible(true);
        int version = hazelcastPartition.version();
        Value.onRead = () -> {
            try {
                set.invoke(hazelcastPartition, version + 1);
            } catch (ReflectiveOperationException e) {
                throw new IllegalStateException(e);
            }
        };
        settle(transaction);
        eventually(this::isSettled);
        Value.onRead = null;
        assertEquals(version + 1, hazelcastPartition.version());
        assertEquals(1000, ((Value) map.get(KEY)).number);
        assertTrue(plugin.maps().placements().none());
    }

    /** If it counted as the change of the transaction, it would be lost. */
    @Test
    void sameValueWithAnotherExpiryIsLogged() throws Exception {
        start(InMemoryFormat.OBJECT, false);
        map.set(KEY, 0);
        Map<Integer, Integer> value = wideMap();
        UUID transaction = placeAndLog(value);
        agent.faults.onAppend = OnAppend.FULL;
        int before = agent.appends;
        settle(transaction);
        eventually(() -> agent.appends > before);
        agent.faults.readError = "the disk is away";
        int loads = agent.loads;
        eventually(() -> agent.loads > loads + 2);
        agent.faults.onAppend = OnAppend.ACK;
        CompletableFuture<Void> set = CompletableFuture.runAsync(
                () -> map.set(KEY, value, 1, TimeUnit.HOURS));
        int more = agent.loads;
        eventually(() -> agent.loads > more + 2);
        agent.faults.readError = null;
        set.join();
        eventually(this::isSettled);
        assertEquals(value, map.get(KEY));
        assertTrue(map.getEntryView(KEY).getExpirationTime() < Long.MAX_VALUE);
    }

    /** The key is settled later, so its place must not end with a clear that is refused. */
    @Test
    void refusedClearKeepsThePlace() throws Exception {
        start(InMemoryFormat.BINARY, false);
        map.set(KEY, 0);
        UUID transaction = placeAndLog(1000);
        plugin.maps().placements().setLogged("orders", data(KEY), transaction, data(1000));
        agent.faults.onAppend = OnAppend.FULL;
        assertThrows(NotAppended.class, () -> map.clear());
        assertTrue(plugin.maps().placements().contains("orders", data(KEY)));
        agent.faults.onAppend = OnAppend.ACK;
        map.clear();
        assertTrue(plugin.maps().placements().none());
        assertTrue(map.isEmpty());
    }
}
