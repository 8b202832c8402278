package io.imapwal.hazelcast.settle;

import com.hazelcast.internal.partition.impl.InternalPartitionServiceImpl;
import com.hazelcast.internal.partition.impl.PartitionReplicaManager;
import com.hazelcast.map.impl.MapService;
import com.hazelcast.spi.impl.NodeEngine;
import io.imapwal.hazelcast.engine.PartitionThreads;

import java.util.List;
import java.util.function.IntConsumer;
import java.util.stream.IntStream;

/**
 * Removes what Hazelcast (5.5 to 5.7) keeps of a member's former cluster when the member joins
 * another one. What is kept has no effect if all partitions migrate to this member. But members
 * that form a new cluster get their first partitions without a migration.
 *
 * <pre>
 *  kept                                    effect in the next cluster
 *  versions of the copies of partitions    a backup counts as an old one until its version
 *                                          exceeds the former one: it is not stored, and the
 *                                          caller waits for the backup timeout each time
 *  partitions that queries scan here       this member answers for partitions of others, in which
 *                                          it finds nothing; Hazelcast asks no other member then
 * </pre>
 */
final class FormerCluster {
    private static final long WAIT_S = 30;

    private final NodeEngine nodeEngine;

    FormerCluster(NodeEngine nodeEngine) {
        this.nodeEngine = nodeEngine;
    }

    /**
     * Called after the connections were closed and the partition table was emptied. Tasks that
     * still wait for a partition's thread belong to the former cluster, and run before this.
     *
     * @param more called for each partition on its thread, to forget more
     */
    void forget(IntConsumer more) {
        InternalPartitionServiceImpl partitions =
                (InternalPartitionServiceImpl) nodeEngine.getPartitionService();
        PartitionReplicaManager replicas = partitions.getReplicaManager();
        try {
            long left = new PartitionThreads(nodeEngine)
                    .run(IntStream.range(0, partitions.getPartitionCount()).boxed().toList(),
                    partition -> {
                        replicas.retainNamespaces(partition, List.of());
                        more.accept(partition);
                    }, WAIT_S);
            if (left > 0) {
                nodeEngine.getLogger(FormerCluster.class)
                        .warning("imap-wal: " + left + " partitions of the former cluster are not"
                        + " forgotten yet after " + WAIT_S + " s; their threads are busy");
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
        scannedPartitions(nodeEngine);
    }

    /** Makes queries on this member scan the partitions that it owns now. */
    static void scannedPartitions(NodeEngine nodeEngine) {
        MapService service = nodeEngine.getService(MapService.SERVICE_NAME);
        service.getMapServiceContext().refreshCachedOwnedPartitions();
    }
}
