package io.imapwal.hazelcast.settle;

import com.hazelcast.cluster.Address;
import com.hazelcast.core.HazelcastException;
import com.hazelcast.internal.serialization.Data;
import com.hazelcast.internal.serialization.SerializationService;
import com.hazelcast.map.impl.record.Record;
import com.hazelcast.map.impl.recordstore.DefaultRecordStore;
import com.hazelcast.map.impl.recordstore.RecordStore;
import io.imapwal.hazelcast.read.LogEntry;

import java.util.HashSet;
import java.util.List;
import java.util.Set;

/**
 * One partition of one map, compared with all live entries that the log has of it. Used on the
 * partition's thread only. Other operations wait meanwhile, so nothing else changes it.
 */
final class Comparison {
    /** Hazelcast stores the expiry in whole seconds. */
    private static final long EXPIRY_ROUNDED_MS = 1000;

    final int partition;
    final Wholeness.Unsettled reason;
    /** Keys in memory that are not in the part of the log that was read. */
    private Set<Data> unseen;
    /** How many parts were sent to the partition's thread. Used by the thread that sends them. */
    private int sent;
    /** How many of these parts have been compared. */
    private int compared;
    private boolean proved;
    long set;
    long removed;
    /** Entries that are not in memory, because this member cannot read their values. */
    int unreadable;
    /** Why the last one of them cannot be read. */
    HazelcastException why;

    Comparison(int partition, Wholeness.Unsettled reason) {
        this.partition = partition;
        this.reason = reason;
    }

    boolean sent() {
        return sent > 0;
    }

    /** @return the number of the part */
    int send() {
        return sent++;
    }

    /**
     * @throws HazelcastException an earlier part failed: its keys must not count as absent from
     *         the log
     */
    void requireNext(int part) {
        if (part != compared) {
            throw new HazelcastException("part " + part + " of partition " + partition
                    + " cannot be compared with the log: only "
                    + compared + " parts before it were compared");
        }
    }

    void compared() {
        compared++;
    }

    boolean begun() {
        return unseen != null;
    }

    /** Memory has the digest of the log: no entries need to be compared. */
    void proved() {
        proved = true;
    }

    boolean isProved() {
        return proved;
    }

    void begin(RecordStore<?> store) {
        unseen = new HashSet<>();
        store.iterator().forEachRemaining(entry -> unseen.add(entry.getKey()));
    }

    /** The digest of the live entries in memory. */
    static EntriesDigest digest(RecordStore<?> store, byte[] salt,
            SerializationService serialization) {
        EntriesDigest found = new EntriesDigest(salt);
        long now = System.currentTimeMillis();
        store.iterator().forEachRemaining(entry -> {
            Data key = entry.getKey();
            long expires = expiresAtMs(store, key);
            if (expires > now) {
                Data value = serialization.toData(((Record<?>) entry.getValue()).getValue());
                found.add(key.toByteArray(), value.toByteArray(),
                        expires == Long.MAX_VALUE ? 0 : expires);
            }
        });
        return found;
    }

    /** Sets the entries that differ. @return the changes */
    Corrections set(RecordStore<Record> store, List<LogEntry> entries,
            SerializationService serialization, Address caller) {
        Corrections corrections = new Corrections();
        long now = System.currentTimeMillis();
        for (LogEntry entry : entries) {
            if (entry.expiresAtMs() != 0 && entry.expiresAtMs() <= now) {
                continue;
            }
            boolean known = unseen.remove(entry.key());
            if (entry.value() == null) {
                unreadable++;
                why = new HazelcastException("it is not a Hazelcast value");
                if (known) {
                    evict(store, entry.key());
                    corrections.removed().add(entry.key());
                }
                continue;
            }
            if (known && same(store, entry, serialization)) {
                continue;
            }
            boolean readable = putFromLoad(store, entry, caller, now);
            if (readable && (known ? same(store, entry, serialization)
                    : store.existInMemory(entry.key()))) {
                corrections.set().add(entry);
            } else if (store.getRecord(entry.key()) != null) {
                // The map is full, so Hazelcast did not take the new value: the old one is removed.
                evict(store, entry.key());
                corrections.removed().add(entry.key());
            }
        }
        set += corrections.set().size();
        return corrections;
    }

    @SuppressWarnings("unchecked")
    private static void evict(RecordStore<Record> store, Data key) {
        try {
            store.evict(key, false);
        } catch (HazelcastException e) {  // an index cannot read the value
            Record record = store.getRecord(key);
            if (record != null) {
                store.getStorage().removeRecord(key, record);
            }
        }
    }

    /** @return false: the map needs the value in an index or as an object, and cannot read it */
    private boolean putFromLoad(RecordStore<Record> store, LogEntry entry, Address caller,
            long now) {
        try {
            store.putFromLoad(entry.key(), entry.value(), Corrections.expiry(entry), caller, now);
            return true;
        } catch (HazelcastException e) {  // thrown by its serializer or an index
            unreadable++;
            why = e;
            return false;
        }
    }

    /** Removes the keys that the log does not have. @return the changes */
    Corrections removeUnseen(RecordStore<Record> store) {
        Corrections corrections = new Corrections();
        for (Data key : unseen) {
            store.removeReplicatedRecord(key, false);
            corrections.removed().add(key);
        }
        removed += unseen.size();
        return corrections;
    }

    private static boolean same(RecordStore<Record> store, LogEntry entry,
            SerializationService serialization) {
        Record<?> record = store.getRecord(entry.key());
        if (record == null || !entry.value().equals(serialization.toData(record.getValue()))) {
            return false;
        }
        long expires = expiresAtMs(store, entry.key());
        return expires == Corrections.expiry(entry)
                || Math.abs(expires - Corrections.expiry(entry)) <= EXPIRY_ROUNDED_MS;
    }

    /** @return Unix time; {@code Long.MAX_VALUE}: never */
    private static long expiresAtMs(RecordStore<?> store, Data key) {
        return ((DefaultRecordStore) store).getExpirySystem().getExpiryMetadata(key)
                .getExpirationTime();
    }
}
