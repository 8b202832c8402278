package io.imapwal.hazelcast;

import com.hazelcast.internal.cluster.ClusterService;
import com.hazelcast.internal.partition.InternalPartition;
import com.hazelcast.internal.partition.InternalPartitionService;
import com.hazelcast.internal.partition.MigrationAwareService;
import com.hazelcast.internal.partition.MigrationEndpoint;
import com.hazelcast.internal.partition.PartitionMigrationEvent;
import com.hazelcast.internal.partition.PartitionReplica;
import com.hazelcast.internal.partition.PartitionReplicationEvent;
import com.hazelcast.internal.serialization.Data;
import com.hazelcast.internal.services.ManagedService;
import com.hazelcast.internal.services.MembershipAwareService;
import com.hazelcast.internal.services.MembershipServiceEvent;
import com.hazelcast.spi.exception.RetryableHazelcastException;
import com.hazelcast.spi.impl.NodeEngine;
import com.hazelcast.spi.impl.NodeEngineImpl;
import com.hazelcast.spi.impl.operationservice.Operation;

import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.function.Consumer;
import java.util.stream.IntStream;

/**
 * Knows how this member became the owner of each of its partitions. Those that it did not get whole
 * from their former owner are settled from the log.
 *
 * <pre>
 *  became owner by                      seen as                                         then
 *  the first assignment                 owner before any member has left                known
 *  migration                            commit, after a CarriedState has arrived        known; what it says is not whole is settled
 *  promotion of a backup                commit without one                              gained by loss
 *  assignment of a lost partition       owner, and none of the above (no event)         gained by loss
 * </pre>
 *
 * The callbacks come on the partition's thread, while no operation of the partition runs.
 */
public final class SettlementService implements ManagedService, MigrationAwareService, MembershipAwareService {
    static final String NAME = "io.imapwal:settlement";

    private final NodeEngine nodeEngine;
    private final InternalPartitionService partitions;
    /** 1: this member owns the partition, and has handled how it became the owner. */
    private final AtomicIntegerArray known;
    /** Gained by loss, and still owned: for maps that are opened on this member later. */
    private final Set<Integer> gained = ConcurrentHashMap.newKeySet();
    private final ConcurrentMap<Integer, CarriedState> arrived = new ConcurrentHashMap<>();
    private final ConcurrentMap<Integer, Set<UUID>> replaced = new ConcurrentHashMap<>();
    /**
     * Members that have left, or were replaced as owners: a view of the cluster without them is needed.
     * They are kept, since a map of another agent may be opened later: 16 bytes for each member.
     */
    private final Set<UUID> departed = new HashSet<>();
    /** No member has left yet. */
    private volatile boolean quiet = true;

    SettlementService(NodeEngine nodeEngine) {
        this.nodeEngine = nodeEngine;
        this.partitions = (InternalPartitionService) nodeEngine.getPartitionService();
        this.known = new AtomicIntegerArray(partitions.getPartitionCount());
    }

    static SettlementService of(NodeEngine nodeEngine) {
        return nodeEngine.getService(NAME);
    }

    @Override
    public void init(NodeEngine engine, Properties properties) {
        LoggedTransactions.install(engine);
    }

    /**
     * This member leaves its cluster for another one: it owns nothing, and starts like a new member.
     * A member that left the former cluster may be in the next one, with the same UUID: a half that
     * is left out of a view counts the other half as lost.
     */
    @Override
    public void reset() {
        new FormerCluster(nodeEngine).forget(partition -> {
            forget(partition);
            arrived.remove(partition);
            replaced.remove(partition);
        });
        synchronized (departed) {
            departed.clear();
        }
        quiet = true;
    }

    @Override
    public void shutdown(boolean terminate) {
        // the plug-in's own listener does it
    }

    boolean quiet() {
        return quiet;
    }

    /** The members that may not write any more. */
    Set<UUID> departed() {
        synchronized (departed) {
            return new HashSet<>(departed);
        }
    }

    /** The partitions that were gained by loss. A map that is new on this member has to settle them. */
    Set<Integer> gained() {
        return Set.copyOf(gained);
    }

    /** Whether it is known how this member got the partition; if not, its settlement begins. Cheap: called for each change. */
    boolean known(int partition) {
        if (quiet || known.get(partition) == 1) {
            return true;
        }
        InternalPartition now = partitions.getPartition(partition, false);
        if (!now.isLocal() || now.isMigrating()) {
            // It belongs to another member, or soon will: an operation on it finds that out.
            return true;
        }
        gainedByLoss(partition, Set.of());
        return false;
    }

    /** Whether this member is the partition's owner, or is just becoming it. */
    boolean owns(int partition) {
        return partitions.getPartition(partition, false).isLocal();
    }

    List<Integer> owned() {
        return IntStream.range(0, known.length()).filter(this::owns).boxed().toList();
    }

    /** Finds partitions that were assigned to this member without an event. */
    void findAssigned() {
        for (int partition = 0; partition < known.length(); partition++) {
            known(partition);
        }
    }

    /** While no member has left, all that this member owns was assigned or migrated to it: nothing can have been lost. */
    void noteOwned() {
        for (int partition = 0; partition < known.length() && quiet; partition++) {
            InternalPartition now = partitions.getPartition(partition, false);
            if (now.isLocal() && !now.isMigrating()) {
                known.set(partition, 1);
            }
        }
    }

    void arrive(int partition, CarriedState state) {
        arrived.put(partition, state);
    }

    @Override
    public void memberAdded(MembershipServiceEvent event) {
        noteOwned();
    }

    @Override
    public void memberRemoved(MembershipServiceEvent event) {
        ClusterService cluster = ((NodeEngineImpl) nodeEngine).getClusterService();
        UUID removed = event.getMember().getUuid();
        if (!cluster.isJoined() || cluster.getMember(removed) != null) {
            // It left the former cluster: Hazelcast reports this on another thread, perhaps after
            // reset(). Within one cluster, a UUID does not come back.
            return;
        }
        depart(Set.of(removed));
        WalPlugin plugin = plugin();
        if (plugin != null) {
            plugin.settlements().watch();
            plugin.settleTransactionsOf(removed);
        }
    }

    void depart(Set<UUID> members) {
        quiet = false;
        synchronized (departed) {
            departed.addAll(members);
        }
    }

    @Override
    public Operation prepareReplicationOperation(PartitionReplicationEvent event) {
        if (event.getReplicaIndex() != 0) {
            return null;
        }
        int partition = event.getPartitionId();
        if (!quiet && known.get(partition) == 0) {
            gainedByLoss(partition, Set.of());
        }
        boolean lost = gained.contains(partition);
        Set<String> settled = new HashSet<>();
        Set<String> unsettled = new HashSet<>();
        Set<String> partial = new HashSet<>();
        Set<String> doubted = Set.of();
        Map<String, List<Data>> changed = Map.of();
        WalPlugin plugin = plugin();
        if (plugin != null) {
            for (MapState state : plugin.states()) {
                Wholeness.Unsettled reason = state.wholeness().unsettled(partition);
                if (reason != null && reason.leaving != null
                        && ((NodeEngineImpl) nodeEngine).getClusterService().getMember(reason.leaving) != null) {
                    throw new RetryableHazelcastException("partition " + partition + " is migrated when member " + reason.leaving
                            + ", which left changes whose outcome is not known, has left the cluster");
                }
                if (state.dropped() || !state.wholeness().settled(partition)) {
                    unsettled.add(state.map());
                } else if (lost) {
                    settled.add(state.map());
                }
                if (state.wholeness().partial(partition)) {
                    partial.add(state.map());
                }
            }
            if (plugin.placements().in(partition)) {
                throw new RetryableHazelcastException("partition " + partition
                        + " is not migrated before a transaction that changes it has ended");
            }
            List<AgentLink> slow = plugin.links().stream().filter(link -> !link.awaitOutcomes(partition)).toList();
            doubted = plugin.settler().maps(partition);
            if (!slow.isEmpty()) {
                plugin.states().stream().map(MapState::map).filter(map -> slow.contains(plugin.linkOf(map))).forEach(doubted::add);
            }
            changed = plugin.settler().changed(partition);
            if (!doubted.isEmpty() && !plugin.leaving()) {
                throw new RetryableHazelcastException("partition " + partition + " has changes whose outcome"
                        + " is not known yet; it is migrated when they are settled");
            }
        }
        return new CarriedState(lost, settled, unsettled, doubted, changed, partial, nodeEngine.getLocalMember().getUuid());
    }

    @Override
    public void beforeMigration(PartitionMigrationEvent event) {
        if (event.getMigrationEndpoint() == MigrationEndpoint.DESTINATION && event.getNewReplicaIndex() == 0) {
            InternalPartition before = partitions.getPartition(event.getPartitionId(), false);
            Set<UUID> owners = new HashSet<>();
            for (int index = 0; index < event.getCurrentReplicaIndex(); index++) {
                PartitionReplica replica = before.getReplica(index);
                if (replica != null) {
                    owners.add(replica.uuid());
                }
            }
            owners.remove(nodeEngine.getLocalMember().getUuid());
            replaced.put(event.getPartitionId(), owners);
            if (wasBackup(event)) {
                // Hazelcast lets reads in as soon as the partition table names this member, which is
                // before the commit, and a backup may lag.
                forMaps(state -> state.doubt(event.getPartitionId(), null));
            }
        }
    }

    private static boolean wasBackup(PartitionMigrationEvent event) {
        return event.getNewReplicaIndex() == 0 && event.getCurrentReplicaIndex() > 0;
    }

    private void forMaps(Consumer<MapState> action) {
        WalPlugin plugin = plugin();
        if (plugin != null) {
            plugin.states().forEach(action);
        }
    }

    @Override
    public void commitMigration(PartitionMigrationEvent event) {
        int partition = event.getPartitionId();
        if (event.getMigrationEndpoint() == MigrationEndpoint.SOURCE) {
            if (event.getCurrentReplicaIndex() == 0 && event.getNewReplicaIndex() != 0) {
                forget(partition);
            }
            return;
        }
        CarriedState state = arrived.remove(partition);
        Set<UUID> former = replaced.remove(partition);
        if (event.getNewReplicaIndex() != 0) {
            return;
        }
        if (state == null) {
            gainedByLoss(partition, former == null ? Set.of() : former);
        } else {
            migrated(partition, state);
        }
    }

    @Override
    public void rollbackMigration(PartitionMigrationEvent event) {
        if (event.getMigrationEndpoint() == MigrationEndpoint.DESTINATION) {
            arrived.remove(event.getPartitionId());
            replaced.remove(event.getPartitionId());
            if (wasBackup(event)) {
                forMaps(state -> state.wholeness().forget(event.getPartitionId()));
            }
        }
    }

    private void gainedByLoss(int partition, Set<UUID> former) {
        depart(former);
        gained.add(partition);
        known.set(partition, 1);
        WalPlugin plugin = plugin();
        if (plugin != null) {
            for (MapState state : plugin.states()) {
                state.doubt(partition, null);
            }
            plugin.settlements().wake();
        }
    }

    private void migrated(int partition, CarriedState carried) {
        known.set(partition, 1);
        if (carried.gained()) {
            gained.add(partition);
        } else {
            gained.remove(partition);
        }
        WalPlugin plugin = plugin();
        boolean named = !carried.unsettled().isEmpty() || !carried.doubted().isEmpty() || !carried.partial().isEmpty()
                || !carried.changed().isEmpty();
        if (plugin == null && !named) {
            return;
        }
        plugin = WalPlugin.of(nodeEngine);
        for (MapState state : plugin.states()) {
            state.wholeness().forget(partition);
            state.watch(partition);
            if (carried.unsettled(state.map())) {
                state.doubt(partition, null);
            }
        }
        for (String map : carried.unsettled()) {
            plugin.state(map).doubt(partition, null);
        }
        for (String map : carried.partial()) {
            plugin.state(map).wholeness().evicted(partition);
        }
        for (String map : carried.changed().keySet()) {
            AgentLink link = plugin.linkOf(map);
            for (Data key : link == null ? List.<Data>of() : carried.changed().get(map)) {
                plugin.settler().add(link, map, key, null);
            }
        }
        for (String map : carried.doubted()) {
            plugin.state(map).doubt(partition, carried.from());
        }
        plugin.settlements().wake();
    }

    private void forget(int partition) {
        known.set(partition, 0);
        gained.remove(partition);
        forMaps(state -> state.wholeness().forget(partition));
    }

    /** Null while no map with a log was used on this member. */
    private WalPlugin plugin() {
        return WalPlugin.existing(nodeEngine);
    }
}
