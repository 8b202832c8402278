package io.imapwal.hazelcast.settle;

import com.hazelcast.internal.serialization.Data;
import io.imapwal.hazelcast.append.AgentLink;
import io.imapwal.hazelcast.append.AgentLinks;
import io.imapwal.hazelcast.append.Change;
import io.imapwal.hazelcast.append.OrderGuard;
import io.imapwal.hazelcast.append.PlacedKeys;
import io.imapwal.hazelcast.append.Placements;
import io.imapwal.hazelcast.append.SchemaLog;
import io.imapwal.hazelcast.engine.JmxBeans;
import io.imapwal.hazelcast.engine.ThisMember;
import io.imapwal.hazelcast.read.AgentReaders;
import io.imapwal.hazelcast.read.LogEntry;
import io.imapwal.wire.AgentEndpoint;
import io.imapwal.wire.Membership;

import java.util.Collection;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import java.util.function.Consumer;

/** The maps of a member that have a log: the state of each, and what keeps memory like the log. */
public final class MemberMaps implements OwnMaps {
    private final ConcurrentMap<String, MapState> states = new ConcurrentHashMap<>();
    private final Context context;
    private final OrderGuard guard;
    private final JmxBeans beans;
    private final SettlementWorker worker;

    public MemberMaps(Context context, OrderGuard guard, SchemaLog schemas, JmxBeans beans) {
        this.context = context;
        this.guard = guard;
        this.beans = beans;
        this.worker = new SettlementWorker(context, schemas, states::values);
    }

    @Override
    public ThisMember member() {
        return context.member();
    }

    public AgentLinks links() {
        return context.links();
    }

    public AgentReaders readers() {
        return context.readers();
    }

    public OrderGuard guard() {
        return guard;
    }

    public PartitionOwnership ownership() {
        return context.ownership();
    }

    public Reconciler reconciler() {
        return context.reconciler();
    }

    @Override
    public Placements placements() {
        return context.placements();
    }

    public Collection<MapState> states() {
        return states.values();
    }

    public MapState state(String map) {
        return states.computeIfAbsent(map, name -> {
            MapState state = new MapState(context, worker, name);
            beans.add(state.bean(), name);
            return state;
        });
    }

    /** Whether memory is known to have all entries of the map in the partition. */
    public boolean isWhole(String map, int partition) {
        MapState state = states.get(map);
        return state != null && state.wholeness().whole(partition);
    }

    /** How many partitions of this agent's maps are not compared with the log yet. */
    public int unsettled(AgentEndpoint agent) {
        return states.values().stream()
                .filter(state -> state.isOpen() && state.settings().agent().equals(agent))
                .mapToInt(state -> state.wholeness().unsettledCount()).sum();
    }

    /** Begins to open a map. */
    public void use(String map) {
        state(map).opening().use(links().settings(map));
    }

    /** Forgets the state of a map. The next use reads the log again. */
    public void forget(String map) {
        state(map).close();
        reconciler().forget(map);
        placements().forget(map);
    }

    @Override
    public void doubt(String map, int partition) {
        state(map).doubt(partition, null);
        wake();
    }

    @Override
    public LogEntry newest(String map, Data key) {
        return readers().newest(state(map).settings(), map, List.of(key)).stream().findFirst()
                .orElse(null);
    }

    @Override
    public long knownView(String map) {
        AgentLink link = links().of(map);
        return link == null ? 0 : link.knownView();
    }

    @Override
    public void status(String map, Membership asker, boolean whenLoaded, Consumer<String> answer) {
        if (!member().cluster().isFellow(asker)) {
            answer.accept("member " + member().name() + " is not in the same cluster any more");
            return;
        }
        MapOpening opening = state(map).opening();
        String status = opening.status();
        if (whenLoaded && StatusOperation.MAY_LOAD.contains(status)) {
            opening.whenLoaded(() -> answer.accept(status));
        } else {
            answer.accept(status);
        }
    }

    SettlementWorker worker() {
        return worker;
    }

    /** There may be something to settle. */
    void wake() {
        worker.wake();
    }

    /** A member has left. */
    public void watch() {
        worker.watch();
    }

    /**
     * Sets a key in memory from the log.
     *
     * @param transaction that has changed the key in the log; or null
     */
    public void settle(String map, Data key, UUID transaction) {
        AgentLink link = links().of(map);
        if (link != null) {
            reconciler().add(link, map, key, transaction);
        }
    }

    /**
     * Sets keys in memory from the log, if the lost member coordinated a transaction that changes
     * them.
     */
    void settleTransactionsOf(UUID lost) {
        for (Placements.Left left : placements().of(lost)) {
            AgentLink link = links().of(left.map());
            if (link != null) {
                reconciler().addLost(link, left.map(), left.key(), left.transaction());
            }
        }
    }

    /** Logs that a partition of a map was cleared. This member owns the partition. */
    public void logClear(AgentLink link, String map, int partition) {
        PlacedKeys placed = new PlacedKeys(placements(), map).in(partition);
        link.append(List.of(Change.clear(map, guard.take(partition), member().partitionCount())));
        placed.end();
    }

    /** The newest view of that log that another member knows; 0: none. Waits for them. */
    public long askForView(AgentLink link) {
        return states.values().stream().filter(state -> links().of(state.map()) == link)
                .findFirst().map(state -> state.opening().peers().askForView()).orElse(0L);
    }

    public void close() {
        reconciler().close();
        worker.close();
        states.values().forEach(MapState::close);
    }
}
