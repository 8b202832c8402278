package io.imapwal.hazelcast;

import com.hazelcast.cluster.Member;
import com.hazelcast.config.MapStoreConfig;
import com.hazelcast.internal.util.ExceptionUtil;
import com.hazelcast.internal.util.ThreadUtil;
import com.hazelcast.map.impl.MapService;
import com.hazelcast.map.impl.MapServiceContext;
import com.hazelcast.map.impl.recordstore.RecordStore;
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
import java.util.concurrent.locks.ReentrantLock;

import static com.hazelcast.cluster.memberselector.MemberSelectors.DATA_MEMBER_SELECTOR;

/**
 * What this member knows about one map: whether it may exist here at all, and which of its partitions are whole in memory.
 *
 * <pre>
 *            every member's agent greeted       every member has it open; this one's partitions settled
 *  closed ────────────────────────────▶ open ──────────────────────────────────────────────▶ loaded
 *    ▲      (fails: LogUnavailable,       │                                                      │
 *    │       tried again)                 │                                                      │
 *    └────────────────────────────────────┴──────────── destroy ◀────────────────────────────────┘
 * </pre>
 *
 * Each member loads the partitions that it owns, from its own agent: a restore is a settlement of partitions with nothing in
 * memory. Operations on a partition wait until it is whole, whatever Hazelcast thinks of it.
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
    private final HeldIndexes indexes = new HeldIndexes();
    /** Held while partitions of the map are settled: by one thread at a time. */
    private final ReentrantLock settling = new ReentrantLock();
    private volatile AgentSettings settings;

    private CompletableFuture<Void> preparing;
    private long startedNanos;
    private volatile boolean open;
    /** All partitions that this member owned were settled once. */
    private volatile boolean loaded;
    /** The other members have done so too, or it has been waited for. */
    private volatile boolean loadedEverywhere;
    /** Grows with each close: what began before does not count after it. */
    private volatile int generation;

    MapState(WalPlugin plugin, String map) {
        this.plugin = plugin;
        this.map = map;
        this.wholeness = new Wholeness(map, plugin.nodeEngine().getPartitionService().getPartitionCount());
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

    ReentrantLock settling() {
        return settling;
    }

    boolean isOpen() {
        return open;
    }

    boolean isLoaded() {
        return loaded;
    }

    boolean isLoadedEverywhere() {
        return loadedEverywhere;
    }

    /** {@code getMap} may return. Hazelcast waits for a second if it then finds a partition that is not whole. */
    void awaitOthers(long deadline) throws InterruptedException {
        Membership present = plugin.guard().membership();
        for (long pauseMs = 1; peers(present).loading() && System.nanoTime() - deadline < 0; pauseMs *= 2) {
            TimeUnit.MILLISECONDS.sleep(pauseMs);
        }
        loadedEverywhere = loaded;
    }

    /** Each partition that this member owned has been settled. @param ofGeneration the generation in which that began */
    synchronized void setLoaded(int ofGeneration) {
        loaded |= open && ofGeneration == generation;
    }

    /** The partition has to be settled: memory and log may differ. Called on its thread, or on any thread if this was noticed late. */
    void doubt(int partition, UUID leaving) {
        wholeness.doubt(partition, leaving, !loaded);
        hold(partition);
    }

    /** On the partition's thread: this member becomes its owner. It has to be settled if it did not arrive whole. */
    void gained(int partition) {
        wholeness.demand(partition, !loaded);
        hold(partition);
    }

    /** Whether operations on the partition wait. Backups do not: each partition is compared with the log when it gets this owner. */
    boolean holds(int partition) {
        return !wholeness.whole(partition) && plugin.partitions().isOwner(partition);
    }

    /** An operation needs the partition: it is settled if this member owns it and it is not whole. */
    void demand(int partition) {
        if (open && plugin.partitions().owns(partition) && wholeness.demand(partition, !loaded)) {
            plugin.settlements().wake();
        }
    }

    /** All partitions that this member owns. */
    void demandAll() {
        int count = plugin.nodeEngine().getPartitionService().getPartitionCount();
        for (int partition = 0; partition < count; partition++) {
            if (!wholeness.whole(partition) && plugin.partitions().owns(partition)) {
                wholeness.demand(partition, !loaded);
            }
        }
    }

    /** The partition has another owner. This member may keep a backup, and become its owner again. */
    void forget(int partition) {
        wholeness.forget(partition);
        indexes.forget(partition);
        hold(partition);
    }

    private void hold(int partition) {
        if (!wholeness.whole(partition) && ThreadUtil.isRunningOnPartitionThread()) {
            holdIndexes(partition);
        }
    }

    /** When what runs on the partition's thread now has ended. */
    void holdIndexesLater(int partition) {
        new PartitionThreads(plugin.nodeEngine()).later(partition, this::holdIndexesOf);
    }

    /** On the partition's thread: if it waits, queries do not use the indexes. */
    void holdIndexesOf(int partition) {
        if (holds(partition)) {
            holdIndexes(partition);
        }
    }

    /**
     * On the partition's thread, after a loss: {@code clear} does nothing where memory has no record
     * store, so there is one that holds it. Not for very many maps, because of the memory.
     */
    void holdUnsettled(int partition) {
        Wholeness.Unsettled reason = wholeness.unsettled(partition);
        if (reason == null) {
            return;
        }
        if (!plugin.partitions().isOwner(partition)) {
            // It moved when this was noticed on another thread. Its next owner settles it.
            forget(partition);
            return;
        }
        if (loaded && plugin.states().size() <= HELD_EMPTY_MAX && context().getExistingMapContainer(map) != null) {
            context().getPartitionContainer(partition).getRecordStore(map);
        }
        hold(partition);
        // An offloaded change is in the queue until memory has it.
        RecordStore<?> store = store(partition);
        reason.quiet = store == null || store.getOffloadedOperations().isEmpty();
    }

    /** The map was destroyed, in the log and in memory, or only in part. */
    void destroyed() {
        for (int partition : plugin.partitions().owned()) {
            if (open) {
                doubt(partition, null);
            } else {
                // The next use of the map here reads the log.
                wholeness.forget(partition);
            }
        }
        plugin.settlements().wake();
    }

    /** On the partition's thread: memory has nothing of it any more. */
    void emptied(int partition) {
        wholeness.forget(partition);
        indexes.forget(partition);
    }

    /** On the partition's thread, while it waits. */
    void holdIndexes(int partition) {
        indexes.hold(context().getExistingMapContainer(map), partition);
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

    /** Whether memory has nothing of a partition that waits, not even a place in an index. */
    boolean empty(int partition) {
        return size(partition) == 0 && !indexes.any(partition);
    }

    /**
     * Memory says what the log says, and operations may continue. On the partition's thread, unless
     * the partition is {@link #empty}.
     */
    void settled(Comparison comparison) {
        if (wholeness.settle(comparison.partition, comparison.reason)) {
            indexes.release(comparison.partition);
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
        if (!wholeness.whole(partition)) {
            demand(partition);
            throw plugin.partitions().owns(partition) ? refusal(partition) : OrderGuard.moved(partition);
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

    int generation() {
        return generation;
    }

    synchronized void close() {
        generation++;
        loaded = false;
        loadedEverywhere = false;
        open = false;
        preparing = null;
        // The next use reads the log again: what is known of the partitions does not hold for it.
        wholeness.forgetAll();
        indexes.forgetAll();
    }

    /**
     * Returns when the map may be created on this member. What takes long runs on a thread of its own: callers are often the
     * threads of partitions, which serve other maps too.
     *
     * @throws LogUnavailable              it may not now, and why
     * @throws RetryableHazelcastException it is being found out
     */
    void open(AgentSettings settings) {
        this.settings = settings;
        if (open) {
            return;
        }
        if (plugin.merging()) {
            throw new LogUnavailable("map \"" + map + "\" is not available: member " + plugin.member() + " is joining another cluster", null);
        }
        CompletableFuture<Void> attempt;
        long left;
        synchronized (this) {
            attempt = beginToOpen(settings);
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

    private synchronized CompletableFuture<Void> beginToOpen(AgentSettings opening) {
        boolean over = preparing != null && preparing.isDone();
        if (preparing == null || (over && System.nanoTime() - startedNanos > PAUSE_NANOS)) {
            preparing = new CompletableFuture<>();
            startedNanos = System.nanoTime();
            start(preparing, opening, generation);
        }
        return preparing;
    }

    /**
     * What other members have to say about a map.
     *
     * @param loaded  a member has it in use
     * @param missing why a member cannot take entries; null when all can
     * @param opening a member that has not opened the map yet, and so would not take backups; null: all have
     * @param loading a member has opened the map, and not yet loaded all of its partitions
     */
    record Peers(boolean loaded, String missing, String opening, boolean loading) {
    }

    /** @param present as which member this one asks */
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
        boolean loaded = false;
        String missing = null;
        String opening = null;
        boolean loading = false;
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
            switch (answer) {
                case StatusOperation.LOADED -> loaded = true;
                case StatusOperation.OPEN -> loading = true;
                case StatusOperation.READY -> opening = "member " + members.get(i).getAddress() + " is opening the map";
                default -> missing = answer;
            }
        }
        return new Peers(loaded, missing, opening, loading);
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
        if (open) {
            return loaded ? StatusOperation.LOADED : StatusOperation.OPEN;
        }
        try {
            MapStoreConfig config = plugin.nodeEngine().getConfig().findMapConfig(map).getMapStoreConfig();
            if (!config.isEnabled()) {
                return "member " + plugin.member() + " has no map-store for map \"" + map + "\"";
            }
            AgentSettings opening = AgentSettings.of(map, config.getProperties());
            AgentLink link = plugin.link(opening);
            learnView(link);
            link.connect();
            if (!plugin.merging()) {
                // So that it loads its partitions while the other member loads its own.
                beginToOpen(opening);
            }
            return StatusOperation.READY;
        } catch (RuntimeException e) {
            return AgentLink.reason(e);
        }
    }

    private void start(CompletableFuture<Void> attempt, AgentSettings opening, int ofGeneration) {
        Membership present = plugin.guard().membership();
        thread(() -> {
            try {
                prepare(opening, present);
            } catch (Throwable e) {
                String why = "map \"" + map + "\" is not available, because its log is not: " + AgentLink.reason(e)
                        + ". It comes back by itself as soon as the log does";
                plugin.logger().warning("imap-wal: " + why);
                attempt.completeExceptionally(new LogUnavailable(why, e instanceof LogUnavailable ? e.getCause() : e));
                return;
            }
            synchronized (this) {
                if (ofGeneration == generation && plugin.guard().isPresent(present)) {
                    settings = opening;
                    // Partitions may have waited since before the map was used here.
                    wholeness.progress();
                    open = true;
                }
            }
            attempt.complete(null);
            plugin.settlements().load(this, ofGeneration);
        });
    }

    private void prepare(AgentSettings opening, Membership present) throws Exception {
        AgentLink link = plugin.link(opening);
        learnView(link);
        link.connect();
        // Before other members may send backups.
        plugin.partitions().replaceRecordStores();
        link.viewWithout(plugin.partitions().departed());
        Peers peers = peers(present);
        if (!peers.loaded && peers.missing != null) {
            throw new IllegalStateException(peers.missing);
        }
        plugin.partitions().assigned();
        // Makes the agent merge the logs now, not when a partition's thread waits for it.
        try (AgentReader reader = plugin.newReader(opening)) {
            reader.keys(map, null, 1);
        } catch (java.io.IOException e) {
            throw new java.io.IOException(link.agent() + " cannot read the log: " + AgentLink.reason(e), e);
        }
    }

    private void thread(Runnable work) {
        Thread thread = new Thread(work, "imap-wal-" + map);
        thread.setDaemon(true);
        thread.start();
    }
}
