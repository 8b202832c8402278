package io.imapwal.hazelcast.settle;

import com.hazelcast.internal.locksupport.LockResource;
import com.hazelcast.internal.locksupport.LockStoreImpl;
import com.hazelcast.internal.locksupport.LockSupportService;
import com.hazelcast.internal.locksupport.LockSupportServiceImpl;
import com.hazelcast.internal.serialization.Data;
import com.hazelcast.internal.util.ThreadUtil;
import com.hazelcast.map.impl.MapContainer;
import com.hazelcast.map.impl.MapService;
import com.hazelcast.map.impl.PartitionContainer;
import com.hazelcast.map.impl.operation.MapOperation;
import com.hazelcast.map.impl.recordstore.RecordStore;
import com.hazelcast.spi.exception.RetryableHazelcastException;
import com.hazelcast.spi.impl.operationservice.ReadonlyOperation;
import io.imapwal.hazelcast.LogUnavailable;
import io.imapwal.hazelcast.OutcomeUnknown;
import io.imapwal.hazelcast.append.OrderGuard;
import io.imapwal.hazelcast.append.Repeats;
import io.imapwal.hazelcast.engine.JmxBeans;
import io.imapwal.hazelcast.engine.PartitionThreads;
import io.imapwal.hazelcast.engine.ThisMember;
import io.imapwal.wire.AgentSettings;

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
public final class MapState {
    /** Settles partitions, on its own thread or on the caller's. */
    interface Settler {
        /** There may be something to settle. */
        void wake();

        /** The first load of a map. @param generation in which it was opened */
        void load(MapState state, int generation);
    }

    private final Context context;
    private final ThisMember member;
    private final PartitionOwnership ownership;
    private final Settler settler;
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

    public MapState(Context context, Settler settler, String map) {
        this.context = context;
        this.member = context.member();
        this.ownership = context.ownership();
        this.settler = settler;
        this.map = map;
        this.wholeness = new Wholeness(map, member.partitionCount());
        this.opening = new MapOpening(context, map, wholeness, this::entries,
                generation -> settler.load(this, generation));
    }

    public String map() {
        return map;
    }

    public Wholeness wholeness() {
        return wholeness;
    }

    public MapOpening opening() {
        return opening;
    }

    /** The link to the map's log; null until the map is used here. */
    public AgentSettings settings() {
        return opening.settings();
    }

    public ReentrantLock settling() {
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
            memoryDigests = new MemoryDigests(new PartitionThreads(member.nodeEngine()), wholeness,
                    this::digest);
        }
        return memoryDigests;
    }

    /** The next settlement has another salt. */
    void forgetDigests() {
        memoryDigests = null;
    }

    public boolean isOpen() {
        return opening.isOpen();
    }

    public boolean isLoaded() {
        return opening.isLoaded();
    }

    /**
     * The partition has to be settled: memory and log may differ. Called on its thread, or on any
     * thread if this was noticed late.
     */
    public void doubt(int partition, UUID leaving) {
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
    public boolean holds(int partition) {
        return !wholeness.whole(partition) && ownership.isOwner(partition);
    }

    /**
     * An operation needs the partition: it is settled if this member owns it and it is not whole.
     */
    public void demand(int partition) {
        if (!isOpen()) {
            opening.closed();
        } else if (ownership.owns(partition) && wholeness.demand(partition, !isLoaded())) {
            settler.wake();
        }
    }

    /** All partitions that this member owns. */
    void demandAll() {
        for (int partition = 0; partition < member.partitionCount(); partition++) {
            if (!wholeness.whole(partition) && ownership.owns(partition)) {
                wholeness.demand(partition, !isLoaded());
            }
        }
    }

    /**
     * The partition has another owner. This member may keep a backup, and become its owner again.
     */
    public void forget(int partition) {
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
        if (!ownership.isOwner(partition)) {
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
    public MapOperation underWay(int partition) {
        RecordStore<?> store = store(partition);
        if (store == null || store.getOffloadedOperations().isEmpty()) {
            return null;
        }
        MapOperation first = store.getOffloadedOperations().iterator().next();
        return first instanceof ReadonlyOperation ? null : first;
    }

    /** The map was destroyed, in the log and in memory, or only in part. */
    public void destroyed() {
        for (int partition : ownership.owned()) {
            if (isOpen()) {
                doubt(partition, null);
            } else {
                // The next use of the map here reads the log.
                wholeness.forget(partition);
            }
        }
        settler.wake();
    }

    /** On the partition's thread: memory no longer has entries of it. */
    public void emptied(int partition) {
        wholeness.forget(partition);
        indexes.forget(partition);
    }

    /** On the partition's thread, while it waits. */
    void holdIndexes(int partition) {
        indexes.hold(member.maps().getExistingMapContainer(map), partition);
    }

    /** Whether the map has indexes, which only the partitions' threads may change. */
    boolean isIndexed() {
        MapContainer container = member.maps().getExistingMapContainer(map);
        return container != null && container.shouldUseGlobalIndex()
                && container.getGlobalIndexRegistry().getIndexes().length > 0;
    }

    /**
     * On the partition's thread, before a transaction gets the lock of a key.
     *
     * @throws RetryableHazelcastException the outcome of the key's last change is not known
     */
    public void requireNoDoubt(int partition, Data key) {
        if (!ownership.isOwner(partition)) {
            return;
        }
        context.placements().check(map, key, null);
        if (context.reconciler().isDoubted(map, key)) {
            throw new RetryableHazelcastException("map \"" + map
                    + "\": the outcome of an earlier change of the key is not known yet");
        }
    }

    /**
     * On the partition's thread: whether a transaction has the key's lock, or an entry processor
     * on another thread, and relies on what it has read. It ends without waiting for a doubt. A
     * transaction with a place for the key does not rely on memory any more.
     */
    public boolean isReliedOn(int partition, Data key) {
        LockResource lock = locks(partition).getLock(key);
        return (lock.isTransactional() || lock.isLocal())
                && !context.placements().contains(map, key);
    }

    /** A change of the key was refused, or its outcome is not known. */
    public void notSet(Data key) {
        context.placements().notSet(map, key);
    }

    public LockStoreImpl locks(int partition) {
        LockSupportServiceImpl locks = member.nodeEngine().getService(
                LockSupportService.SERVICE_NAME);
        return locks.getLockStore(partition, MapService.getObjectNamespace(map));
    }

    /** Keys of the partition that are locked. */
    public int locked(int partition) {
        RecordStore<?> store = store(partition);
        return store == null ? 0 : store.getLockedEntryCount();
    }

    /** Entries in memory. */
    public int size(int partition) {
        RecordStore<?> store = store(partition);
        return store == null ? 0 : store.size();
    }

    /** Entries in memory of all partitions, with backups. */
    private long entries() {
        return IntStream.range(0, member.partitionCount()).mapToLong(this::size).sum();
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
        return Comparison.digest(store, salt, member.nodeEngine().getSerializationService());
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
    public void settle(Data key) {
        context.reconciler().add(context.links().of(settings()), map, key, null);
    }

    /** Of one partition. Hazelcast's own search may make a store. */
    public interface ExistingStores {
        /** Null: there is none. */
        RecordStore<?> existing(String map);
    }

    private RecordStore<?> store(int partition) {
        PartitionContainer container = member.maps().getPartitionContainer(partition);
        return container.getMaps() instanceof ExistingStores stores ? stores.existing(map)
                : container.getExistingRecordStore(map);
    }

    /**
     * @throws RuntimeException retryable, while the partition waits to be settled; LogUnavailable
     *         or {@link OutcomeUnknown} (see {@link Repeats}), when it waits too long
     */
    public void requireSettled(int partition) {
        if (!wholeness.whole(partition)) {
            demand(partition);
            throw ownership.owns(partition)
                    ? outcome(partition, refusal(partition)) : OrderGuard.moved(partition);
        }
    }

    /** What the caller of the present operation gets if its last attempt fails with this. */
    public RuntimeException outcome(int partition, RuntimeException failure) {
        return PartitionThreads.reads(partition) ? failure
                : ownership.repeats().outcome(map, failure);
    }

    /** As {@link #refusal}, for the caller of the operation that runs on the partition's thread. */
    public RuntimeException refusalOfOperation(int partition) {
        RuntimeException why = refusal(partition);
        return PartitionThreads.changes(partition) ? outcome(partition, why) : why;
    }

    /** Why an operation on the partition cannot be carried out now. */
    public RuntimeException refusal(int partition) {
        if (isOpen()) {
            opening.noteWork();
        }
        RuntimeException why = isOpen()
                ? wholeness.refusal(partition, settings(), context.links().of(settings()).agent())
                : opening.closed();
        return why instanceof LogUnavailable && context.reconciler().isAhead(map, partition)
                ? new OutcomeUnknown("map \"" + map
                    + "\": an earlier attempt of the operation may be in the log; it is compared"
                    + " with memory as soon as it can be: " + why.getMessage(), why) : why;
    }

    /** What JMX shows of this map. */
    public JmxBeans.Map bean() {
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
    public void close() {
        opening.close(() -> {
            wholeness.forgetAll();
            indexes.forgetAll();
        });
    }
}
