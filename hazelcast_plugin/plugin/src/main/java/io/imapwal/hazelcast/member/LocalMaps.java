package io.imapwal.hazelcast.member;

import com.hazelcast.map.impl.MapContainer;
import com.hazelcast.map.impl.MapStoreWrapper;
import io.imapwal.hazelcast.engine.PartitionThreads;
import io.imapwal.hazelcast.settle.MemberMaps;

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
public final class LocalMaps {
    private static final long WAIT_S = 30;

    private final MemberMaps maps;

    LocalMaps(MemberMaps maps) {
        this.maps = maps;
    }

    /**
     * Drops the maps' entries on this member. Indexes, interceptors and listeners stay. Waits for
     * the partitions' threads, so it must not be called on one of them.
     */
    public void drop(Collection<String> names) {
        Set<String> present = new HashSet<>();
        for (String map : names) {
            MapContainer container = maps.member().maps().getExistingMapContainer(map);
            maps.forget(map);
            if (container != null && store(container) != null) {
                present.add(map);
            }
        }
        if (present.isEmpty()) {
            return;
        }
        onAll(present.size() + " maps", partition -> {
            maps.member().maps().removeRecordStoresFromPartitionMatchingWith(each ->
                    present.contains(each.getName()), partition, false, false);
            present.forEach(map -> maps.state(map).emptied(partition));
        });
    }

    /** Drops the whole map, after Hazelcast failed to destroy it. Waits like {@link #drop}. */
    void discard(String map) {
        MapContainer container = maps.member().maps().getExistingMapContainer(map);
        if (container == null || store(container) == null) {
            return;
        }
        container.onBeforeDestroy();
        container.getMapStoreContext().stop();
        onAll("map \"" + map + "\"", partition -> {
            maps.member().maps().getPartitionContainer(partition).destroyMap(container);
            maps.state(map).emptied(partition);
        });
        container.onDestroy();
    }

    private void onAll(String what, IntConsumer action) {
        List<Integer> partitions = IntStream.range(0,
                maps.member().partitionCount()).boxed().toList();
        try {
            long left = new PartitionThreads(maps.member().nodeEngine()).run(partitions, action,
                    WAIT_S);
            if (left > 0) {
                maps.member().logger().warning("imap-wal: " + what + ": " + left
                        + " partitions are not dropped yet after "
                        + WAIT_S + " s; their threads are busy");
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private static MapStoreWrapper store(MapContainer container) {
        MapStoreWrapper wrapper = container.getMapStoreContext().getMapStoreWrapper();
        return wrapper != null && wrapper.getImpl() instanceof LoggedMap ? wrapper : null;
    }
}
