package io.imapwal.hazelcast;

import com.hazelcast.internal.locksupport.LockResource;
import com.hazelcast.internal.locksupport.LockStoreImpl;
import com.hazelcast.internal.locksupport.LockSupportService;
import com.hazelcast.internal.locksupport.LockSupportServiceImpl;
import com.hazelcast.internal.serialization.Data;
import com.hazelcast.internal.util.ThreadUtil;
import com.hazelcast.map.impl.MapContainer;
import com.hazelcast.map.impl.MapService;
import com.hazelcast.map.impl.MapServiceContext;
import com.hazelcast.map.impl.operation.MapOperation;
import com.hazelcast.map.impl.recordstore.RecordStore;
import com.hazelcast.spi.exception.RetryableHazelcastException;
import com.hazelcast.spi.impl.operationservice.ReadonlyOperation;

import java.util.UUID;
import java.util.concurrent.atomic.LongAdder;
import java.util.concurrent.locks.ReentrantLock;
import java.util.stream.IntStream;

/**
 * The state of one map on this member: which of its partitions are whole in memory.
 * {@link MapOpening} opens it.
 *
 * Each member loads the partitions that it owns, from its own agent: a restore is a settlement of
 * partitions with nothing in memory. Operations on a partition wait until it is whole, whatever
 * state Hazelcast gives it. {@link MapPeers} asks the other members about the map.
 */
final class MapState {
    private final WalPlugin plugin;
    private final String map;
    private final Wholeness wholeness;
    private final MapOpening opening;
    private final HeldIndexes indexes = new HeldIndexes();
    /** Held while partitions of the map are settled: by one thread at a time. */
    private final ReentrantLock settling = new ReentrantLock();
    /** Kept while a settlement is retried, because computing digests takes time. */
    private MemoryDigests memoryDigests;
    private final LongAdder settleNanos = new LongAdder();
    private final LongAdder settledPartitions = new LongAdder();

    MapState(WalPlugin plugin, String map) {
        this.plugin = plugin;
        this.map = map;
        this.wholeness = new Wholeness(map,
                plugin.nodeEngine().getPartitionService().getPartitionCount());
        this.opening = new MapOpening(plugin, map, wholeness, this::entries,
                generation -> plugin.settlements().load(this, generation));
    }

    String map() {
        return map;
    }

    Wholeness wholeness() {
        return wholeness;
    }

    MapOpening opening() {
        return opening;
    }

    /** The link to the map's log; null until the map is used here. */
    AgentSettings settings() {
        return opening.settings();
    }

    ReentrantLock settling() {
        return settling;
    }

    /** Counts partitions that were compared with the log together. */
    void countSettled(long partitions, long nanos) {
        settledPartitions.add(partitions);
        settleNanos.add(nanos);
    }

    /** The digests for the current settlement. Used by the thread that has {@link #settling}. */
    MemoryDigests memoryDigests() {
        if (memoryDigests == null) {
            memoryDigests = new MemoryDigests(new PartitionThreads(plugin.nodeEngine()), this);
        }
        return memoryDigests;
    }

    /** The next settlement has another salt. */
    void forgetDigests() {
        memoryDigests = null;
    }

    boolean isOpen() {
        return opening.isOpen();
    }

    boolean isLoaded() {
        return opening.isLoaded();
    }

    /**
     * The partition has to be settled: memory and log may differ. Called on its thread, or on any
     * thread if this was noticed late.
     */
    void doubt(int partition, UUID leaving) {
        wholeness.doubt(partition, leaving, !isLoaded());
        hold(partition);
    }

    /**
     * On the partition's thread: this member becomes its owner. It has to be settled if it did not
     * arrive whole.
     */
    void gained(int partition) {
        wholeness.demand(partition, !isLoaded());
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
        if (!isOpen()) {
            opening.closed();
        } else if (plugin.ownership().owns(partition) && wholeness.demand(partition, !isLoaded())) {
            plugin.settlements().wake();
        }
    }

    /** All partitions that this member owns. */
    void demandAll() {
        int count = plugin.nodeEngine().getPartitionService().getPartitionCount();
        for (int partition = 0; partition < count; partition++) {
            if (!wholeness.whole(partition) && plugin.ownership().owns(partition)) {
                wholeness.demand(partition, !isLoaded());
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
            if (isOpen()) {
                doubt(partition, null);
            } else {
                // The next use of the map here reads the log.
                wholeness.forget(partition);
            }
        }
        plugin.settlements().wake();
    }

    /** On the partition's thread: memory no longer has entries of it. */
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

    /**
     * On the partition's thread, before a transaction gets the lock of a key.
     *
     * @throws RetryableHazelcastException the outcome of the key's last change is not known
     */
    void requireNoDoubt(int partition, Data key) {
        if (!plugin.ownership().isOwner(partition)) {
            return;
        }
        plugin.placements().check(map, key, null);
        if (plugin.reconciler().isDoubted(map, key)) {
            throw new RetryableHazelcastException("map \"" + map
                    + "\": the outcome of an earlier change of the key is not known yet");
        }
    }

    /**
     * On the partition's thread: whether a transaction has the key's lock, or an entry processor
     * on another thread, and relies on what it has read. It ends without waiting for a doubt. A
     * transaction with a place for the key does not rely on memory any more.
     */
    boolean isReliedOn(int partition, Data key) {
        LockResource lock = locks(partition).getLock(key);
        return (lock.isTransactional() || lock.isLocal())
                && !plugin.placements().contains(map, key);
    }

    /** A change of the key was refused, or its outcome is not known. */
    void notSet(Data key) {
        plugin.placements().notSet(map, key);
    }

    LockStoreImpl locks(int partition) {
        LockSupportServiceImpl locks = plugin.nodeEngine().getService(
                LockSupportService.SERVICE_NAME);
        return locks.getLockStore(partition, MapService.getObjectNamespace(map));
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

    /** Entries in memory of all partitions, with backups. */
    private long entries() {
        return IntStream.range(0, plugin.partitionCount()).mapToLong(this::size).sum();
    }

    /** Whether memory has nothing of a partition that waits, not even a place in an index. */
    boolean empty(int partition) {
        return size(partition) == 0 && !indexes.any(partition);
    }

    /**
     * On the partition's thread: the digest of its entries in memory; null: there is no record
     * store.
     */
    EntriesDigest digest(int partition, byte[] salt) {
        RecordStore<?> store = store(partition);
        if (store == null) {
            return null;
        }
        // If memory is then equal to the log, it lacks only what is evicted from now on.
        wholeness.refill(partition);
        return Comparison.digest(store, salt, plugin.nodeEngine().getSerializationService());
    }

    /**
     * On the partition's thread: if memory has exactly the entries of this digest of the log, the
     * partition is settled. Not if entries of the log were compared already.
     *
     * @return whether it is
     */
    boolean prove(Comparison comparison, MemoryDigests memory, byte[] digest) {
        boolean proved = !comparison.begun()
                && wholeness.unsettled(comparison.partition) == comparison.reason
                && memory.isEqual(comparison.partition, comparison.reason, digest);
        if (proved) {
            comparison.proved();
            holdIndexes(comparison.partition);
            settled(comparison);
        }
        return proved;
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
        if (isOpen()) {
            opening.noteWork();
        }
        RuntimeException why = isOpen()
                ? wholeness.refusal(partition, settings(), plugin.link(settings()).agent())
                : opening.closed();
        return why instanceof LogUnavailable && plugin.reconciler().isAhead(map, partition)
                ? new OutcomeUnknown("map \"" + map
                    + "\": an earlier attempt of the operation may be in the log; it is compared"
                    + " with memory as soon as it can be: " + why.getMessage(), why) : why;
    }

    /** What JMX shows of this map. */
    JmxBeans.Map bean() {
        return new MapBean();
    }

    private final class MapBean implements JmxBeans.Map {
        @Override
        public boolean isOpen() {
            return MapState.this.isOpen();
        }

        @Override
        public boolean isLoaded() {
            return MapState.this.isLoaded();
        }

        @Override
        public int getUnsettledPartitions() {
            return wholeness.unsettledCount();
        }

        @Override
        public String getReason() {
            return wholeness.unsettled().values().stream().map(each -> each.reason).findFirst()
                    .orElse("");
        }

        @Override
        public double getSettleSeconds() {
            return settleNanos.sum() / 1e9;
        }

        @Override
        public long getSettledPartitions() {
            return settledPartitions.sum();
        }
    }

    /** The next use reads the log again: what is known of the partitions is not valid for it. */
    void close() {
        opening.close(() -> {
            wholeness.forgetAll();
            indexes.forgetAll();
        });
    }
}
