package io.imapwal.hazelcast.member;

import com.hazelcast.config.Config;
import com.hazelcast.config.InMemoryFormat;
import com.hazelcast.config.MapConfig;
import com.hazelcast.core.HazelcastException;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.map.EntryProcessor;
import com.hazelcast.map.IMap;
import io.imapwal.hazelcast.NotAppended;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

import java.util.ArrayList;
import java.util.List;
import java.util.Set;

import static io.imapwal.hazelcast.member.Members.eventually;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

/** With in-memory-format OBJECT, entry processors may change the object that is in memory. */
class ObjectFormatTest {
    private static final int KEY = 1;
    private final TestCluster cluster = new TestCluster("objects");

    @AfterEach
    void stop() throws Exception {
        cluster.stop();
    }

    private static EntryProcessor<Integer, List<Integer>, Object> adding(int element) {
        return entry -> {
            List<Integer> value = entry.getValue();
            value.add(element);
            return entry.setValue(value);
        };
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void refusedChangeIsNotInMemory(boolean offload) throws Exception {
        FakeAgent agent = cluster.startAgent();
        Config config = cluster.config(0, agent);
        MapConfig orders = Members.map("orders", agent.endpoint());
        orders.getMapStoreConfig().setOffload(offload);
        config.addMapConfig(orders.setInMemoryFormat(InMemoryFormat.OBJECT));
        HazelcastInstance member = cluster.start(config);
        IMap<Integer, List<Integer>> map = member.getMap("orders");
        map.set(KEY, new ArrayList<>(List.of(1)));
        agent.faults.onAppend = OnAppend.FULL;
        assertThrows(NotAppended.class, () -> map.executeOnKey(KEY, adding(2)));
        assertEquals(List.of(1), map.get(KEY));
        assertThrows(NotAppended.class, () -> map.executeOnKeys(Set.of(KEY), adding(3)));
        assertEquals(List.of(1), map.get(KEY));
        // Hazelcast repeats it, and the key is in doubt then.
        assertThrows(HazelcastException.class, () -> map.executeOnEntries(adding(4)));
        // The settlement is refused too. The entry does not leave memory meanwhile: whatever goes
        // through all entries would not find it.
        for (int until = agent.appends + 3; agent.appends < until; Thread.sleep(1)) {
            assertEquals(1, map.size());
        }
        agent.faults.onAppend = OnAppend.ACK;
        eventually(() -> map.get(KEY).equals(List.of(1)));
        map.executeOnKey(KEY, adding(2));
        assertEquals(List.of(1, 2), map.get(KEY));
    }
}
