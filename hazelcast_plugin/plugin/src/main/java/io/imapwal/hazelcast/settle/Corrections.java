package io.imapwal.hazelcast.settle;

import com.hazelcast.internal.nio.IOUtil;
import com.hazelcast.internal.serialization.Data;
import com.hazelcast.map.EntryLoader.MetadataAwareValue;
import com.hazelcast.map.impl.recordstore.RecordStore;
import com.hazelcast.nio.ObjectDataInput;
import com.hazelcast.nio.ObjectDataOutput;
import io.imapwal.hazelcast.read.LogEntry;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;

/**
 * The changes that make the memory of one partition agree with the log.
 *
 * @param removed keys
 * @param set live entries
 */
record Corrections(List<Data> removed, List<LogEntry> set) {

    Corrections() {
        this(new ArrayList<>(), new ArrayList<>());
    }

    boolean none() {
        return removed.isEmpty() && set.isEmpty();
    }

    /** Sets a key in the record store of a backup. Nothing is logged. */
    void applyToBackup(RecordStore<?> store, long now) {
        removed.forEach(key -> store.removeReplicatedRecord(key, true));
        for (LogEntry entry : set) {
            store.removeReplicatedRecord(entry.key(), true);
            store.putFromLoadBackup(entry.key(), entry.value(), expiry(entry), now);
        }
    }

    /** The time of expiry in the form that Hazelcast takes. */
    static long expiry(LogEntry entry) {
        return entry.expiresAtMs() == 0 ? MetadataAwareValue.NO_TIME_SET : entry.expiresAtMs();
    }

    void write(ObjectDataOutput out) throws IOException {
        out.writeInt(removed.size());
        for (Data key : removed) {
            IOUtil.writeData(out, key);
        }
        out.writeInt(set.size());
        for (LogEntry entry : set) {
            IOUtil.writeData(out, entry.key());
            IOUtil.writeData(out, entry.value());
            out.writeLong(entry.expiresAtMs());
        }
    }

    static Corrections read(ObjectDataInput in) throws IOException {
        Corrections read = new Corrections();
        for (int left = in.readInt(); left > 0; left--) {
            read.removed.add(IOUtil.readData(in));
        }
        for (int left = in.readInt(); left > 0; left--) {
            read.set.add(new LogEntry(IOUtil.readData(in), IOUtil.readData(in), in.readLong()));
        }
        return read;
    }
}
