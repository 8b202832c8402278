package io.imapwal.hazelcast.settle;

import com.hazelcast.core.HazelcastException;
import com.hazelcast.internal.serialization.Data;
import com.hazelcast.map.impl.operation.MapOperation;
import com.hazelcast.map.impl.operation.steps.engine.Step;
import com.hazelcast.nio.ObjectDataOutput;
import com.hazelcast.spi.impl.operationservice.BackupAwareOperation;
import com.hazelcast.spi.impl.operationservice.MutatingOperation;
import com.hazelcast.spi.impl.operationservice.Operation;
import com.hazelcast.spi.impl.operationservice.PartitionAwareOperation;
import io.imapwal.hazelcast.read.LogEntry;

import java.util.ArrayList;
import java.util.List;

/**
 * Compares entries of the log with memory, on the partition's thread, and changes memory and its
 * backups where they differ. With the last entries it removes what the log does not have, and
 * operations may continue. {@link Settlement} sends it. It runs only on the member that made it.
 */
final class SettleOperation extends MapOperation implements PartitionAwareOperation,
        MutatingOperation, BackupAwareOperation {
    private final transient MapState state;
    private final transient Comparison comparison;
    private final transient List<LogEntry> entries;
    private final transient int part;
    private final transient boolean last;
    private transient Corrections corrections = new Corrections();

    SettleOperation(MapState state, Comparison comparison, List<LogEntry> entries,
            int part, boolean last) {
        super(state.map());
        this.state = state;
        this.comparison = comparison;
        this.entries = entries;
        this.part = part;
        this.last = last;
    }

    @Override
    protected void runInternal() {
        if (comparison.isProved()) {
            // The thread was busy for so long that the entries were read before the digests were
            // compared.
            return;
        }
        if (state.wholeness().unsettled(getPartitionId()) != comparison.reason) {
            throw new HazelcastException("partition " + getPartitionId()
                    + " has another owner by now");
        }
        comparison.requireNext(part);
        // Also indexes that were added since then, while only some of the entries are in memory.
        state.holdIndexes(getPartitionId());
        if (!comparison.begun()) {
            comparison.begin(recordStore);
            state.wholeness().refill(getPartitionId());
        }
        corrections = comparison.set(recordStore, entries,
                getNodeEngine().getSerializationService(), getCallerAddress());
        if (comparison.unreadable > 0) {
            // Reads of these keys then read the log, and fail with the reason. Other keys work.
            state.wholeness().evicted(getPartitionId());
        }
        comparison.compared();
        if (last) {
            corrections.removed().addAll(comparison.removeUnseen(recordStore).removed());
            if (comparison.unreadable > 0) {
                getLogger().severe("imap-wal: map \"" + name + "\", partition " + getPartitionId()
                        + ": " + comparison.unreadable
                        + " entries are in the log only, because this member cannot read their"
                        + " values", comparison.why);
            }
            state.settled(comparison);
        }
    }

    /** Runs at once, also with offload: the queue of offloaded operations is closed. */
    @Override
    public Step getStartingStep() {
        return null;
    }

    @Override
    public void afterRunInternal() {
        List<Data> changed = new ArrayList<>(corrections.removed());
        corrections.set().forEach(entry -> changed.add(entry.key()));
        invalidateNearCache(changed);
        evict(null);
        super.afterRunInternal();
    }

    @Override
    public boolean shouldBackup() {
        return !corrections.none();
    }

    @Override
    public int getSyncBackupCount() {
        return mapContainer.getBackupCount();
    }

    @Override
    public int getAsyncBackupCount() {
        return mapContainer.getAsyncBackupCount();
    }

    @Override
    public Operation getBackupOperation() {
        return new CorrectionBackup(name, corrections);
    }

    @Override
    public Object getResponse() {
        return true;
    }

    @Override
    protected void writeInternal(ObjectDataOutput out) {
        // The partition migrated to another member while this waited for its thread.
        throw new UnsupportedOperationException("a settlement runs on the member that began it");
    }

    @Override
    public int getClassId() {
        throw new UnsupportedOperationException();
    }
}
