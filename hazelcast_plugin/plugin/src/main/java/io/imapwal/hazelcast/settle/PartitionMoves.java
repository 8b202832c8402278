package io.imapwal.hazelcast.settle;

import com.hazelcast.cluster.Address;
import com.hazelcast.cluster.Member;
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
import com.hazelcast.map.impl.operation.EntryOperation;
import com.hazelcast.map.impl.operation.KeyBasedMapOperation;
import com.hazelcast.map.impl.operation.MapOperation;
import com.hazelcast.spi.exception.RetryableHazelcastException;
import com.hazelcast.spi.impl.NodeEngine;
import com.hazelcast.spi.impl.NodeEngineImpl;
import com.hazelcast.spi.impl.operationservice.Operation;
import io.imapwal.hazelcast.append.AgentLink;
import io.imapwal.hazelcast.engine.Composed;
import io.imapwal.hazelcast.engine.PartitionThreads;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;

/**
 * Learns from Hazelcast how partitions move, and which members leave. For each map, partitions that
 * this member did not get whole from their former owner are settled from the log.
 *
 * <pre>
 *  became owner by                 seen as                         state of the partition
 *  the first assignment            no event                        not whole: settled at first use
 *  assignment of a lost partition  no event                        not whole: settled at first use
 *  migration                       a commit after a CarriedState   whole, if it has the map
 *  promotion of a backup           a commit without CarriedState   gained by loss: settled at once
 * </pre>
 *
 * Hazelcast calls this class on the partition's thread, while no operation of the partition runs.
 * {@link SettlementWorker} then settles the partitions.
 */
public final class PartitionMoves implements ManagedService, MigrationAwareService,
        MembershipAwareService {
    /** Hazelcast finds the service by this name. */
    public static final String NAME = "io.imapwal:settlement";

    /** How many maps a migration opens at the same time, each with a thread. */
    private static final int OPENED_AT_ONCE = 16;

    /**
     * A member that leaves waits this long for the end of a transaction. After that, the next owner
     * compares the keys with the log when this member has left: then a place from it no longer
     * counts.
     */
    private static final long PLACED_NANOS = TimeUnit.SECONDS.toNanos(5);

    /** Changed by tests only. */
    public volatile long placedNanos = PLACED_NANOS;
    private final NodeEngine nodeEngine;
    private final PartitionOwnership ownership;
    private final InternalPartitionService partitions;
    private final ConcurrentMap<Integer, CarriedState.Contents> arrived = new ConcurrentHashMap<>();
    private final ConcurrentMap<Integer, Set<UUID>> replaced = new ConcurrentHashMap<>();

    public PartitionMoves(NodeEngine nodeEngine) {
        this.nodeEngine = nodeEngine;
        this.partitions = (InternalPartitionService) nodeEngine.getPartitionService();
        this.ownership = new PartitionOwnership(nodeEngine);
    }

    public static PartitionMoves of(NodeEngine nodeEngine) {
        return nodeEngine.getService(NAME);
    }

    public PartitionOwnership ownership() {
        return ownership;
    }

    @Override
    public void init(NodeEngine engine, Properties properties) {
        // The first map with a log makes what needs it.
    }

    /**
     * This member leaves its cluster for another one. It owns no partition, and starts like a new
     * member. A member that left the former cluster may be in the next one with the same UUID: a
     * half that is left out of a view counts the other half as lost.
     */
    @Override
    public void reset() {
        new FormerCluster(nodeEngine).forget(partition -> {
            forget(partition);
            arrived.remove(partition);
            replaced.remove(partition);
        });
        ownership.departures().clear();
        ownership.repeats().begin();
    }

    @Override
    public void shutdown(boolean terminate) {
        // The plug-in's own listener does it.
    }

    /**
     * A partition migrates to this member when the agent answers, and the maps with entries in the
     * partition are open here. Until then its owner keeps and serves it.
     *
     * @throws RetryableHazelcastException the maps are being opened; Hazelcast migrates the
     *                                     partition later
     */
    void requireOpen(int partition, CarriedState.Contents carried) {
        if (carried.whole().isEmpty()) {
            return;
        }
        MemberMaps maps = Composed.of(nodeEngine, MemberMaps.class);
        List<String> closed = carried.whole().stream()
                .filter(map -> maps.links().isDurable(map)
                        && !maps.state(map).isOpen())
                .sorted(Comparator.comparing(map -> !carried.filled().contains(map))).toList();
        Optional<String> needed = closed.stream()
                .filter(map -> carried.filled().contains(map)
                        || maps.links().of(map).session() == null)
                .findFirst();
        if (needed.isPresent()) {
            // The other maps too: each later refusal delays all migrations by 3 s.
            closed.stream().limit(OPENED_AT_ONCE).forEach(maps::use);
            throw new RetryableHazelcastException("partition " + partition
                    + " is migrated when this member has opened map \"" + needed.get() + "\"");
        }
    }

    void arrive(int partition, CarriedState.Contents state) {
        arrived.put(partition, state);
    }

    /** Its partitions are migrated to it. */
    @Override
    public void memberAdded(MembershipServiceEvent event) {
        ownership.repeats().look();
    }

    @Override
    public void memberRemoved(MembershipServiceEvent event) {
        ClusterService cluster = ((NodeEngineImpl) nodeEngine).getClusterService();
        UUID removed = event.getMember().getUuid();
        if (!cluster.isJoined() || cluster.getMember(removed) != null) {
            // It left the former cluster. Hazelcast reports this on another thread, perhaps after
            // reset(). In one cluster, a UUID is not used again.
            return;
        }
        ownership.repeats().begin();
        ownership.departures().add(Set.of(removed));
        MemberMaps maps = maps();
        if (maps != null) {
            maps.watch();
            maps.settleTransactionsOf(removed);
        }
    }

    @Override
    public Operation prepareReplicationOperation(PartitionReplicationEvent event) {
        if (event.getReplicaIndex() != 0) {
            return null;
        }
        int partition = event.getPartitionId();
        Set<String> whole = new HashSet<>();
        Set<String> partial = new HashSet<>();
        Set<String> filled = new HashSet<>();
        Set<String> doubted = Set.of();
        Map<String, List<Data>> changed = Map.of();
        MemberMaps maps = maps();
        if (maps != null) {
            for (MapState state : maps.states()) {
                Wholeness.Unsettled reason = state.wholeness().unsettled(partition);
                if (reason != null && reason.leaving != null
                        && ((NodeEngineImpl) nodeEngine).getClusterService()
                        .getMember(reason.leaving) != null) {
                    throw new RetryableHazelcastException("partition " + partition
                            + " is migrated when member " + reason.leaving
                            + ", which left changes whose outcome is not known, has left the"
                            + " cluster");
                }
                if (state.wholeness().whole(partition)) {
                    whole.add(state.map());
                }
                if (state.wholeness().partial(partition)) {
                    partial.add(state.map());
                }
                if (state.size(partition) > 0) {
                    filled.add(state.map());
                }
            }
            Set<String> placed = maps.placements().maps(partition);
            if (!placed.isEmpty() && !(maps.member().leaving()
                    && maps.placements().areOlder(partition, placedNanos))) {
                throw new RetryableHazelcastException("partition " + partition
                        + " is not migrated before a transaction that changes it has ended");
            }
            List<AgentLink> slow = maps.links().all().stream()
                    .filter(link -> !link.awaitOutcomes(partition)).toList();
            doubted = maps.reconciler().maps(partition);
            doubted.addAll(placed);
            if (!slow.isEmpty()) {
                maps.states().stream().map(MapState::map)
                        .filter(map -> slow.contains(maps.links().of(map))).forEach(doubted::add);
            }
            changed = maps.reconciler().changed(partition);
            addUnderWay(partition, whole, changed);
            if (!doubted.isEmpty() && !maps.member().leaving()) {
                throw new RetryableHazelcastException("partition " + partition
                        + " has changes whose outcome is not known yet; it is migrated when they"
                        + " are settled");
            }
        }
        if (maps != null && whole.isEmpty() && doubted.isEmpty() && changed.isEmpty()
                && partial.isEmpty() && isWithoutPlugin(maps, event.getTarget())) {
            return null;  // it could not read it, and gets entries that are in no log
        }
        return new CarriedState(new CarriedState.Contents(whole, doubted, changed, partial, filled,
                nodeEngine.getLocalMember().getUuid()));
    }

    private boolean isWithoutPlugin(MemberMaps maps, Address address) {
        Member target = ((NodeEngineImpl) nodeEngine).getClusterService().getMember(address);
        return target != null && maps.member().isWithoutPlugin(target.getUuid());
    }

    /**
     * With offload, a change that the log has may not be in memory yet. Hazelcast repeats it at the
     * next owner, but not if this member dies. An entry processor may have changed memory already,
     * and must not find that when it is repeated.
     */
    private void addUnderWay(int partition, Set<String> whole, Map<String, List<Data>> changed) {
        forMaps(state -> {
            MapOperation operation = state.underWay(partition);
            if (operation instanceof KeyBasedMapOperation single
                    && !(operation instanceof EntryOperation)) {
                changed.computeIfAbsent(state.map(), name -> new ArrayList<>())
                        .add(single.getKey());
            } else if (operation != null) {
                whole.remove(state.map());
            }
        });
    }

    @Override
    public void beforeMigration(PartitionMigrationEvent event) {
        if (event.getMigrationEndpoint() == MigrationEndpoint.DESTINATION
                && event.getNewReplicaIndex() == 0) {
            // It belongs to an earlier migration, which failed.
            arrived.remove(event.getPartitionId());
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
        }
    }

    private void forMaps(Consumer<MapState> action) {
        MemberMaps maps = maps();
        if (maps != null) {
            maps.states().forEach(action);
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
        CarriedState.Contents state = arrived.remove(partition);
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

    /**
     * If the owner is lost while it migrates the partition, this is called for the migration after
     * the promotion has begun, so it must not forget whom the promotion replaces.
     */
    @Override
    public void rollbackMigration(PartitionMigrationEvent event) {
        if (event.getMigrationEndpoint() == MigrationEndpoint.DESTINATION) {
            arrived.remove(event.getPartitionId());
        }
    }

    private void gainedByLoss(int partition, Set<UUID> former) {
        ownership.repeats().begin();
        ownership.departures().add(former);
        forMaps(state -> state.doubt(partition, null));
        holdLater(partition);
        wake();
    }

    private void migrated(int partition, CarriedState.Contents carried) {
        ownership.repeats().begin();
        boolean named = !carried.whole().isEmpty() || !carried.doubted().isEmpty()
                || !carried.changed().isEmpty();
        MemberMaps maps = named ? Composed.of(nodeEngine, MemberMaps.class) : maps();
        if (maps == null) {
            return;
        }
        maps.states().forEach(state -> state.wholeness().forget(partition));
        for (String map : carried.whole()) {
            // A map that was destroyed meanwhile, or has no entries in the partition, is compared
            // with the log at its next use here.
            if (maps.state(map).isOpen()) {
                maps.state(map).wholeness().arrived(partition);
            }
        }
        for (String map : carried.partial()) {
            maps.state(map).wholeness().evicted(partition);
        }
        for (String map : carried.changed().keySet()) {
            carried.changed().get(map).forEach(key -> maps.settle(map, key, null));
        }
        for (String map : carried.doubted()) {
            maps.state(map).doubt(partition, carried.from());
        }
        // The maps that did not arrive whole.
        maps.states().stream().filter(MapState::isOpen).forEach(state -> state.gained(partition));
        holdLater(partition);
        wake();
    }

    /**
     * Hazelcast's map service gets the same commit after this service, and then counts the
     * partition as indexed.
     */
    private void holdLater(int partition) {
        new PartitionThreads(nodeEngine)
                .next(partition, id -> forMaps(state -> state.holdIndexesOf(id)));
    }

    private void forget(int partition) {
        forMaps(state -> state.forget(partition));
    }

    private void wake() {
        MemberMaps maps = maps();
        if (maps != null) {
            maps.wake();
        }
    }

    /** Null while no map with a log was used on this member. */
    private MemberMaps maps() {
        return Composed.existing(nodeEngine, MemberMaps.class);
    }
}
