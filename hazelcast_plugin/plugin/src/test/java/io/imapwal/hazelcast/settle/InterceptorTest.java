package io.imapwal.hazelcast.settle;

import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.internal.serialization.impl.HeapData;
import com.hazelcast.map.IMap;
import io.imapwal.hazelcast.OutcomeUnknown;
import io.imapwal.hazelcast.member.OnAppend;
import io.imapwal.hazelcast.member.PutInterceptor;
import io.imapwal.hazelcast.member.WalPlugin;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

import java.util.HashMap;
import java.util.Map;
import java.util.Set;

import static io.imapwal.hazelcast.member.Members.eventually;
import static io.imapwal.hazelcast.member.TestCluster.fill;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

/** The log has the result of an interceptor, and the interceptor must not change it again. */
class InterceptorTest extends SettlementFixture {
    @Test
    void settledValuesAreThoseOfLog() throws Exception {
        HazelcastInstance a = start(0);
        IMap<Integer, Integer> map = a.getMap("orders");
        map.addInterceptor(new Adds());
        fill(map, 20);
        cluster.logOnly(a, 1, 5555, 0);
        cluster.logOnly(a, 999, 7777, System.currentTimeMillis() + 3_600_000);
        WalPlugin plugin = WalPlugin.of(a);
        MapState state = plugin.maps().state("orders");
        plugin.maps().ownership().owned().forEach(partition -> state.doubt(partition, null));
        plugin.maps().wake();
        eventually(() -> !state.wholeness().isAnyUnsettled());
        assertEquals(5555, map.get(1));
        assertEquals(1002, map.get(2));
        assertEquals(7777, map.get(999));
        assertEquals(21, map.size());
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void valueInDoubtIsThatOfLog(boolean offloaded) throws Exception {
        offload = offloaded;
        timeoutMs = 2000;
        HazelcastInstance a = start(0);
        IMap<Integer, Integer> map = a.getMap("orders");
        map.addInterceptor(new Adds());
        map.set(1, 1);
        agents.get(0).faults.onAppend = OnAppend.SILENT_AFTER;
        assertThrows(OutcomeUnknown.class, () -> map.set(1, 2));
        agents.get(0).faults.onAppend = OnAppend.ACK;
        eventually(() -> map.get(1) == 1002);
        byte[] key = WalPlugin.of(a).member().nodeEngine().toData(1).toByteArray();
        assertEquals(1002, WalPlugin.of(a).member().nodeEngine()
                .<Integer>toObject(new HeapData(log.newest("orders", key).value())));
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void evictedValuesAreLoadedAsLogged(boolean offloaded) throws Exception {
        offload = offloaded;
        HazelcastInstance a = start(0);
        IMap<Integer, Integer> map = a.getMap("orders");
        map.addInterceptor(new Adds());
        fill(map, 30);
        map.evictAll();
        assertEquals(1000, map.get(0));
        Map<Integer, Integer> some = Map.of(1, 1001, 2, 1002, 3, 1003);
        assertEquals(some, map.getAll(Set.of(1, 2, 3)));
        assertEquals(some, map.getAll(Set.of(1, 2, 3)));
        map.loadAll(true);
        Map<Integer, Integer> all = new HashMap<>();
        for (int i = 0; i < 30; i++) {
            all.put(i, 1000 + i);
        }
        assertEquals(all, map.getAll(all.keySet()));
    }

    private static final class Adds extends PutInterceptor {
        private static final long serialVersionUID = 1L;

        @Override
        public Object interceptPut(Object former, Object value) {
            return (Integer) value + 1000;
        }
    }
}
