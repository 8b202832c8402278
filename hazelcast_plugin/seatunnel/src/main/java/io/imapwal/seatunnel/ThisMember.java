package io.imapwal.seatunnel;

import com.hazelcast.config.MapStoreConfig;
import com.hazelcast.core.Hazelcast;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.core.HazelcastInstanceNotActiveException;
import com.hazelcast.instance.impl.HazelcastInstanceImpl;
import com.hazelcast.instance.impl.HazelcastInstanceProxy;
import com.hazelcast.internal.cluster.ClusterService;
import com.hazelcast.internal.partition.InternalPartition;
import com.hazelcast.internal.partition.InternalPartitionService;
import com.hazelcast.logging.ILogger;
import com.hazelcast.spi.exception.RetryableHazelcastException;
import com.hazelcast.spi.impl.NodeEngine;
import io.imapwal.wire.Membership;

import java.util.ArrayList;
import java.util.List;

/** The member of Hazelcast in this process, and what its changes need of it. */
final class ThisMember {
    private static final int TURN_BITS = 32;

    private final HazelcastInstance instance;
    private final NodeEngine engine;
    private final InternalPartitionService partitions;

    ThisMember(HazelcastInstance instance) {
        HazelcastInstanceImpl impl = instance instanceof HazelcastInstanceProxy
                ? ((HazelcastInstanceProxy) instance).getOriginal()
                : (HazelcastInstanceImpl) instance;
        this.instance = impl;
        this.engine = impl.node.getNodeEngine();
        this.partitions = (InternalPartitionService) engine.getPartitionService();
    }

    /**
     * The member to which a thread with this name belongs, or the only one of this process.
     *
     * @param thread Hazelcast names its threads {@code hz.INSTANCE.…}
     * @param wayOut what to do if there is no such member, for the error
     */
    static HazelcastInstance of(String thread, String wayOut) {
        List<String> names = new ArrayList<>();
        HazelcastInstance last = null;
        for (HazelcastInstance one : Hazelcast.getAllHazelcastInstances()) {
            if (thread.startsWith("hz." + one.getName() + ".")) {
                return one;
            }
            names.add(one.getName());
            last = one;
        }
        if (names.size() == 1) {
            return last;
        }
        throw new IllegalStateException("imap-wal: this process has " + names.size()
                + " Hazelcast members " + names + ", and none of them is that of thread " + thread
                + "; " + wayOut);
    }

    HazelcastInstance instance() {
        return instance;
    }

    ILogger logger() {
        return engine.getLogger(ThisMember.class);
    }

    /** @throws HazelcastInstanceNotActiveException it has shut down */
    void requireRunning() {
        if (!engine.isRunning()) {
            throw new HazelcastInstanceNotActiveException();
        }
    }

    Membership membership() {
        ClusterService cluster = engine.getClusterService();
        return new Membership(cluster.getClusterId(), cluster.getLocalMember().getUuid());
    }

    /** The name of this member, for messages. */
    String name() {
        return engine.getThisAddress().toString();
    }

    MapStoreConfig mapStore(String map) {
        return engine.getConfig().findMapConfig(map).getMapStoreConfig();
    }

    int partition(Object key) {
        return partitions.getPartitionId(key);
    }

    /**
     * The second number of the order of a change that this member makes now. It rises with each
     * change of the owner, so the change of a later owner is newer, whatever agents and sessions
     * the two have. Hazelcast 5.1 stores on the thread of the partition, so the partition does not
     * migrate meanwhile; but another member may have taken it over after a pause of this one.
     */
    long order(int partition) {
        InternalPartition state = partitions.getPartition(partition, false);
        int version = state.version();
        if (!state.isLocal() || version != state.version()) {
            throw new RetryableHazelcastException("partition " + partition
                    + " belongs to another member now; nothing was appended");
        }
        return (long) version << TURN_BITS;
    }
}
