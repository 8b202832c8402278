package io.imapwal.hazelcast;

import com.hazelcast.cluster.Member;
import com.hazelcast.config.MapStoreConfig;
import com.hazelcast.internal.util.ExceptionUtil;
import com.hazelcast.internal.util.ThreadUtil;
import com.hazelcast.map.impl.MapContainer;
import com.hazelcast.map.impl.MapService;
import com.hazelcast.map.impl.MapServiceContext;
import com.hazelcast.map.impl.MapStoreWrapper;
import com.hazelcast.map.impl.operation.TriggerLoadIfNeededOperation;
import com.hazelcast.map.impl.recordstore.DefaultRecordStore;
import com.hazelcast.map.impl.recordstore.RecordStore;
import com.hazelcast.query.impl.IndexRegistry;
import com.hazelcast.query.impl.InternalIndex;
import com.hazelcast.spi.exception.RetryableHazelcastException;
import com.hazelcast.spi.impl.NodeEngineImpl;
import com.hazelcast.spi.impl.operationservice.Operation;

import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.atomic.AtomicReferenceArray;

import static com.hazelcast.cluster.memberselector.MemberSelectors.DATA_MEMBER_SELECTOR;

/**
 * What this member knows about one map: whether it may exist here at all, and whether the cluster has all of it.
 *
 * <pre>
 *            open: agent greeted; on the member that will load: every member's agent greeted, log merged
 *  closed ────────────────────────────▶ open ────────────────────────────────────▶ restored
 *    ▲      (fails: LogUnavailable,       │  Restorer here or on another member done    │
 *    │       tried again)                 │                                             │
 *    └────────────────────────────────────┴───────────── destroy ◀─────────────────────┘
 * </pre>
 *
 * Until restored, changes and loads are refused, whatever Hazelcast thinks of a partition: a backup that is promoted in the
 * middle of a load counts as loaded there.
 */
final class MapState {
    private static final long PAUSE_NANOS = TimeUnit.MILLISECONDS.toNanos(500);
    private static final long SHORT_WAIT_MS = 250;
    private static final long ASK_NANOS = TimeUnit.SECONDS.toNanos(2);

    /** With more maps than this, a gained partition gets no record store for maps that have none in it. */
    private static final int HELD_EMPTY_MAX = 200;

    private final WalPlugin plugin;
    private final String map;
    private final Wholeness wholeness;
    /** The record stores whose evictions are noticed. */
    private final AtomicReferenceArray<RecordStore<?>> watched;
    private volatile AgentSettings settings;
    private boolean informed;

    private CompletableFuture<Void> preparing;
    private long startedNanos;
    private long askedNanos = System.nanoTime() - PAUSE_NANOS;
    private volatile boolean open;
    /**
     * In which membership this member learned that the cluster has all of the map; null: in none.
     */
    private volatile Membership restored;
    /** Grows with each close: a restore that began before does not count after it. */
    private volatile int generation;

    MapState(WalPlugin plugin, String map) {
        this.plugin = plugin;
        this.map = map;
        this.wholeness = new Wholeness(map);
        this.watched = new AtomicReferenceArray<>(plugin.nodeEngine().getPartitionService().getPartitionCount());
    }

    String map() {
        return map;
    }

    Wholeness wholeness() {
        return wholeness;
    }

    /** How this member reaches the map's log; null until the map is used here. */
    AgentSettings settings() {
        return settings;
    }

    /** Partitions that this member gained before it knew of the map. */
    synchronized void inform() {
        if (!informed) {
            informed = true;
            plugin.partitions().gained().forEach(partition -> wholeness.doubt(partition, null));
        }
    }

    /** The partition has to be settled. Called on its thread, or on any thread if this was noticed late. */
    void doubt(int partition, UUID leaving) {
        wholeness.doubt(partition, leaving);
        if (restored()) {
            hold(partition);
        }
    }

    /**
     * Puts a gate before operations on the partition. On its thread, a record store is made to
     * carry the gate where memory has none: otherwise {@code size} and queries would make an empty
     * one, and count it.
     */
    private void hold(int partition) {
        boolean onItsThread = ThreadUtil.isRunningOnPartitionThread();
        RecordStore<?> store = store(partition);
        if (store == null && onItsThread && plugin.states().size() <= HELD_EMPTY_MAX && context().getExistingMapContainer(map) != null) {
            store = newStore(partition);
        }
        if (store instanceof DefaultRecordStore held) {
            if (held.getLoadingFutures().stream().noneMatch(Gate.class::isInstance)) {
                held.getLoadingFutures().add(new Gate(this, partition));
            }
            if (onItsThread) {
                OffloadGate.place(held, this, partition);
            }
        }
        if (onItsThread) {
            // Queries by an index would not notice the gate. Without the index they scan, and wait.
            setIndexed(partition, false);
        }
    }

    /** On the partition's thread: holds it, unless it was settled meanwhile. */
    void holdUnsettled(int partition) {
        Wholeness.Unsettled reason = wholeness.unsettled(partition);
        if (reason != null) {
            hold(partition);
            // An offloaded change is in the queue until memory has it.
            reason.quiet = !(store(partition) instanceof DefaultRecordStore held) || held.getOffloadedOperations().isEmpty();
        }
    }

    /**
     * On the partition's thread: memory has nothing of it any more. If other members have the rest
     * of the map, the map counts as restored as soon as it is used here: so the partition is
     * compared with the log then.
     */
    void emptied(int partition) {
        if (plugin.partitions().owns(partition)) {
            wholeness.doubt(partition, null);
        }
    }

    /**
     * The map was destroyed, in memory and in the log, or in the log only in part.
     *
     * @param complete nothing of it is left in the log: where memory has nothing, there is nothing
     *                 to compare
     */
    void destroyed(boolean complete) {
        if (!complete || restored()) {
            plugin.partitions().owned().forEach(partition -> doubt(partition, null));
            plugin.settlements().wake();
        }
    }

    /** A record store that does not ask Hazelcast to load the map. */
    RecordStore<?> newStore(int partition) {
        RecordStore<?> store = context().getPartitionContainer(partition).getRecordStore(map, true);
        store.setPreMigrationLoadedStatus(true);
        store.startLoading();
        return store;
    }

    /** Hazelcast uses the indexes of a member while all of its partitions count as indexed. */
    private void setIndexed(int partition, boolean indexed) {
        MapContainer container = context().getExistingMapContainer(map);
        IndexRegistry registry = container == null ? null : container.getGlobalIndexRegistry();
        if (registry != null) {
            InternalIndex[] indexes = registry.getIndexes();
            IndexRegistry.beginPartitionUpdate(indexes);
            if (indexed) {
                IndexRegistry.markPartitionAsIndexed(partition, indexes);
            } else {
                IndexRegistry.markPartitionAsUnindexed(partition, indexes);
            }
        }
    }

    /** Keys of the partition that are locked. */
    int locked(int partition) {
        RecordStore<?> store = store(partition);
        return store == null ? 0 : store.getLockedEntryCount();
    }

    /** Entries in memory. */
    int size(int partition) {
        RecordStore<?> store = store(partition);
        return store == null ? 0 : store.size();
    }

    /** On the partition's thread: memory says what the log says, and operations may continue. */
    void settled(Comparison comparison) {
        if (wholeness.settle(comparison.partition, comparison.reason)) {
            setIndexed(comparison.partition, true);
            if (store(comparison.partition) instanceof DefaultRecordStore held) {
                held.getLoadingFutures().removeIf(Gate.class::isInstance);
            }
        }
    }

    /**
     * Notices evictions in this partition, and clears of it. Called before an entry gets into it.
     */
    void watch(int partition) {
        RecordStore<?> store = store(partition);
        if (store != null && watched.get(partition) != store) {
            if (EvictionWatch.possible()) {
                EvictionWatch.watch(store, wholeness, partition);
            }
            MapStoreWrapper wrapper = store.getMapContainer().getMapStoreContext().getMapStoreWrapper();
            if (wrapper != null && wrapper.getImpl() instanceof WalMapStore mapStore) {
                LoggedClear.place(store, mapStore, partition);
            }
            watched.set(partition, store);
        }
    }

    private RecordStore<?> store(int partition) {
        return context().getPartitionContainer(partition).getExistingRecordStore(map);
    }

    private MapServiceContext context() {
        MapService service = plugin.nodeEngine().getService(MapService.SERVICE_NAME);
        return service.getMapServiceContext();
    }

    /** @throws RuntimeException retryable, while the partition waits to be settled; LogUnavailable, when it waits too long */
    void requireSettled(int partition) {
        if (!plugin.partitions().known(partition) || !wholeness.settled(partition)) {
            throw refusal(partition);
        }
    }

    boolean overdue(int partition) {
        AgentSettings known = settings;
        return known != null && wholeness.overdue(partition, known);
    }

    RuntimeException refusal(int partition) {
        AgentSettings known = settings;
        return known == null ? new RetryableHazelcastException("map \"" + map + "\" is being opened")
                : wholeness.refusal(partition, known, plugin.link(known).agent());
    }

    boolean restored() {
        Membership known = restored;
        return known != null && plugin.guard().isPresent(known);
    }

    /** It was here, and this member has dropped it from memory. */
    boolean dropped() {
        return generation > 0 && !restored();
    }

    int generation() {
        return generation;
    }

    /** @param present the membership in which this member was told */
    synchronized void setRestored(int ofGeneration, Membership present) {
        if (ofGeneration == generation && plugin.guard().isPresent(present)) {
            restored = present;
            // The first partitions of a new cluster are assigned without an event.
            FormerCluster.scannedPartitions(plugin.nodeEngine());
            plugin.settlements().wake();
        }
    }

    synchronized void close() {
        generation++;
        restored = null;
        open = false;
        preparing = null;
        // The next restore reads the log again: what is known of the partitions does not hold for it.
        wholeness.forgetAll();
        informed = false;
    }

    /**
     * Returns when the map may be created on this member. What takes long runs on a thread of its own: callers are often the
     * threads of partitions, which serve other maps too.
     *
     * @throws LogUnavailable              it may not now, and why
     * @throws RetryableHazelcastException it is being found out
     */
    void open(AgentSettings settings, boolean readThrough) {
        this.settings = settings;
        if (open) {
            return;
        }
        if (plugin.merging()) {
            throw new LogUnavailable("map \"" + map + "\" is not available: member " + plugin.member() + " is joining another cluster", null);
        }
        inform();
        plugin.partitions().noteOwned();
        CompletableFuture<Void> attempt;
        long left;
        synchronized (this) {
            boolean over = preparing != null && preparing.isDone();
            if (preparing == null || (over && System.nanoTime() - startedNanos > PAUSE_NANOS)) {
                preparing = new CompletableFuture<>();
                startedNanos = System.nanoTime();
                start(preparing, settings, readThrough, generation);
            }
            attempt = preparing;
            left = SHORT_WAIT_MS - TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - startedNanos);
        }
        try {
            attempt.get(Math.max(0, left), TimeUnit.MILLISECONDS);
        } catch (TimeoutException e) {
            throw new RetryableHazelcastException("map \"" + map + "\" is being restored: its log is being read by "
                    + plugin.link(settings).agent());
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new LogUnavailable("map \"" + map + "\": interrupted while its log was looked for", e);
        } catch (ExecutionException e) {
            // One exception each: Hazelcast writes the caller's stack into it.
            throw new LogUnavailable(e.getCause().getMessage(), e.getCause().getCause());
        }
    }

    /** @throws RetryableHazelcastException until the cluster has all of the map */
    void requireRestored() {
        if (restored()) {
            return;
        }
        synchronized (this) {
            if (System.nanoTime() - askedNanos > PAUSE_NANOS) {
                askedNanos = System.nanoTime();
                int asked = generation;
                Membership present = plugin.guard().membership();
                thread(() -> {
                    if (peers(present).restored) {
                        setRestored(asked, present);
                    } else {
                        // The member that was loading may have died: its backup takes over when asked.
                        plugin.nodeEngine().getOperationService().invokeOnPartition(MapService.SERVICE_NAME,
                                new TriggerLoadIfNeededOperation(map), namePartition());
                    }
                });
            }
        }
        throw new RetryableHazelcastException("map \"" + map + "\" is being restored from its log");
    }

    /** What other members have to say about a map. @param missing why a member cannot take entries; null when all can */
    record Peers(boolean restored, String missing) {
    }

    /** @param present the membership in which this member asks */
    Peers peers(Membership present) {
        NodeEngineImpl nodeEngine = plugin.nodeEngine();
        List<CompletableFuture<Object>> answers = new ArrayList<>();
        List<Member> members = new ArrayList<>();
        for (Member member : nodeEngine.getClusterService().getMembers(DATA_MEMBER_SELECTOR)) {
            if (!member.localMember()) {
                members.add(member);
                answers.add(nodeEngine.getOperationService().createInvocationBuilder(MapService.SERVICE_NAME,
                        (Operation) new StatusOperation(map, present), member.getAddress()).setTryCount(1).invoke());
            }
        }
        String missing = null;
        for (int i = 0; i < answers.size(); i++) {
            String answer;
            try {
                answer = String.valueOf(answers.get(i).get(60, TimeUnit.SECONDS));
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
                answer = "interrupted";
            } catch (ExecutionException | TimeoutException e) {
                answer = "member " + members.get(i).getAddress() + " does not answer: " + AgentLink.reason(ExceptionUtil.peel(e));
            }
            if (answer.equals(StatusOperation.RESTORED)) {
                return new Peers(true, null);
            } else if (!answer.equals(StatusOperation.READY)) {
                missing = answer;
            }
        }
        return new Peers(false, missing);
    }

    /** A member that joins is not in the list of a view that was claimed before, so it asks the others for the view's number. */
    private void learnView(AgentLink link) {
        if (!plugin.nodeEngine().getClusterService().isJoined()) {
            throw new LogUnavailable("member " + plugin.member() + " has not joined its cluster yet", null);
        }
        if (link.knownView() == 0) {
            link.learn(askForView());
        }
    }

    /** The newest view of this map's log that another member knows; 0: none. */
    long askForView() {
        NodeEngineImpl nodeEngine = plugin.nodeEngine();
        List<CompletableFuture<Long>> answers = new ArrayList<>();
        for (Member member : nodeEngine.getClusterService().getMembers(DATA_MEMBER_SELECTOR)) {
            if (!member.localMember()) {
                answers.add(nodeEngine.getOperationService().createInvocationBuilder(MapService.SERVICE_NAME,
                        (Operation) new ViewOperation(map, plugin.guard().member().toString()), member.getAddress()).setTryCount(1).invoke());
            }
        }
        long deadline = System.nanoTime() + ASK_NANOS;
        long newest = 0;
        for (CompletableFuture<Long> answer : answers) {
            try {
                newest = Math.max(newest, answer.get(Math.max(1, deadline - System.nanoTime()), TimeUnit.NANOSECONDS));
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
                return newest;
            } catch (ExecutionException | TimeoutException e) {
                plugin.logger().fine("imap-wal: a member does not say which view it knows", e);
            }
        }
        return newest;
    }

    /** This member's answer to another one's {@link #peers}. */
    String status() {
        if (restored()) {
            return StatusOperation.RESTORED;
        }
        try {
            MapStoreConfig config = plugin.nodeEngine().getConfig().findMapConfig(map).getMapStoreConfig();
            if (!config.isEnabled()) {
                return "member " + plugin.member() + " has no map-store for map \"" + map + "\"";
            }
            AgentLink link = plugin.link(AgentSettings.of(map, config.getProperties()));
            learnView(link);
            link.connect();
            return StatusOperation.READY;
        } catch (RuntimeException e) {
            return AgentLink.reason(e);
        }
    }

    private void start(CompletableFuture<Void> attempt, AgentSettings settings, boolean readThrough, int ofGeneration) {
        Membership present = plugin.guard().membership();
        thread(() -> {
            try {
                prepare(settings, readThrough, ofGeneration, present);
                synchronized (this) {
                    open |= ofGeneration == generation;
                }
                attempt.complete(null);
            } catch (Throwable e) {
                String why = "map \"" + map + "\" is not available, because its log is not: " + AgentLink.reason(e)
                        + ". It comes back by itself as soon as the log does";
                plugin.logger().warning("imap-wal: " + why);
                attempt.completeExceptionally(new LogUnavailable(why, e instanceof LogUnavailable ? e.getCause() : e));
            }
        });
    }

    private void prepare(AgentSettings settings, boolean readThrough, int ofGeneration, Membership present) throws Exception {
        AgentLink link = plugin.link(settings);
        learnView(link);
        link.connect();
        link.viewWithout(plugin.partitions().departed());
        Peers peers = peers(present);
        if (peers.restored) {
            setRestored(ofGeneration, present);
        }
        boolean loads = !peers.restored && plugin.nodeEngine().getPartitionService().getPartition(namePartition()).isLocal();
        if (loads && peers.missing != null) {
            throw new IllegalStateException(peers.missing);
        }
        if (loads || readThrough) {
            // Makes the agent merge the logs now, not when a partition's thread waits for it.
            try (AgentReader reader = plugin.newReader(settings)) {
                reader.keys(map, null, 1);
            } catch (java.io.IOException e) {
                throw new java.io.IOException(link.agent() + " cannot read the log: " + AgentLink.reason(e), e);
            }
        }
    }

    private int namePartition() {
        NodeEngineImpl nodeEngine = plugin.nodeEngine();
        return nodeEngine.getPartitionService().getPartitionId(nodeEngine.toData(map));
    }

    private void thread(Runnable work) {
        Thread thread = new Thread(work, "imap-wal-" + map);
        thread.setDaemon(true);
        thread.start();
    }
}
