package io.imapwal.hazelcast.settle;

import com.hazelcast.internal.serialization.Data;
import com.hazelcast.map.impl.record.Record;
import com.hazelcast.map.impl.recordstore.DefaultRecordStore;
import com.hazelcast.map.impl.recordstore.MutationObserver;
import com.hazelcast.map.impl.recordstore.RecordStore;
import io.imapwal.hazelcast.engine.Reflection;

import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.List;

/**
 * Notices each change of a record store. After it has evicted an entry that has not expired, a key
 * that is not in memory may be in the log. After any change, {@link MemoryDigests} of a partition
 * that waits are out of date. Hazelcast has no public API for this. The list of observers is
 * replaced as a whole, because the record store's thread may be reading it.
 */
public final class MemoryWatch implements MutationObserver<Record> {
    private static final Field OBSERVER =
            Reflection.field(DefaultRecordStore.class, "mutationObserver");
    private static final Field OBSERVERS = OBSERVER == null ? null
            : Reflection.field(OBSERVER.getType(), "mutationObservers");

    private final RecordStore<?> store;
    private final Wholeness wholeness;
    private final int partition;

    private MemoryWatch(RecordStore<?> store, Wholeness wholeness, int partition) {
        this.store = store;
        this.wholeness = wholeness;
        this.partition = partition;
    }

    /**
     * Whether changes can be watched in this version of Hazelcast. If not, keys that are not in
     * memory are read from the log.
     */
    public static boolean possible() {
        return OBSERVERS != null;
    }

    @SuppressWarnings("unchecked")
    public static void watch(RecordStore<?> store, Wholeness wholeness, int partition) {
        try {
            synchronized (store) {
                Object composite = OBSERVER.get(store);
                List<Object> observers = (List<Object>) OBSERVERS.get(composite);
                for (Object each : observers) {
                    if (each instanceof MemoryWatch) {
                        return;
                    }
                }
                List<Object> more = new ArrayList<>(observers);
                more.add(new MemoryWatch(store, wholeness, partition));
                OBSERVERS.set(composite, more);
            }
        } catch (IllegalAccessException e) {
            throw new IllegalStateException(e);
        }
    }

    @Override
    public void onEvictRecord(Data key, Record record, boolean backup) {
        if (!backup && !store.isExpired(key, System.currentTimeMillis(), false)) {
            wholeness.evicted(partition);
        }
        wholeness.changed(partition);
    }

    @Override
    public void onPutRecord(Data key, Record record, Object oldValue, boolean backup) {
        wholeness.changed(partition);
    }

    @Override
    public void onReplicationPutRecord(Data key, Record record, boolean populateIndex) {
        wholeness.changed(partition);
    }

    @Override
    public void onUpdateRecord(Data key, Record record, Object oldValue, Object newValue,
            boolean backup) {
        wholeness.changed(partition);
    }

    @Override
    public void onRemoveRecord(Data key, Record record, boolean backup) {
        wholeness.changed(partition);
    }

    @Override
    public void onLoadRecord(Data key, Record record, boolean backup) {
        wholeness.changed(partition);
    }

    @Override
    public void onReset() {
        wholeness.changed(partition);
    }

    @Override
    public void onClear() {
        wholeness.changed(partition);
    }

    @Override
    public void onDestroy(boolean isDuringShutdown, boolean internal) {
        wholeness.changed(partition);
    }
}
