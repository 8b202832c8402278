package io.imapwal.hazelcast.member;

import com.hazelcast.config.Config;
import com.hazelcast.config.EvictionPolicy;
import com.hazelcast.config.InMemoryFormat;
import com.hazelcast.config.IndexConfig;
import com.hazelcast.config.IndexType;
import com.hazelcast.config.MapConfig;
import com.hazelcast.config.MapStoreConfig;
import com.hazelcast.config.MaxSizePolicy;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.internal.serialization.Data;
import com.hazelcast.internal.serialization.impl.HeapData;
import com.hazelcast.map.IMap;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.TestInfo;

import java.util.List;

import static io.imapwal.hazelcast.member.Members.eventually;
import static org.junit.jupiter.api.Assertions.assertEquals;

/**
 * One member with a map store and a simulated agent. All tests of a class use them, each with maps
 * of its own.
 */
abstract class StoreFixture {
    static FakeLog log;
    static FakeAgent agent;
    static HazelcastInstance member;
    String name;

    @BeforeAll
    static void start() throws Exception {
        log = new FakeLog();
        agent = new FakeAgent(log).start();
        Config config = Members.config("store", Members.port(), agent.endpoint());
        MapConfig offloaded = Members.map("offloaded-*", agent.endpoint());
        offloaded.getMapStoreConfig().setOffload(true);
        config.addMapConfig(offloaded);
        MapConfig evicting = Members.map("evicting-*", agent.endpoint());
        evicting.getEvictionConfig().setEvictionPolicy(EvictionPolicy.LRU)
                .setMaxSizePolicy(MaxSizePolicy.PER_NODE).setSize(1000);
        config.addMapConfig(evicting);
        MapConfig objects = Members.map("objects-*", agent.endpoint());
        config.addMapConfig(objects.setInMemoryFormat(InMemoryFormat.OBJECT));
        MapConfig chunks = Members.map("chunks-*", agent.endpoint());
        chunks.getMapStoreConfig().setProperty("restore-chunk", "7");
        config.addMapConfig(chunks);
        MapConfig behind = Members.map("behind", agent.endpoint());
        behind.getMapStoreConfig().setWriteDelaySeconds(1);
        config.addMapConfig(behind);
        MapConfig lazy = Members.map("lazy", agent.endpoint());
        lazy.getMapStoreConfig().setInitialLoadMode(MapStoreConfig.InitialLoadMode.LAZY);
        config.addMapConfig(lazy);
        config.addMapConfig(Members.map("idle", agent.endpoint()).setMaxIdleSeconds(5));
        config.addMapConfig(Members.map("twice", agent.endpoint())
                .addIndexConfig(new IndexConfig(IndexType.SORTED, "a", "b", "a")));
        MapConfig misspelt = Members.map("misspelt", agent.endpoint());
        misspelt.getMapStoreConfig().setProperty("timeout", "5");
        config.addMapConfig(misspelt);
        // Some tests wait for an answer that does not come.
        config.getMapConfigs().values()
                .forEach(map -> map.getMapStoreConfig().setProperty("timeout-ms", "2000"));
        member = Members.start(config);
    }

    @AfterAll
    static void stop() throws Exception {
        member.shutdown();
        agent.close();
    }

    @BeforeEach
    void name(TestInfo info) throws Exception {
        name = info.getTestMethod().orElseThrow().getName() + info.getDisplayName().hashCode();
    }

    @AfterEach
    void endFaults() throws Exception {
        agent.start();
        agent.faults.onAppend = OnAppend.ACK;
        agent.faults.readError = null;
        agent.faults.unreadable = null;
        agent.faults.delayMs = 0;
        agent.faults.loadLimit = Integer.MAX_VALUE;
        eventually(() -> {
            IMap<String, String> probe = member.getMap("probe");
            probe.set("k", "v");
            return true;
        });
        assertEquals(List.of(), agent.violations);
    }

    static byte[] bytes(Object object) {
        return WalPlugin.of(member).member().nodeEngine().toData(object).toByteArray();
    }

    static Object logged(String map, Object key) {
        FakeLog.Record found = log.newest(map, bytes(key));
        return found == null ? null : WalPlugin.of(member).member().nodeEngine()
                .toObject((Data) new HeapData(found.value()));
    }

    /** Returns when the reconciler has settled all keys in doubt. */
    static void awaitSettled() throws Exception {
        eventually(() -> WalPlugin.of(member).maps().reconciler().idle());
    }
}
