package io.imapwal.hazelcast.member;

import com.hazelcast.internal.serialization.Data;
import com.hazelcast.internal.util.ThreadUtil;
import com.hazelcast.map.impl.mapstore.MapStoreContext;
import com.hazelcast.map.impl.mapstore.writethrough.WriteThroughStore;
import com.hazelcast.map.impl.recordstore.DefaultRecordStore;
import io.imapwal.hazelcast.engine.Reflection;

import java.lang.reflect.Field;
import java.util.Collection;
import java.util.List;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;

/**
 * Passes the changes of one partition to our map store. Hazelcast has no public API for this. In a
 * version where this class cannot do so, two things are not noticed:
 *
 * <pre>
 * a clear without keys in memory   Hazelcast calls the map store only if memory has a key, and the
 *                                  log may have keys that were evicted
 * a change that is not logged      other keys of its operation may be in the log and not in memory,
 *                                  and an entry processor may have changed the object in memory
 * </pre>
 */
final class LoggedDataStore extends WriteThroughStore {
    private static final Field STORE = Reflection.field(DefaultRecordStore.class, "mapDataStore");

    private final LoggedMap map;
    private final LoggedRecordStore records;
    /**
     * What the operation that runs with offload has logged. Hazelcast changes memory when all of
     * its keys are logged. If one is not, it changes nothing.
     */
    private final Set<Data> logged = ConcurrentHashMap.newKeySet();
    private volatile boolean failed;

    private LoggedDataStore(MapStoreContext context, LoggedMap map, LoggedRecordStore records) {
        super(context);
        this.map = map;
        this.records = records;
    }

    static void place(LoggedRecordStore records, LoggedMap map) {
        if (STORE == null || records.getMapDataStore().getClass() != WriteThroughStore.class) {
            return;
        }
        try {
            STORE.set(records, new LoggedDataStore(records.getMapContainer().getMapStoreContext(),
                    map, records));
        } catch (IllegalAccessException e) {
            throw new IllegalStateException(e);
        }
    }

    @Override
    public Object add(Data key, Object value, long expirationTime, long now, UUID transaction) {
        try {
            Object stored = map.endIfLogged(key, value) ? value
                    : super.add(key, value, expirationTime, now, transaction);
            logged(key);
            return stored;
        } catch (RuntimeException | Error e) {
            failed = true;
            records.notLogged(key);
            throw e;
        }
    }

    @Override
    public void remove(Data key, long now, UUID transaction) {
        try {
            if (!map.endIfLogged(key, null)) {
                super.remove(key, now, transaction);
            }
            logged(key);
        } catch (RuntimeException | Error e) {
            failed = true;
            records.notLogged(key);
            throw e;
        }
    }

    private void logged(Data key) {
        if (!ThreadUtil.isRunningOnPartitionThread()) {
            logged.add(key);
        }
    }

    /** On the partition's thread: an operation with offload has ended. @return what to settle */
    List<Data> ended() {
        List<Data> ahead = failed ? List.copyOf(logged) : List.of();
        failed = false;
        logged.clear();
        return ahead;
    }

    /** Hazelcast calls this only for {@code clear}. */
    @Override
    @SuppressWarnings("rawtypes")
    public void removeAll(Collection keys) {
        if (keys == null || keys.isEmpty()) {
            map.clearEvicted(records.getPartitionId());
        } else {
            super.removeAll(keys);
        }
    }
}
