package io.imapwal.hazelcast;

import com.hazelcast.cluster.Member;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.instance.impl.HazelcastInstanceImpl;
import com.hazelcast.instance.impl.HazelcastInstanceProxy;
import com.hazelcast.internal.serialization.Data;
import com.hazelcast.internal.serialization.InternalSerializationService;
import com.hazelcast.logging.ILogger;
import com.hazelcast.map.impl.MapService;
import com.hazelcast.spi.impl.NodeEngine;
import com.hazelcast.spi.impl.NodeEngineImpl;
import com.hazelcast.spi.impl.operationservice.Operation;
import com.hazelcast.spi.properties.ClusterProperty;

import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.function.Supplier;

import static com.hazelcast.cluster.memberselector.MemberSelectors.DATA_MEMBER_SELECTOR;

/**
 * The state that all maps of one member share: links to agents, the state of each map, the
 * reconciler. There is one per Hazelcast instance.
 */
final class WalPlugin {
    private static final String CONTEXT = "io.imapwal.hazelcast";
    private static final String VERSION = version();

    private final NodeEngineImpl nodeEngine;
    private final HazelcastInstance instance;
    private final ILogger logger;
    private final CurrentCluster cluster;
    private final OrderGuard guard;
    private final SchemaLog schemas;
    private final Reconciler reconciler;
    private final SettlementWorker settlements;
    private final ConcurrentMap<AgentEndpoint, AgentLink> links = new ConcurrentHashMap<>();
    private final ConcurrentMap<AgentEndpoint, Readers> readers = new ConcurrentHashMap<>();
    private final ConcurrentMap<String, MapState> maps = new ConcurrentHashMap<>();
    private final ConcurrentMap<AgentEndpoint, Candidates> candidates = new ConcurrentHashMap<>();
    private final Placements placements;
    private final TransactionInquiry inquiry = new TransactionInquiry(this);
    private final LocalMaps localMaps = new LocalMaps(this);
    private final LeftOut leftOut = new LeftOut(this, localMaps);
    private final JmxBeans beans;
    /** Members that cannot read what the plug-in sends. */
    private final Set<UUID> withoutPlugin = ConcurrentHashMap.newKeySet();
    private volatile boolean merging;
    private volatile boolean leaving;
    private volatile boolean closed;

    private WalPlugin(HazelcastInstanceImpl instance) {
        this.instance = instance;
        this.nodeEngine = instance.node.getNodeEngine();
        this.logger = nodeEngine.getLogger("io.imapwal.hazelcast");
        this.cluster = new CurrentCluster(nodeEngine);
        this.guard = new OrderGuard(nodeEngine, cluster);
        this.placements = new Placements(guard);
        this.schemas = new SchemaLog(nodeEngine);
        this.reconciler = new Reconciler(this);
        this.settlements = new SettlementWorker(this);
        this.beans = new JmxBeans(instance.getName(), logger,
                nodeEngine.getProperties().getBoolean(ClusterProperty.ENABLE_JMX));
        beans.add(new MemberBean());
        PythonPickle.register((InternalSerializationService) nodeEngine.getSerializationService(),
                logger);
        instance.getLifecycleService().addLifecycleListener(event -> {
            switch (event.getState()) {
                case SHUTTING_DOWN -> {
                    reconciler.drain();
                    leaving = true;
                }
                case MERGING -> dropAll();
                case MERGED, MERGE_FAILED -> {
                    leftOut.forget();
                    merging = false;
                }
                case SHUTDOWN -> close();
                default -> { }
            }
        });
        instance.getCluster().addMembershipListener(leftOut.members());
    }

    static WalPlugin of(HazelcastInstance instance) {
        HazelcastInstanceImpl member;
        if (instance instanceof HazelcastInstanceImpl impl) {
            member = impl;
        } else if (instance instanceof HazelcastInstanceProxy proxy) {
            member = proxy.getOriginal();
        } else {
            throw new IllegalStateException("imap-wal needs a Hazelcast member, not "
                    + instance.getClass().getName());
        }
        return (WalPlugin) member.getUserContext()
                .computeIfAbsent(CONTEXT, name -> new WalPlugin(member));
    }

    static WalPlugin of(NodeEngine nodeEngine) {
        return of(nodeEngine.getHazelcastInstance());
    }

    /** Null if no map with a log was used yet. */
    static WalPlugin existing(NodeEngine nodeEngine) {
        return (WalPlugin) nodeEngine.getHazelcastInstance().getUserContext().get(CONTEXT);
    }

    NodeEngineImpl nodeEngine() {
        return nodeEngine;
    }

    HazelcastInstance instance() {
        return instance;
    }

    ILogger logger() {
        return logger;
    }

    int partitionCount() {
        return nodeEngine.getPartitionService().getPartitionCount();
    }

    CurrentCluster cluster() {
        return cluster;
    }

    OrderGuard guard() {
        return guard;
    }

    SchemaLog schemas() {
        return schemas;
    }

    Reconciler reconciler() {
        return reconciler;
    }

    /** The keys that transactions are changing. */
    Placements placements() {
        return placements;
    }

    /** Finds out which transactions have ended. */
    TransactionInquiry inquiry() {
        return inquiry;
    }

    /** Compares partitions with the log. */
    SettlementWorker settlements() {
        return settlements;
    }

    /** The partitions that this member owns, how it got them, and the members that have left. */
    PartitionOwnership ownership() {
        return PartitionOwnership.of(nodeEngine);
    }

    Collection<MapState> states() {
        return maps.values();
    }

    /** Whether this member is shutting down, and its partitions migrate to others. */
    boolean leaving() {
        return leaving;
    }

    /** A member could not read a question of the plug-in. */
    void noteWithoutPlugin(UUID member) {
        withoutPlugin.add(member);
    }

    boolean isWithoutPlugin(UUID member) {
        return withoutPlugin.contains(member);
    }

    String member() {
        return String.valueOf(nodeEngine.getThisAddress());
    }

    boolean closed() {
        return closed;
    }

    /** Whether this member is leaving its cluster for another one. */
    boolean merging() {
        return merging;
    }

    LocalMaps localMaps() {
        return localMaps;
    }

    /** Forgets the state of a map. The next use reads the log again. */
    void forget(String map) {
        state(map).close();
        reconciler.forget(map);
        placements.forget(map);
    }

    LeftOut leftOut() {
        return leftOut;
    }

    Collection<AgentLink> links() {
        return links.values();
    }

    /** The link of a map by this member's configuration; null: the map has no log here. */
    AgentLink linkOf(String map) {
        return WalMapStoreFactory.isNamed(nodeEngine, map) ? link(settings(map)) : null;
    }

    /**
     * Logs the destruction of a map of which this member has nothing in memory.
     *
     * @throws LogUnavailable see {@link Destruction}
     */
    void destroy(String map) {
        Destruction destruction = new Destruction(this, map, settings(map));
        try {
            destruction.run();
        } finally {
            state(map).close();
            destruction.informMembers();
        }
    }

    /** Begins to open a map. */
    void use(String map) {
        state(map).opening().use(settings(map));
    }

    private AgentSettings settings(String map) {
        return AgentSettings.of(map,
                nodeEngine.getConfig().findMapConfig(map).getMapStoreConfig().getProperties());
    }

    /** Sets a key in memory from the log, which has a change of that transaction. */
    void settle(String map, Data key, UUID transaction) {
        AgentLink link = linkOf(map);
        if (link != null) {
            reconciler.add(link, map, key, transaction);
        }
    }

    /**
     * Sets keys in memory from the log, if the lost member coordinated a transaction that changes
     * them.
     */
    void settleTransactionsOf(UUID lost) {
        for (Placements.Left left : placements.of(lost)) {
            AgentLink link = linkOf(left.map());
            if (link != null) {
                reconciler.addLost(link, left.map(), left.key(), left.transaction());
            }
        }
    }

    /** Logs that a partition of a map was cleared. This member owns the partition. */
    void logClear(AgentLink link, String map, int partition) {
        PlacedKeys placed = new PlacedKeys(placements, map).in(partition);
        link.append(List.of(Change.clear(map, guard.take(partition), partitionCount())));
        placed.end();
    }

    /**
     * Sends an operation to every other member with data, and waits until each has answered or
     * failed.
     */
    void informOthers(Supplier<Operation> what) throws InterruptedException {
        List<Future<?>> sent = new ArrayList<>();
        for (Member member : nodeEngine.getClusterService().getMembers(DATA_MEMBER_SELECTOR)) {
            if (!member.localMember()) {
                sent.add(nodeEngine.getOperationService()
                        .invokeOnTarget(MapService.SERVICE_NAME, what.get(), member.getAddress()));
            }
        }
        for (Future<?> each : sent) {
            try {
                each.get();
            } catch (ExecutionException e) {
                logger.fine("imap-wal: a member was not informed", e);
            }
        }
    }

    /** The newest view of that log that another member knows; 0: none. Waits for them. */
    long askForView(AgentLink link) {
        for (String map : maps.keySet()) {
            if (linkOf(map) == link) {
                return maps.get(map).opening().peers().askForView();
            }
        }
        return 0;
    }

    /**
     * Drops all maps, because Hazelcast would merge the entries that are in memory. The log has
     * them.
     */
    private void dropAll() {
        merging = true;
        // Also maps that are not in memory here: their state belongs to this cluster.
        localMaps.drop(maps.keySet());
        // A key may have got its place while its map was closed. Later ones are refused.
        placements.clear();
    }

    /**
     * Maps with the same agent share one link, with the timeouts of the first one. A map with
     * other {@code copies} is refused: {@link Copies#require}.
     */
    AgentLink link(AgentSettings settings) {
        return links.computeIfAbsent(settings.agent(), agent -> {
            AgentLink link = new AgentLink(candidates(settings), guard, schemas, reconciler,
                    ownership().repeats(), logger, member(), leftOut::suspect);
            beans.add(link.bean(), agent);
            return link;
        });
    }

    private final class MemberBean implements JmxBeans.Member {
        @Override
        public String getVersion() {
            return VERSION;
        }

        @Override
        public int getMaps() {
            return maps.size();
        }

        @Override
        public int getKeysInDoubt() {
            return reconciler.size();
        }
    }

    Readers readers(AgentSettings settings) {
        return readers.computeIfAbsent(settings.agent(), agent ->
                new Readers(() -> newReader(settings)));
    }

    /** The shared reader, for single keys. */
    AgentReader reader(AgentSettings settings) {
        return readers(settings).shared();
    }

    /** A new reader, which the caller closes. */
    AgentReader newReader(AgentSettings settings) {
        return new AgentReader(candidates(settings));
    }

    /**
     * One identity for all connections to one endpoint: an agent gives each identity a session, and
     * two endpoints may be two addresses of one agent.
     */
    Candidates candidates(AgentSettings settings) {
        return candidates.computeIfAbsent(settings.agent(), agent ->
                new Candidates(settings, cluster, VERSION,
                        nodeEngine.getPartitionService().getPartitionCount(),
                        () -> new Pulse.State(unsettled(agent),
                                Durability.of(nodeEngine).report())));
    }

    /** How many partitions of this agent's maps are not compared with the log yet. */
    private int unsettled(AgentEndpoint agent) {
        return maps.values().stream()
                .filter(state -> state.isOpen() && state.settings().agent().equals(agent))
                .mapToInt(state -> state.wholeness().unsettledCount()).sum();
    }

    /** Whether memory is known to have all entries of the map in the partition. */
    boolean isWhole(String map, int partition) {
        MapState state = maps.get(map);
        return state != null && state.wholeness().whole(partition);
    }

    MapState state(String map) {
        return maps.computeIfAbsent(map, name -> {
            MapState state = new MapState(this, name);
            beans.add(state.bean(), name);
            return state;
        });
    }

    private void close() {
        closed = true;
        beans.close();
        leftOut.close();
        reconciler.close();
        settlements.close();
        maps.values().forEach(MapState::close);
        links.values().forEach(AgentLink::close);
        readers.values().forEach(Readers::close);
        candidates.values().forEach(Candidates::close);
    }

    private static String version() {
        try (InputStream in = WalPlugin.class.getResourceAsStream("plugin.properties")) {
            Properties properties = new Properties();
            if (in != null) {
                properties.load(in);
            }
            return properties.getProperty("version", "unknown");
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }
}
