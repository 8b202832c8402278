package io.imapwal.hazelcast;

import com.hazelcast.internal.serialization.Data;
import com.hazelcast.map.impl.record.Record;
import com.hazelcast.map.impl.recordstore.DefaultRecordStore;
import com.hazelcast.map.impl.recordstore.MutationObserver;
import com.hazelcast.map.impl.recordstore.RecordStore;

import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.List;

/**
 * Notices when a record store evicts an entry that has not expired. From then on, a key that is not
 * in memory may be in the log. Hazelcast has no public API for this. The list of observers is
 * replaced as a whole, because the record store's thread may be reading it.
 */
final class EvictionWatch implements MutationObserver<Record> {
    private static final Field OBSERVER =
            Reflection.field(DefaultRecordStore.class, "mutationObserver");
    private static final Field OBSERVERS = OBSERVER == null ? null
            : Reflection.field(OBSERVER.getType(), "mutationObservers");

    private final RecordStore<?> store;
    private final Wholeness wholeness;
    private final int partition;

    private EvictionWatch(RecordStore<?> store, Wholeness wholeness, int partition) {
        this.store = store;
        this.wholeness = wholeness;
        this.partition = partition;
    }

    /**
     * Whether evictions can be watched in this version of Hazelcast. If not, keys that are not in
     * memory are read from the log.
     */
    static boolean possible() {
        return OBSERVERS != null;
    }

    @SuppressWarnings("unchecked")
    static void watch(RecordStore<?> store, Wholeness wholeness, int partition) {
        try {
            synchronized (store) {
                Object composite = OBSERVER.get(store);
                List<Object> observers = (List<Object>) OBSERVERS.get(composite);
                for (Object each : observers) {
                    if (each instanceof EvictionWatch) {
                        return;
                    }
                }
                List<Object> more = new ArrayList<>(observers);
                more.add(new EvictionWatch(store, wholeness, partition));
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
    }

    @Override
    public void onPutRecord(Data key, Record record, Object oldValue, boolean backup) {
        // Only evictions count.
    }

    @Override
    public void onReplicationPutRecord(Data key, Record record, boolean populateIndex) {
        // Only evictions count.
    }

    @Override
    public void onUpdateRecord(Data key, Record record, Object oldValue, Object newValue,
            boolean backup) {
        // Only evictions count.
    }

    @Override
    public void onRemoveRecord(Data key, Record record, boolean backup) {
        // Only evictions count.
    }

    @Override
    public void onLoadRecord(Data key, Record record, boolean backup) {
        // Only evictions count.
    }

    @Override
    public void onReset() {
        // The next content is migrated or restored, and watched too.
    }

    @Override
    public void onClear() {
        // It is logged.
    }

    @Override
    public void onDestroy(boolean isDuringShutdown, boolean internal) {
        // There is no state to reset.
    }
}
