package io.imapwal.hazelcast;

import com.hazelcast.map.impl.MapContainer;
import com.hazelcast.map.impl.MapService;
import com.hazelcast.map.impl.MapServiceContext;
import com.hazelcast.map.impl.MapStoreWrapper;

import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.function.IntConsumer;
import java.util.stream.IntStream;

/**
 * Drops maps only from this member's memory. The log, the other members and listeners are not
 * affected. The next operation on such a map on this member opens it again.
 */
final class LocalMaps {
    private static final long WAIT_S = 30;

    private final WalPlugin plugin;

    LocalMaps(WalPlugin plugin) {
        this.plugin = plugin;
    }

    /**
     * Drops the maps' entries on this member. Indexes, interceptors and listeners stay. Waits for
     * the partitions' threads, so it must not be called on one of them.
     */
    void drop(Collection<String> maps) {
        Set<String> present = new HashSet<>();
        for (String map : maps) {
            MapContainer container = context().getExistingMapContainer(map);
            plugin.forget(map);
            if (container != null && store(container) != null) {
                present.add(map);
            }
        }
        if (present.isEmpty()) {
            return;
        }
        onAll(present.size() + " maps", partition -> {
            context().removeRecordStoresFromPartitionMatchingWith(each ->
                    present.contains(each.getName()), partition, false, false);
            present.forEach(map -> plugin.state(map).emptied(partition));
        });
    }

    /** Drops the whole map, after Hazelcast failed to destroy it. Waits like {@link #drop}. */
    void discard(String map) {
        MapContainer container = context().getExistingMapContainer(map);
        if (container == null || store(container) == null) {
            return;
        }
        container.onBeforeDestroy();
        container.getMapStoreContext().stop();
        onAll("map \"" + map + "\"", partition -> {
            context().getPartitionContainer(partition).destroyMap(container);
            plugin.state(map).emptied(partition);
        });
        container.onDestroy();
    }

    private void onAll(String what, IntConsumer action) {
        List<Integer> partitions = IntStream.range(0, plugin.partitionCount()).boxed().toList();
        try {
            long left = new PartitionThreads(plugin.nodeEngine()).run(partitions, action, WAIT_S);
            if (left > 0) {
                plugin.logger().warning("imap-wal: " + what + ": " + left
                        + " partitions are not dropped yet after "
                        + WAIT_S + " s; their threads are busy");
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private static MapStoreWrapper store(MapContainer container) {
        MapStoreWrapper wrapper = container.getMapStoreContext().getMapStoreWrapper();
        return wrapper != null && wrapper.getImpl() instanceof WalMapStore ? wrapper : null;
    }

    private MapServiceContext context() {
        MapService service = plugin.nodeEngine().getService(MapService.SERVICE_NAME);
        return service.getMapServiceContext();
    }
}
