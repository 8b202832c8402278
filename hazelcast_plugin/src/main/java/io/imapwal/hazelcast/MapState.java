package io.imapwal.hazelcast;

import com.hazelcast.config.IndexConfig;
import com.hazelcast.config.MapStoreConfig;
import com.hazelcast.internal.partition.InternalPartitionService;
import com.hazelcast.internal.serialization.Data;
import com.hazelcast.internal.util.ThreadUtil;
import com.hazelcast.map.impl.MapContainer;
import com.hazelcast.map.impl.MapService;
import com.hazelcast.map.impl.MapServiceContext;
import com.hazelcast.map.impl.operation.MapOperation;
import com.hazelcast.map.impl.recordstore.RecordStore;
import com.hazelcast.query.impl.IndexRegistry;
import com.hazelcast.query.impl.IndexUtils;
import com.hazelcast.spi.exception.RetryableHazelcastException;
import com.hazelcast.spi.impl.operationservice.ReadonlyOperation;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.ReentrantLock;

/**
 * The state of one map on this member: whether it is open, and which of its partitions are whole in
 * memory.
 *
 * <pre>
 * closed ──▶ open      the agent of every member was greeted; a failure is LogUnavailable, and it
 *                      is tried again
 * open ──▶ loaded      every member has the map open, and the partitions of this one are settled
 * open ──▶ closed      destroy
 * loaded ──▶ closed    destroy
 * </pre>
 *
 * Each member loads the partitions that it owns, from its own agent: a restore is a settlement of
 * partitions with nothing in memory. Operations on a partition wait until it is whole, whatever
 * state Hazelcast gives it. {@link MapPeers} asks the other members about the map.
 */
final class MapState {
    private static final long PAUSE_NANOS = TimeUnit.MILLISECONDS.toNanos(500);
    /** For this time after a failed attempt, later attempts fail with the same error. */
    private static final long FAILED_NANOS = TimeUnit.SECONDS.toNanos(5);
    /** How long an open waits until Hazelcast has assigned the cluster's partitions. */
    private static final long ASSIGNED_NANOS = TimeUnit.SECONDS.toNanos(2);
    /** The interval in which a waiting thread checks whether its time has passed. */
    private static final long LOOK_MS = 50;

    private final WalPlugin plugin;
    private final String map;
    private final MapPeers peers;
    private final Wholeness wholeness;
    private final HeldIndexes indexes = new HeldIndexes();
    private final FirstQuestion question;
    /** Held while partitions of the map are settled: by one thread at a time. */
    private final ReentrantLock settling = new ReentrantLock();
    private volatile AgentSettings settings;

    /** A thread opens the map. */
    private boolean opening;
    /** No attempt to open the map begins before this time. */
    private long nextNanos = System.nanoTime();
    /** Why the last attempt that ended failed; null: it did not fail. */
    private LogUnavailable failure;
    private long failedNanos;
    private volatile boolean open;
    /** All partitions that this member owned were settled once. */
    private volatile boolean loaded;
    /** Increases with each close: tasks that began before it do not count after it. */
    private volatile int generation;
    /** The actions that run when the map is loaded or closed. */
    private final List<Runnable> awaited = new ArrayList<>();

    MapState(WalPlugin plugin, String map) {
        this.plugin = plugin;
        this.map = map;
        this.peers = new MapPeers(plugin, map);
        this.question = new FirstQuestion(
                (InternalPartitionService) plugin.nodeEngine().getPartitionService());
        this.wholeness = new Wholeness(map,
                plugin.nodeEngine().getPartitionService().getPartitionCount());
    }

    String map() {
        return map;
    }

    MapPeers peers() {
        return peers;
    }

    Wholeness wholeness() {
        return wholeness;
    }

    /** Whether the log has entries of the map, asked while it was opened. */
    FirstQuestion question() {
        return question;
    }

    /** The link to the map's log; null until the map is used here. */
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

    /**
     * For {@code getMap}: returns when the partitions of this member are loaded, and also those of
     * the others if that does not take long. It also returns if loading takes too long: operations
     * then fail with the reason.
     *
     * @throws LogUnavailable the map cannot be opened
     */
    void awaitLoaded() throws InterruptedException {
        if (ThreadUtil.isRunningOnPartitionThread() && !loaded) {
            throw new IllegalThreadStateException("getMap(\"" + map
                    + "\") was called on a partition's thread before the map was loaded: it would"
                    + " wait for that thread");
        }
        Membership present = plugin.cluster().membership();
        long began = System.nanoTime();
        synchronized (this) {
            while (!loaded && !tooLong(began)) {
                wait(LOOK_MS);
            }
        }
        peers.awaitLoaded(present);
    }

    /**
     * Runs {@code then} once, when the map is loaded or is no longer being loaded. If that is
     * already so, it runs at once. It must not wait.
     */
    void whenLoaded(Runnable then) {
        synchronized (this) {
            if ((open || opening) && !loaded) {
                awaited.add(then);
                return;
            }
        }
        then.run();
    }

    /** Removes and returns the actions of {@link #whenLoaded}, and wakes the waiting threads. */
    private synchronized List<Runnable> awaited() {
        notifyAll();
        List<Runnable> now = List.copyOf(awaited);
        awaited.clear();
        return now;
    }

    /**
     * Whether the map is open and its partitions take too long.
     *
     * @throws LogUnavailable it cannot be opened
     */
    private boolean tooLong(long began) {
        if (open) {
            noteWork();
            return wholeness.isQuiet(began, settings);
        }
        if (closed() instanceof LogUnavailable why) {
            throw why;
        }
        return false;
    }

    /**
     * Each partition that this member owned has been settled.
     *
     * @param ofGeneration the generation in which that began
     */
    void setLoaded(int ofGeneration) {
        synchronized (this) {
            if (!open || ofGeneration != generation) {
                return;
            }
            loaded = true;
        }
        awaited().forEach(Runnable::run);
    }

    /**
     * The partition has to be settled: memory and log may differ. Called on its thread, or on any
     * thread if this was noticed late.
     */
    void doubt(int partition, UUID leaving) {
        wholeness.doubt(partition, leaving, !loaded);
        hold(partition);
    }

    /**
     * On the partition's thread: this member becomes its owner. It has to be settled if it did not
     * arrive whole.
     */
    void gained(int partition) {
        wholeness.demand(partition, !loaded);
        hold(partition);
    }

    /**
     * Whether operations on the partition wait. Backups do not: each partition is compared with the
     * log when it gets this owner.
     */
    boolean holds(int partition) {
        return !wholeness.whole(partition) && plugin.ownership().isOwner(partition);
    }

    /**
     * An operation needs the partition: it is settled if this member owns it and it is not whole.
     */
    void demand(int partition) {
        if (!open) {
            closed();
        } else if (plugin.ownership().owns(partition) && wholeness.demand(partition, !loaded)) {
            plugin.settlements().wake();
        }
    }

    /** All partitions that this member owns. */
    void demandAll() {
        int count = plugin.nodeEngine().getPartitionService().getPartitionCount();
        for (int partition = 0; partition < count; partition++) {
            if (!wholeness.whole(partition) && plugin.ownership().owns(partition)) {
                wholeness.demand(partition, !loaded);
            }
        }
    }

    /**
     * The partition has another owner. This member may keep a backup, and become its owner again.
     */
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

    /** On the partition's thread: if it waits, queries do not use the indexes. */
    void holdIndexesOf(int partition) {
        if (holds(partition)) {
            holdIndexes(partition);
        }
    }

    /** Runs on the partition's thread after a loss. Operations that began before are awaited. */
    void holdUnsettled(int partition) {
        Wholeness.Unsettled reason = wholeness.unsettled(partition);
        if (reason == null) {
            return;
        }
        if (!plugin.ownership().isOwner(partition)) {
            // It moved when this was noticed on another thread. Its next owner settles it.
            forget(partition);
            return;
        }
        hold(partition);
        // An offloaded change is in the queue until memory has it.
        RecordStore<?> store = store(partition);
        reason.quiet = store == null || store.getOffloadedOperations().isEmpty();
    }

    /**
     * On the partition's thread: the operation that may have changed the log and not memory yet;
     * null: none. With offload, the changes of a partition run one after the other.
     */
    MapOperation underWay(int partition) {
        RecordStore<?> store = store(partition);
        if (store == null || store.getOffloadedOperations().isEmpty()) {
            return null;
        }
        MapOperation first = store.getOffloadedOperations().iterator().next();
        return first instanceof ReadonlyOperation ? null : first;
    }

    /** The map was destroyed, in the log and in memory, or only in part. */
    void destroyed() {
        for (int partition : plugin.ownership().owned()) {
            if (open) {
                doubt(partition, null);
            } else {
                // The next use of the map here reads the log.
                wholeness.forget(partition);
            }
        }
        plugin.settlements().wake();
    }

    /** On the partition's thread: memory has no entry of it any longer. */
    void emptied(int partition) {
        wholeness.forget(partition);
        indexes.forget(partition);
    }

    /** On the partition's thread, while it waits. */
    void holdIndexes(int partition) {
        indexes.hold(context().getExistingMapContainer(map), partition);
    }

    /** Whether the map has indexes, which only the partitions' threads may change. */
    boolean isIndexed() {
        MapContainer container = context().getExistingMapContainer(map);
        return container != null && container.shouldUseGlobalIndex()
                && container.getGlobalIndexRegistry().getIndexes().length > 0;
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
     * Memory is equal to the log, and operations may continue. On the partition's thread, unless
     * the partition is {@link #empty}.
     */
    void settled(Comparison comparison) {
        if (wholeness.settle(comparison.partition, comparison.reason)) {
            indexes.release(comparison.partition);
        }
    }

    /** The log has a change of the key that memory lacks. */
    void settle(Data key) {
        plugin.settle(map, key, null);
    }

    private RecordStore<?> store(int partition) {
        return RecordStores.existing(context().getPartitionContainer(partition), map);
    }

    private MapServiceContext context() {
        MapService service = plugin.nodeEngine().getService(MapService.SERVICE_NAME);
        return service.getMapServiceContext();
    }

    /**
     * @throws RuntimeException retryable, while the partition waits to be settled; LogUnavailable
     *         or {@link OutcomeUnknown} (see {@link Repeats}), when it waits too long
     */
    void requireSettled(int partition) {
        if (!wholeness.whole(partition)) {
            demand(partition);
            throw plugin.ownership().owns(partition)
                    ? outcome(partition, refusal(partition)) : OrderGuard.moved(partition);
        }
    }

    /** What the caller of the present operation gets if its last attempt fails with this. */
    RuntimeException outcome(int partition, RuntimeException failure) {
        return PartitionThreads.reads(partition) ? failure
                : plugin.ownership().repeats().outcome(map, failure);
    }

    /** As {@link #refusal}, for the caller of the operation that runs on the partition's thread. */
    RuntimeException refusalOfOperation(int partition) {
        RuntimeException why = refusal(partition);
        return PartitionThreads.changes(partition) ? outcome(partition, why) : why;
    }

    /** Why an operation on the partition cannot be carried out now. */
    RuntimeException refusal(int partition) {
        if (open) {
            noteWork();
        }
        RuntimeException why = open
                ? wholeness.refusal(partition, settings, plugin.link(settings).agent()) : closed();
        return why instanceof LogUnavailable && plugin.reconciler().isAhead(map, partition)
                ? new OutcomeUnknown("map \"" + map
                    + "\": an earlier attempt of the operation may be in the log; it is compared"
                    + " with memory as soon as it can be: " + why.getMessage(), why) : why;
    }

    /** A load waits for an agent that merges logs, however long that takes. */
    private void noteWork() {
        wholeness.progress(plugin.pulse(settings).readNanos());
    }

    int generation() {
        return generation;
    }

    void close() {
        synchronized (this) {
            generation++;
            loaded = false;
            open = false;
            opening = false;
            nextNanos = System.nanoTime();
            failure = null;
            // The next use reads the log again: what is known of the partitions does not hold for
            // it.
            wholeness.forgetAll();
            indexes.forgetAll();
        }
        awaited().forEach(Runnable::run);
    }

    /** Begins to open the map. Returns at once: operations wait until it is open and loaded. */
    void use(AgentSettings used) {
        settings = used;
        if (!open) {
            beginToOpen(used);
        }
    }

    /**
     * Why the map cannot be used although it exists. Begins to open it.
     *
     * @return a retryable error, or a new LogUnavailable for each caller: Hazelcast writes the
     *     caller's stack into it
     */
    private synchronized RuntimeException closed() {
        if (plugin.merging()) {
            return new LogUnavailable("map \"" + map + "\" is not available: member "
                    + plugin.member() + " is joining another cluster", null);
        }
        AgentSettings used = settings;
        if (used != null) {
            beginToOpen(used);
        }
        if (failure != null && System.nanoTime() - failedNanos < FAILED_NANOS) {
            return new LogUnavailable(failure.getMessage(), failure.getCause());
        }
        return new RetryableHazelcastException("map \"" + map
                + "\" is being opened: its agent is asked for its log");
    }

    private synchronized void beginToOpen(AgentSettings used) {
        if (open || opening || plugin.merging() || System.nanoTime() - nextNanos < 0) {
            return;
        }
        opening = true;
        nextNanos = System.nanoTime() + PAUSE_NANOS;
        try {
            start(used, generation);
        } catch (OutOfMemoryError e) {  // no more threads
            failed(generation, "map \"" + map + "\" cannot be opened now: " + Outcomes.reason(e),
                e);
        }
    }

    /** This member's answer to another one's {@link StatusOperation}. */
    String status() {
        if (open) {
            return loaded ? StatusOperation.LOADED : StatusOperation.OPEN;
        }
        try {
            MapStoreConfig config = plugin.nodeEngine().getConfig().findMapConfig(map)
                    .getMapStoreConfig();
            if (!config.isEnabled()) {
                return "member " + plugin.member() + " has no map-store for map \"" + map + "\"";
            }
            AgentSettings used = AgentSettings.of(map, config.getProperties());
            AgentLink link = plugin.link(used);
            peers.learnView(link);
            link.connect();
            // So both members load their partitions at the same time.
            beginToOpen(used);
            return StatusOperation.READY;
        } catch (RuntimeException e) {
            return Outcomes.reason(e);
        }
    }

    private void start(AgentSettings used, int ofGeneration) {
        Membership present = plugin.cluster().membership();
        thread(() -> {
            try {
                prepare(used, present, ofGeneration);
            } catch (Throwable e) {
                String why = "map \"" + map + "\" is not available, because its log is not: "
                        + Outcomes.reason(e)
                        + ". It is available again as soon as its log is";
                plugin.logger().warning("imap-wal: " + why);
                failed(ofGeneration, why, e instanceof LogUnavailable ? e.getCause() : e);
                return;
            }
            opened(ofGeneration, used, present);
            plugin.settlements().load(this, ofGeneration);
        });
    }

    private void opened(int ofGeneration, AgentSettings used, Membership present) {
        synchronized (this) {
            if (ofGeneration != generation) {
                return;
            }
            opening = false;
            if (plugin.cluster().isPresent(present)) {
                settings = used;
                // Partitions may have waited since before the map was used here.
                wholeness.progress();
                failure = null;
                open = true;
                notifyAll();
                return;
            }
        }
        awaited().forEach(Runnable::run);
    }

    private void failed(int ofGeneration, String why, Throwable cause) {
        synchronized (this) {
            if (ofGeneration != generation) {
                return;
            }
            opening = false;
            failure = new LogUnavailable(why, cause);
            failedNanos = System.nanoTime();
        }
        awaited().forEach(Runnable::run);
    }

    private void prepare(AgentSettings used, Membership present, int ofGeneration)
            throws Exception {
        AgentLink link = plugin.link(used);
        peers.learnView(link);
        link.connect();
        link.viewWithout(plugin.ownership().departures().awaitTurn());
        MapPeers.Status others = peers.status(present, used.restoreTimeoutMs());
        if (!others.loaded() && others.missing() != null) {
            throw new IllegalStateException(others.missing());
        }
        awaitAssigned();
        addIndexes();
        // Makes the agent merge the logs now, not when a partition's thread waits for it.
        try {
            question.ask(plugin.readers(used), map, ofGeneration);
        } catch (IOException e) {
            throw new IOException(link.agent() + " cannot read the log: " + Outcomes.reason(e), e);
        }
    }

    /**
     * Called before entries are loaded, so that a value that an index cannot take stays in the log
     * only. Otherwise Hazelcast adds the indexes at the first {@code getMap}, and fails because of
     * such a value in memory.
     */
    private void addIndexes() {
        List<IndexConfig> indexes = new ArrayList<>(
                plugin.nodeEngine().getConfig().findMapConfig(map).getIndexConfigs());
        indexes.addAll(context().getMapIndexConfigs(map));
        if (!indexes.isEmpty()) {
            IndexRegistry registry = context().getMapContainer(map).getGlobalIndexRegistry();
            for (IndexConfig index : registry == null ? List.<IndexConfig>of() : indexes) {
                registry.addOrGetIndex(IndexUtils.validateAndNormalize(map, index));
            }
        }
    }

    private void awaitAssigned() throws InterruptedException {
        if (!Polling.until(plugin.ownership()::assigned, ASSIGNED_NANOS)) {
            throw new IllegalStateException(
                    "the cluster's partitions have no owners yet; the cluster's state is "
                    + plugin.nodeEngine().getClusterService().getClusterState());
        }
    }

    private void thread(Runnable work) {
        Thread thread = new Thread(work, "imap-wal-" + map);
        thread.setDaemon(true);
        thread.start();
    }
}
