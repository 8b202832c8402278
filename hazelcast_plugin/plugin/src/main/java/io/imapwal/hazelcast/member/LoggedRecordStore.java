package io.imapwal.hazelcast.member;

import com.hazelcast.cluster.Address;
import com.hazelcast.config.InMemoryFormat;
import com.hazelcast.core.EntryEventType;
import com.hazelcast.internal.iteration.IterationPointer;
import com.hazelcast.internal.serialization.Data;
import com.hazelcast.internal.util.BiTuple;
import com.hazelcast.logging.ILogger;
import com.hazelcast.map.impl.MapContainer;
import com.hazelcast.map.impl.MapKeyLoader;
import com.hazelcast.map.impl.MapService;
import com.hazelcast.map.impl.iterator.MapEntriesWithCursor;
import com.hazelcast.map.impl.iterator.MapKeysWithCursor;
import com.hazelcast.map.impl.operation.AddIndexOperation;
import com.hazelcast.map.impl.operation.EntryOperation;
import com.hazelcast.map.impl.operation.GetAllOperation;
import com.hazelcast.map.impl.operation.IsPartitionLoadedOperation;
import com.hazelcast.map.impl.operation.MapChunkContext;
import com.hazelcast.map.impl.operation.MapOperation;
import com.hazelcast.map.impl.operation.MapPartitionDestroyOperation;
import com.hazelcast.map.impl.operation.MapReplicationStateHolder;
import com.hazelcast.map.impl.operation.MultipleEntryOperation;
import com.hazelcast.map.impl.operation.PartitionWideEntryOperation;
import com.hazelcast.map.impl.record.Record;
import com.hazelcast.map.impl.recordstore.DefaultRecordStore;
import com.hazelcast.spi.exception.RetryableHazelcastException;
import com.hazelcast.spi.impl.merge.AbstractSplitBrainHandlerService;
import com.hazelcast.spi.impl.operationservice.OperationService;
import io.imapwal.hazelcast.OutcomeUnknown;
import io.imapwal.hazelcast.engine.PartitionThreads;
import io.imapwal.hazelcast.settle.MapState;
import io.imapwal.hazelcast.settle.Reconciler;
import io.imapwal.hazelcast.transactions.TransactionLocks;
import io.imapwal.wire.AgentError;

import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.function.BiConsumer;

/**
 * The memory of one of our maps in one partition. Operations on the partition's owner wait until it
 * is whole, and Hazelcast does not load it.
 *
 * <pre>
 *  partition    Hazelcast's treatment of an operation
 *  not whole    repeats it later
 *  overdue      fails it with LogUnavailable
 *  a backup     carries it out
 *  whole        carries it out
 * </pre>
 */
@SuppressWarnings("rawtypes")
final class LoggedRecordStore extends DefaultRecordStore {
    /** How many keys a user's {@code loadAll} loads at once. Other operations run in between. */
    private static final int LOADED_AT_ONCE = 1000;
    /** At most this many absent keys are loaded in the call of {@code loadAll} itself. */
    private static final int LOADED_IN_PLACE = 100;

    private final MapState state;
    private final UserLoad load = new UserLoad();
    private final Queue queue = new Queue();

    LoggedRecordStore(MapContainer container, int partition, MapKeyLoader loader, ILogger logger,
            MapState state) {
        super(container, partition, loader, logger);
        this.state = state;
        // Otherwise the first operation would begin to load.
        loader.promoteToLoadedOnMigration();
    }

    private void requireWhole() {
        if (state.holds(getPartitionId())) {
            state.demand(getPartitionId());
            throw state.refusalOfOperation(getPartitionId());
        }
    }

    /** Hazelcast calls this before most operations. */
    @Override
    public void checkIfLoaded() {
        requireWhole();
        super.checkIfLoaded();
    }

    /** For a user's {@code loadAll}, which waits for all partitions. */
    @Override
    public boolean isKeyLoadFinished() {
        return isReady() && super.isKeyLoadFinished();
    }

    /** A migration asks this too. Only those who wait for a load get the error of it. */
    @Override
    public boolean isLoaded() {
        UserLoad.Progress progress = load.progress();
        if (progress.failure() != null && isCalledBy(IsPartitionLoadedOperation.class)) {
            throw progress.failure();
        }
        return isReady() && super.isLoaded() && progress.done();
    }

    /** Whether nothing waits for this partition. */
    private boolean isReady() {
        if (!state.holds(getPartitionId())) {
            return true;
        }
        state.demand(getPartitionId());
        RuntimeException why = state.refusal(getPartitionId());
        // A partition that cannot be settled may leave this member: its next owner settles it.
        if (!(why instanceof RetryableHazelcastException) && !isCalledBy(MapChunkContext.class)
                && !isCalledBy(MapReplicationStateHolder.class)) {
            throw why;
        }
        return false;
    }

    /** Does nothing: Hazelcast would read all keys on one member. */
    @Override
    public void startLoading() {
        // See Settlement.
    }

    /**
     * For a user's {@code loadAll}. Hazelcast would read the log on another thread, and then
     * replace what memory has by then, also the result of a change that was logged after that. So
     * keys that are not in memory are loaded by the operation of {@code getAll}: it runs between
     * changes, also with offload. Other keys have the log's value already. A few keys are loaded
     * here, because the caller would ask too early whether they are loaded, and then wait for a
     * second; if nothing is offloaded, this is between changes too.
     */
    @Override
    public void loadAllFromStore(List<Data> keys, boolean replaceExistingValues) {
        load.begin();
        List<Data> absent = keys.stream().filter(key -> !existInMemory(key)).toList();
        if (absent.size() <= LOADED_IN_PLACE && queue.isEmpty() && isLoadedHere(absent)) {
            return;
        }
        OperationService operations = mapServiceContext.getNodeEngine().getOperationService();
        for (int from = 0; from < absent.size(); from += LOADED_AT_ONCE) {
            List<Data> some = absent.subList(from, Math.min(absent.size(), from + LOADED_AT_ONCE));
            load.add(operations.invokeOnPartitionAsync(MapService.SERVICE_NAME,
                    new GetAllOperation(name, some), getPartitionId()));
        }
    }

    /** @return false: the partition is not whole yet, so they can be loaded later */
    private boolean isLoadedHere(List<Data> keys) {
        try {
            getAll(new HashSet<>(keys), mapServiceContext.getNodeEngine().getThisAddress());
        } catch (RetryableHazelcastException e) {
            return false;
        } catch (RuntimeException e) {
            load.fail(e);
        }
        return true;
    }

    /** Hazelcast does not check before it runs an entry processor on all entries. */
    @Override
    public void forEach(BiConsumer<Data, Record> consumer, boolean backup) {
        if (!backup && state.holds(getPartitionId())
                && isCalledBy(PartitionWideEntryOperation.class)) {
            requireWhole();
        }
        super.forEach(consumer, backup);
    }

    /** After this, Hazelcast counts the partition as complete in a new index. */
    @Override
    public void forEach(BiConsumer<Data, Record> consumer, boolean backup, boolean includeExpired) {
        if (!backup && state.holds(getPartitionId()) && isCalledBy(AddIndexOperation.class)) {
            requireWhole();
        }
        super.forEach(consumer, backup, includeExpired);
    }

    /**
     * Hazelcast asks this before it merges a part of a split network into another one. The log has
     * the entries, so there is nothing to merge. An exception would end the search for maps in this
     * partition, and those that were not found would not be merged either.
     */
    @Override
    public boolean isEmpty() {
        return isCalledBy(AbstractSplitBrainHandlerService.class) || super.isEmpty();
    }

    /** Whether that class, or one that extends it, has called. */
    private static boolean isCalledBy(Class<?> caller) {
        return StackWalker.getInstance(StackWalker.Option.RETAIN_CLASS_REFERENCE)
                .walk(frames -> frames.limit(10)
                    .anyMatch(frame -> caller.isAssignableFrom(frame.getDeclaringClass())));
    }

    /** For {@code getEntryView}, locks and transactions. */
    @Override
    public Record getRecordOrNull(Data key, boolean backup) {
        if (!backup) {
            requireWhole();
        }
        return super.getRecordOrNull(key, backup);
    }

    /**
     * Called on the caller's thread with {@code read-backup-data}. Null: Hazelcast asks the owner,
     * which may now be this member.
     */
    @Override
    public Data readBackupData(Data key) {
        return state.holds(getPartitionId()) ? null : super.readBackupData(key);
    }

    /**
     * A transaction may rely on what it reads under its lock. So it does not get the lock of a key
     * that is about to be set from the log. This is also so if its caller already has the lock,
     * from a transaction that got no answer: each transaction would extend that lock, and the
     * settlement waits for it. This method is also called for the lock's copy on a backup.
     */
    @Override
    public boolean txnLock(Data key, UUID caller, long thread, long reference, long ttl,
            boolean blockReads) {
        state.requireNoDoubt(getPartitionId(), key);
        if (TransactionLocks.isLeft(state.locks(getPartitionId()), key, caller, thread)) {
            forceUnlock(key);
        }
        return super.txnLock(key, caller, thread,
                isLocked(key) ? reference : TransactionLocks.BEGAN, ttl, blockReads);
    }

    /** The same for entry processors that Hazelcast runs on another thread. */
    @Override
    public boolean localLock(Data key, UUID caller, long thread, long reference, long ttl) {
        state.requireNoDoubt(getPartitionId(), key);
        return super.localLock(key, caller, thread, reference, ttl);
    }

    /** A user's lock does not keep a key in doubt from being settled. */
    @Override
    public boolean canAcquireLock(Data key, UUID caller, long thread) {
        return super.canAcquireLock(key, caller, thread)
                || thread == Reconciler.THREAD_ID && !state.isReliedOn(getPartitionId(), key);
    }

    /** The log has what interceptors made of the value, so they must not change it again. */
    @Override
    public Object putFromLoad(Data key, Object value, Address caller) {
        return hasInterceptors() ? putLogged(key, value, Record.UNSET, caller)
                : super.putFromLoad(key, value, caller);
    }

    @Override
    public Object putFromLoad(Data key, Object value, long expirationTime, Address caller,
            long now) {
        if (!hasInterceptors()) {
            return super.putFromLoad(key, value, expirationTime, caller, now);
        }
        long ttl = toTtlFromExpiryTime(expirationTime, now);
        return ttl <= 0 ? null : putLogged(key, value, ttl, caller);
    }

    /** For {@code getAll} of keys that were evicted. */
    @Override
    @SuppressWarnings("unchecked")
    public Map<Data, Object> putAndGetLoadedEntries(List loaded, Address caller) {
        if (loaded == null || !hasInterceptors()) {
            return super.putAndGetLoadedEntries(loaded, caller);
        }
        Map<Data, Object> entries = new HashMap<>();
        for (int i = 0; i < loaded.size(); i += 2) {
            Data key = serializationService.toData(loaded.get(i));
            BiTuple<Object, Long> value = (BiTuple<Object, Long>) loaded.get(i + 1);
            putLogged(key, value.element1, value.element2, caller);
            entries.put(key, value.element1);
        }
        return entries;
    }

    private boolean hasInterceptors() {
        return !getMapContainer().getInterceptorRegistry().getInterceptors().isEmpty();
    }

    /** As Hazelcast puts a loaded value, without interceptors. @return the former value */
    private Object putLogged(Data key, Object value, long ttl, Address caller) {
        if (shouldEvict()) {
            return null;
        }
        long now = getNow();
        Record record = getRecordOrNull(key, now, false);
        Object former = record == null ? null : record.getValue();
        if (record == null) {
            putNewRecord(key, null, value, ttl, Record.UNSET, Record.UNSET, now, null,
                    EntryEventType.LOADED, false, false);
        } else {
            updateRecord(record, key, former, value, true, ttl, Record.UNSET, Record.UNSET, now,
                    null, false, false, false);
        }
        if (mapEventPublisher.hasEventListener(name)) {
            mapEventPublisher.publishEvent(caller, name, former == null ? EntryEventType.LOADED
                    : EntryEventType.UPDATED, key, former, getRecord(key).getValue());
        }
        return former;
    }

    /**
     * A change of the key is not logged, or it is not known whether it is. With in-memory-format
     * OBJECT, an entry processor may have changed the object in memory itself. So memory gets what
     * the log has. Called on any thread.
     */
    void notLogged(Data key) {
        state.notSet(key);
        if (getInMemoryFormat() != InMemoryFormat.OBJECT) {
            return;
        }
        if (PartitionThreads.task(getPartitionId()) instanceof MapOperation operation) {
            forgetProcessed(key, operation);
        } else {
            // With offload. It runs before the next operation of the queue begins.
            new PartitionThreads(mapServiceContext.getNodeEngine()).next(getPartitionId(),
                    id -> forgetProcessed(key, state.underWay(id)));
        }
    }

    private void forgetProcessed(Data key, MapOperation operation) {
        if (operation instanceof EntryOperation settling
                && settling.getThreadId() == Reconciler.THREAD_ID) {
            // The operation has not changed the object, and tries again.
            return;
        }
        if (operation instanceof EntryOperation || operation instanceof MultipleEntryOperation) {
            // The next operation on the key reads the log.
            removeReplicatedRecord(key, false);
            state.wholeness().evicted(getPartitionId());
        } else if (operation instanceof PartitionWideEntryOperation) {
            // Hazelcast repeats it, and would not find a key that is not in memory.
            state.settle(key);
        }
    }

    /**
     * For entry processors. With {@code setValueWithoutChangingExpiryTime} Hazelcast keeps the
     * expiry in memory, but passes the map's usual one to a map store.
     */
    @Override
    public boolean setWithUncountedAccess(Data key, Object value, boolean changeExpiry, long ttl,
            long maxIdle) {
        if (changeExpiry || !existInMemory(key)) {
            return super.setWithUncountedAccess(key, value, changeExpiry, ttl, maxIdle);
        }
        long kept = expiresAtMs(key);
        long left = kept == Long.MAX_VALUE ? 0 : Math.max(1, kept - getNow());
        return super.setWithUncountedAccess(key, value, true, left, maxIdle);
    }

    /** The same with offload, where the value was logged with the usual expiry before this. */
    @Override
    public Object updateMemory(Record record, Data key, Object former, Object value,
            boolean changeExpiry, long ttl, long maxIdle, long expiryTime, long now,
            boolean backup) {
        if (!changeExpiry && !backup) {
            logKeptExpiry(key, value, expirySystem.calculateExpirationTime(ttl, maxIdle, now, now));
        }
        return super.updateMemory(record, key, former, value, changeExpiry, ttl, maxIdle,
                expiryTime, now, backup);
    }

    private void logKeptExpiry(Data key, Object value, long loggedMs) {
        long kept = expiresAtMs(key);
        if (kept == loggedMs) {
            return;
        }
        try {
            getMapDataStore().add(key, value, kept, getNow(), null);
        } catch (RetryableHazelcastException e) {
            state.settle(key);
            throw e;
        } catch (RuntimeException e) {
            state.settle(key);
            throw new OutcomeUnknown("map \"" + name + "\": the value is in the log, but not the"
                    + " time when it expires, which should not change: " + AgentError.reason(e), e);
        }
    }

    private long expiresAtMs(Data key) {
        return getExpirySystem().getExpiryMetadata(key).getExpirationTime();
    }

    /** For iterators and paged queries, before which Hazelcast does not check either. */
    @Override
    public MapKeysWithCursor fetchKeys(IterationPointer[] pointers, int size) {
        requireWhole();
        return super.fetchKeys(pointers, size);
    }

    @Override
    public MapEntriesWithCursor fetchEntries(IterationPointer[] pointers, int size) {
        requireWhole();
        return super.fetchEntries(pointers, size);
    }

    /**
     * Also called when Hazelcast destroys it: the next record store of the partition does not
     * inherit that this one was whole.
     */
    @Override
    public void destroy() {
        state.emptied(getPartitionId());
        super.destroy();
    }

    @Override
    public Set<MapOperation> getOffloadedOperations() {
        return queue;
    }

    /**
     * With offload, {@code containsKey} and some other operations read memory without a check. All
     * offloaded operations are put into this queue.
     */
    private final class Queue extends LinkedHashSet<MapOperation> {
        @Override
        public boolean add(MapOperation operation) {
            // A destroyed partition is not whole any more, and does not have to be.
            if (!(operation instanceof MapPartitionDestroyOperation)) {
                requireWhole();
            }
            return super.add(operation);
        }

        /** The operation has ended, with or without success. */
        @Override
        public boolean remove(Object operation) {
            if (getMapDataStore() instanceof LoggedDataStore store) {
                store.ended().forEach(state::settle);
            }
            return super.remove(operation);
        }
    }
}
