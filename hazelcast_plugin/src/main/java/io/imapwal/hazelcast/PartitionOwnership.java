package io.imapwal.hazelcast;

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
import com.hazelcast.spi.properties.ClusterProperty;
import com.hazelcast.spi.properties.HazelcastProperties;

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
import java.util.stream.Collectors;
import java.util.stream.IntStream;

import static com.hazelcast.cluster.memberselector.MemberSelectors.DATA_MEMBER_SELECTOR;

/**
 * Which partitions this member owns, and how it became the owner of each. For each map, partitions
 * that it did not get whole from their former owner are settled from the log.
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
 *
 * <p>It also keeps the members that have left ({@link #departures}). As the only service of the
 * plug-in, it installs the {@link MapServiceHooks} when Hazelcast starts it.
 */
public final class PartitionOwnership implements ManagedService, MigrationAwareService,
        MembershipAwareService {
    /** Hazelcast finds the service by this name. */
    static final String NAME = "io.imapwal:settlement";

    /** How many maps a migration opens at the same time, each with a thread. */
    private static final int OPENED_AT_ONCE = 16;

    /**
     * A member that leaves waits this long for the end of a transaction. After that, the next owner
     * compares the keys with the log when this member has left: then a place from it no longer
     * counts.
     */
    private static final long PLACED_NANOS = TimeUnit.SECONDS.toNanos(5);

    /** A part of a split network claims its view within this time after it has noticed the loss. */
    private static final long CLAIM_MS = 500;

    /** The time for which clients repeat an operation by default. */
    private static final long CLIENT_MS = 120_000;

    /** Changed by tests only. */
    volatile long placedNanos = PLACED_NANOS;
    private final NodeEngine nodeEngine;
    private final Durability durability;
    private final InternalPartitionService partitions;
    private final ConcurrentMap<Integer, CarriedState> arrived = new ConcurrentHashMap<>();
    private final ConcurrentMap<Integer, Set<UUID>> replaced = new ConcurrentHashMap<>();
    /** The members that a new view must leave out. */
    private final Departures departures;
    private final Repeats repeats;

    /** An error of the configuration ends the start of the member here, unlike in {@link #init}. */
    PartitionOwnership(NodeEngine nodeEngine) {
        this.nodeEngine = nodeEngine;
        this.durability = new Durability(nodeEngine);
        this.partitions = (InternalPartitionService) nodeEngine.getPartitionService();
        // Members notice the same loss at their next heartbeats.
        long heartbeatMs = nodeEngine.getProperties()
                .getMillis(ClusterProperty.HEARTBEAT_INTERVAL_SECONDS);
        this.departures = new Departures(TimeUnit.MILLISECONDS.toNanos(heartbeatMs + CLAIM_MS),
                () -> nodeEngine.getClusterService().getSize(DATA_MEMBER_SELECTOR),
                System::nanoTime);
        this.repeats = new Repeats(TimeUnit.MILLISECONDS.toNanos(repeatedMs(
                nodeEngine.getProperties())), this::present, System::nanoTime);
    }

    /** The time for which operations may be repeated after a member has left. */
    private static long repeatedMs(HazelcastProperties properties) {
        long membersMs = properties.getInteger(ClusterProperty.INVOCATION_MAX_RETRY_COUNT)
                * properties.getMillis(ClusterProperty.INVOCATION_RETRY_PAUSE);
        // The member that repeats it may be the last to notice the loss.
        return Math.max(membersMs, CLIENT_MS)
                + properties.getMillis(ClusterProperty.MAX_NO_HEARTBEAT_SECONDS);
    }

    private Set<UUID> present() {
        return nodeEngine.getClusterService().getMembers().stream().map(Member::getUuid)
                .collect(Collectors.toSet());
    }

    static PartitionOwnership of(NodeEngine nodeEngine) {
        return nodeEngine.getService(NAME);
    }

    @Override
    public void init(NodeEngine engine, Properties properties) {
        MapServiceHooks.install(engine);
        Structures.install(engine, durability);
        durability.reportStart();
    }

    /** Which maps and structures are durable. */
    Durability durability() {
        return durability;
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
        departures.clear();
        repeats.begin();
    }

    @Override
    public void shutdown(boolean terminate) {
        // The plug-in's own listener does it.
    }

    /** The members that have left or were replaced as owners: they may not write any more. */
    Departures departures() {
        return departures;
    }

    /**
     * Also true before the commit of a promotion: Hazelcast accepts reads as soon as the partition
     * table names this member.
     */
    boolean isOwner(int partition) {
        return partitions.getPartition(partition, false).isLocal();
    }

    List<Integer> owned() {
        return IntStream.range(0, partitions.getPartitionCount()).filter(this::isOwner).boxed()
                .toList();
    }

    /** Whether this member owns it, and it is not migrating. */
    boolean owns(int partition) {
        InternalPartition now = partitions.getPartition(partition, false);
        return now.isLocal() && !now.isMigrating();
    }

    /**
     * Whether the partitions of the cluster have owners. If not, Hazelcast is made to assign them.
     */
    boolean assigned() {
        return partitions.getPartition(0).getOwnerOrNull() != null;
    }

    /**
     * A partition migrates to this member when the agent answers, and the maps with entries in the
     * partition are open here. Until then its owner keeps and serves it.
     *
     * @throws RetryableHazelcastException the maps are being opened; Hazelcast migrates the
     *                                     partition later
     */
    void requireOpen(int partition, CarriedState carried) {
        if (carried.whole().isEmpty()) {
            return;
        }
        WalPlugin plugin = WalPlugin.of(nodeEngine);
        List<String> closed = carried.whole().stream()
                .filter(map -> WalMapStoreFactory.isNamed(nodeEngine, map)
                        && !plugin.state(map).isOpen())
                .sorted(Comparator.comparing(map -> !carried.filled().contains(map))).toList();
        Optional<String> needed = closed.stream()
                .filter(map -> carried.filled().contains(map)
                        || plugin.linkOf(map).session() == null)
                .findFirst();
        if (needed.isPresent()) {
            // The other maps too: each later refusal delays all migrations by 3 s.
            closed.stream().limit(OPENED_AT_ONCE).forEach(plugin::use);
            throw new RetryableHazelcastException("partition " + partition
                    + " is migrated when this member has opened map \""
                    + needed.get() + "\"");
        }
    }

    void arrive(int partition, CarriedState state) {
        arrived.put(partition, state);
    }

    /** Whether an operation may be a repetition. */
    Repeats repeats() {
        return repeats;
    }

    /** Its partitions are migrated to it. */
    @Override
    public void memberAdded(MembershipServiceEvent event) {
        repeats.look();
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
        repeats.begin();
        departures.add(Set.of(removed));
        WalPlugin plugin = plugin();
        if (plugin != null) {
            plugin.settlements().watch();
            plugin.settleTransactionsOf(removed);
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
        WalPlugin plugin = plugin();
        if (plugin != null) {
            for (MapState state : plugin.states()) {
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
            Set<String> placed = plugin.placements().maps(partition);
            if (!placed.isEmpty() && !(plugin.leaving()
                    && plugin.placements().areOlder(partition, placedNanos))) {
                throw new RetryableHazelcastException("partition " + partition
                        + " is not migrated before a transaction that changes it has ended");
            }
            List<AgentLink> slow = plugin.links().stream()
                    .filter(link -> !link.awaitOutcomes(partition)).toList();
            doubted = plugin.reconciler().maps(partition);
            doubted.addAll(placed);
            if (!slow.isEmpty()) {
                plugin.states().stream().map(MapState::map)
                        .filter(map -> slow.contains(plugin.linkOf(map))).forEach(doubted::add);
            }
            changed = plugin.reconciler().changed(partition);
            addUnderWay(partition, whole, changed);
            if (!doubted.isEmpty() && !plugin.leaving()) {
                throw new RetryableHazelcastException("partition " + partition
                        + " has changes whose outcome is not known yet; it is migrated when they"
                        + " are settled");
            }
        }
        if (plugin != null && whole.isEmpty() && doubted.isEmpty() && changed.isEmpty()
                && partial.isEmpty() && isWithoutPlugin(plugin, event.getTarget())) {
            return null;  // it could not read it, and gets entries that are in no log
        }
        return new CarriedState(whole, doubted, changed, partial, filled,
                nodeEngine.getLocalMember().getUuid());
    }

    private boolean isWithoutPlugin(WalPlugin plugin, Address address) {
        Member target = ((NodeEngineImpl) nodeEngine).getClusterService().getMember(address);
        return target != null && plugin.isWithoutPlugin(target.getUuid());
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
                changed.computeIfAbsent(state.map(), map -> new ArrayList<>())
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
        repeats.begin();
        departures.add(former);
        forMaps(state -> state.doubt(partition, null));
        holdLater(partition);
        wake();
    }

    private void migrated(int partition, CarriedState carried) {
        repeats.begin();
        boolean named = !carried.whole().isEmpty() || !carried.doubted().isEmpty()
                || !carried.changed().isEmpty();
        WalPlugin plugin = named ? WalPlugin.of(nodeEngine) : plugin();
        if (plugin == null) {
            return;
        }
        plugin.states().forEach(state -> state.wholeness().forget(partition));
        for (String map : carried.whole()) {
            // A map that was destroyed meanwhile, or has no entries in the partition, is compared
            // with the log at its next use here.
            if (plugin.state(map).isOpen()) {
                plugin.state(map).wholeness().arrived(partition);
            }
        }
        for (String map : carried.partial()) {
            plugin.state(map).wholeness().evicted(partition);
        }
        for (String map : carried.changed().keySet()) {
            AgentLink link = plugin.linkOf(map);
            for (Data key : link == null ? List.<Data>of() : carried.changed().get(map)) {
                plugin.reconciler().add(link, map, key, null);
            }
        }
        for (String map : carried.doubted()) {
            plugin.state(map).doubt(partition, carried.from());
        }
        // The maps that did not arrive whole.
        plugin.states().stream().filter(MapState::isOpen).forEach(state -> state.gained(partition));
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
        WalPlugin plugin = plugin();
        if (plugin != null) {
            plugin.settlements().wake();
        }
    }

    /** Null while no map with a log was used on this member. */
    private WalPlugin plugin() {
        return WalPlugin.existing(nodeEngine);
    }
}
