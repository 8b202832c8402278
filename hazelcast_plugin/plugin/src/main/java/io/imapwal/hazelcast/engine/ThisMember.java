package io.imapwal.hazelcast.engine;

import com.hazelcast.cluster.Address;
import com.hazelcast.cluster.Member;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.instance.impl.HazelcastInstanceImpl;
import com.hazelcast.instance.impl.HazelcastInstanceProxy;
import com.hazelcast.internal.serialization.Data;
import com.hazelcast.logging.ILogger;
import com.hazelcast.map.impl.MapService;
import com.hazelcast.map.impl.MapServiceContext;
import com.hazelcast.spi.impl.InternalCompletableFuture;
import com.hazelcast.spi.impl.NodeEngine;
import com.hazelcast.spi.impl.NodeEngineImpl;
import com.hazelcast.spi.impl.operationservice.Operation;
import io.imapwal.wire.Membership;

import java.io.IOException;
import java.util.List;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;

import static com.hazelcast.cluster.memberselector.MemberSelectors.DATA_MEMBER_SELECTOR;

/** This member: its Hazelcast, its cluster, the other members, and whether it is about to leave. */
public final class ThisMember {
    /** Of all messages in the log of a member. */
    public static final String LOGGER = "io.imapwal.hazelcast";

    private final HazelcastInstanceImpl instance;
    private final NodeEngineImpl nodeEngine;
    private final CurrentCluster cluster;
    private final ILogger logger;
    /** Members that cannot read what the plug-in sends. */
    private final Set<UUID> withoutPlugin = ConcurrentHashMap.newKeySet();
    private volatile boolean merging;
    private volatile boolean leaving;
    private volatile boolean closed;

    public ThisMember(HazelcastInstanceImpl instance) {
        this.instance = instance;
        this.nodeEngine = instance.node.getNodeEngine();
        this.cluster = new CurrentCluster(nodeEngine);
        this.logger = nodeEngine.getLogger(LOGGER);
    }

    /** The member behind what Hazelcast gives to users. */
    public static HazelcastInstanceImpl original(HazelcastInstance instance) {
        if (instance instanceof HazelcastInstanceImpl impl) {
            return impl;
        }
        if (instance instanceof HazelcastInstanceProxy proxy) {
            return proxy.getOriginal();
        }
        throw new IllegalStateException("imap-wal needs a Hazelcast member, not "
                + instance.getClass().getName());
    }

    public NodeEngineImpl nodeEngine() {
        return nodeEngine;
    }

    public HazelcastInstance instance() {
        return instance;
    }

    public CurrentCluster cluster() {
        return cluster;
    }

    public ILogger logger() {
        return logger;
    }

    /** The name for messages. */
    public String name() {
        return String.valueOf(nodeEngine.getThisAddress());
    }

    public int partitionCount() {
        return nodeEngine.getPartitionService().getPartitionCount();
    }

    public int partition(Data key) {
        return nodeEngine.getPartitionService().getPartitionId(key);
    }

    public MapServiceContext maps() {
        return maps(nodeEngine);
    }

    public static MapServiceContext maps(NodeEngine nodeEngine) {
        MapService service = nodeEngine.getService(MapService.SERVICE_NAME);
        return service.getMapServiceContext();
    }

    /** The other members with data. */
    public List<Member> others() {
        return nodeEngine.getClusterService().getMembers(DATA_MEMBER_SELECTOR).stream()
                .filter(member -> !member.localMember()).toList();
    }

    /**
     * The members that may write in a view that this member claims, this one included.
     *
     * @throws IOException this member leaves that cluster, or has left it. Hazelcast clears its
     *                     list of members before it stops the threads that use it. A view with that
     *                     list would leave out all members that stay.
     */
    public Set<UUID> fellows(Membership membership) throws IOException {
        Set<UUID> members = cluster.members();
        // Checked after the list is read: it is cleared after this member is marked as leaving.
        if (leaving || !cluster.isPresent(membership)) {
            throw new IOException("this member leaves its cluster");
        }
        return members;
    }

    /** Sends an operation to a member once, without a second try. */
    public <T> InternalCompletableFuture<T> ask(Operation operation, Address member) {
        return nodeEngine.getOperationService().<T>createInvocationBuilder(
                MapService.SERVICE_NAME, operation, member).setTryCount(1).invoke();
    }

    /** Sends an operation to the owner of a partition, also to a later owner. */
    public <T> InternalCompletableFuture<T> invoke(Operation operation, int partition) {
        return nodeEngine.getOperationService()
                .invokeOnPartition(MapService.SERVICE_NAME, operation, partition);
    }

    /** A member could not read a question of the plug-in. */
    public void noteWithoutPlugin(UUID member) {
        withoutPlugin.add(member);
    }

    public boolean isWithoutPlugin(UUID member) {
        return withoutPlugin.contains(member);
    }

    /** Whether this member is shutting down, and its partitions migrate to others. */
    public boolean leaving() {
        return leaving;
    }

    public void leave() {
        leaving = true;
    }

    /** Whether this member is leaving its cluster for another one. */
    public boolean merging() {
        return merging;
    }

    public void merging(boolean now) {
        merging = now;
    }

    public boolean closed() {
        return closed;
    }

    public void close() {
        closed = true;
    }
}
