package io.imapwal.hazelcast.settle;

import com.hazelcast.config.Config;
import com.hazelcast.config.IndexConfig;
import com.hazelcast.config.IndexType;
import com.hazelcast.config.MapConfig;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.map.IMap;
import com.hazelcast.map.impl.MapContainer;
import com.hazelcast.map.impl.MapService;
import com.hazelcast.query.impl.IndexRegistry;
import com.hazelcast.query.impl.IndexUtils;
import com.hazelcast.query.impl.InternalIndex;
import io.imapwal.hazelcast.member.Members;
import io.imapwal.hazelcast.member.WalPlugin;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

/** Which indexes Hazelcast may use again after the wait of a partition. */
class HeldIndexesTest {
    private static final int PARTITION = 7;
    private HazelcastInstance member;
    private MapContainer container;
    private InternalIndex index;
    private final HeldIndexes held = new HeldIndexes();

    @BeforeEach
    void start() {
        int port = Members.port();
        Config config = Members.config("indexes", port, "ipc:///tmp/unused");
        config.setProperty("imap-wal.transient-maps", "indexed");
        config.addMapConfig(new MapConfig("indexed")
                .addIndexConfig(new IndexConfig(IndexType.SORTED, "this")));
        member = Members.start(config);
        IMap<Integer, Integer> map = member.getMap("indexed");
        for (int i = 0; i < 100; i++) {
            map.set(i, i);
        }
        MapService service = WalPlugin.of(member).member().nodeEngine()
                .getService(MapService.SERVICE_NAME);
        container = service.getMapServiceContext().getMapContainer("indexed");
        index = container.getGlobalIndexRegistry().getIndexes()[0];
        assertTrue(index.hasPartitionIndexed(PARTITION));
    }

    @AfterEach
    void stop() {
        member.getLifecycleService().terminate();
    }

    @Test
    void indexIsNotUsedWhilePartitionWaits() {
        held.hold(container, PARTITION);
        held.hold(container, PARTITION);
        assertFalse(index.hasPartitionIndexed(PARTITION));
        assertTrue(index.hasPartitionIndexed(PARTITION + 1));
        held.release(PARTITION);
        assertTrue(index.hasPartitionIndexed(PARTITION));
        assertFalse(held.any(PARTITION));
    }

    /** Hazelcast would not fill it any more, so queries would lack the partition's entries. */
    @Test
    void indexAddedWhilePartitionWaitsIsNotComplete() {
        held.hold(container, PARTITION);
        IndexRegistry registry = container.getGlobalIndexRegistry();
        InternalIndex added = registry.addOrGetIndex(
                IndexUtils.validateAndNormalize("indexed",
                    new IndexConfig(IndexType.HASH, "this")));
        held.hold(container, PARTITION);
        held.release(PARTITION);
        assertTrue(index.hasPartitionIndexed(PARTITION));
        assertFalse(added.hasPartitionIndexed(PARTITION));
    }

    @Test
    void indexIsNotUsedForMigratedPartition() {
        held.hold(container, PARTITION);
        held.forget(PARTITION);
        held.release(PARTITION);
        assertFalse(index.hasPartitionIndexed(PARTITION));
    }
}
