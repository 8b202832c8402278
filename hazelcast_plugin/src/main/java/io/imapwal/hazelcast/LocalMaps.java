package io.imapwal.hazelcast;

import com.hazelcast.internal.partition.IPartitionService;
import com.hazelcast.map.impl.MapContainer;
import com.hazelcast.map.impl.MapService;
import com.hazelcast.map.impl.MapServiceContext;
import com.hazelcast.map.impl.MapStoreWrapper;
import com.hazelcast.spi.impl.PartitionSpecificRunnable;
import com.hazelcast.spi.impl.operationexecutor.OperationExecutor;
import com.hazelcast.spi.impl.operationservice.impl.OperationServiceImpl;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

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
        IPartitionService partitions = plugin.nodeEngine().getPartitionService();
        OperationExecutor executor = ((OperationServiceImpl) plugin.nodeEngine().getOperationService()).getOperationExecutor();
        CountDownLatch left = new CountDownLatch(partitions.getPartitionCount());
        for (int id = 0; id < partitions.getPartitionCount(); id++) {
            executor.execute(new Drop(id, container, left));
        }
        try {
            if (!left.await(WAIT_S, TimeUnit.SECONDS)) {
                plugin.logger().warning("imap-wal: map \"" + map + "\": " + left.getCount() + " partitions are not dropped yet after "
                        + WAIT_S + " s; their threads are busy");
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
        container.onDestroy();
    }

    private final class Drop implements PartitionSpecificRunnable {
        private final int partition;
        private final MapContainer container;
        private final CountDownLatch left;

        Drop(int partition, MapContainer container, CountDownLatch left) {
            this.partition = partition;
            this.container = container;
            this.left = left;
        }

        @Override
        public void run() {
            try {
                context().getPartitionContainer(partition).destroyMap(container);
            } finally {
                left.countDown();
            }
        }

        @Override
        public int getPartitionId() {
            return partition;
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
