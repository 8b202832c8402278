package io.imapwal.hazelcast;

import com.hazelcast.map.impl.MapContainer;
import com.hazelcast.map.impl.MapService;
import com.hazelcast.map.impl.MapServiceContext;
import com.hazelcast.map.impl.MapStoreWrapper;

import java.util.ArrayList;
import java.util.List;
import java.util.stream.IntStream;

/**
 * Drops maps from this member's memory only: the log, the other members and listeners are not
 * affected. The next operation on such a map on this member initialises its store again.
 */
final class LocalMaps {
    private static final long WAIT_S = 30;

    private final WalPlugin plugin;

    LocalMaps(WalPlugin plugin) {
        this.plugin = plugin;
    }

    /** Names of the maps in memory that have our store. */
    List<String> names() {
        List<String> names = new ArrayList<>();
        for (MapContainer container : context().getMapContainers().values()) {
            if (store(container) != null) {
                names.add(container.getName());
            }
        }
        return names;
    }

    /** Waits for the partitions' threads: never on one of them. */
    void drop(String map) {
        MapContainer container = context().getMapContainers().get(map);
        MapStoreWrapper store = container == null ? null : store(container);
        if (store == null) {
            return;
        }
        container.onBeforeDestroy();
        container.getMapStoreContext().stop();
        store.destroy();
        List<Integer> partitions = IntStream.range(0, plugin.nodeEngine().getPartitionService().getPartitionCount()).boxed().toList();
        try {
            long left = new PartitionThreads(plugin.nodeEngine()).run(partitions,
                    id -> {
                        context().getPartitionContainer(id).destroyMap(container);
                        plugin.state(map).emptied(id);
                    }, WAIT_S);
            if (left > 0) {
                plugin.logger().warning("imap-wal: map \"" + map + "\": " + left + " partitions are not dropped yet after "
                        + WAIT_S + " s; their threads are busy");
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
        container.onDestroy();
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
