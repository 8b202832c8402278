package io.imapwal.hazelcast.settle;

import com.hazelcast.config.InMemoryFormat;
import com.hazelcast.instance.impl.Node;
import com.hazelcast.internal.nio.IOUtil;
import com.hazelcast.internal.serialization.Data;
import com.hazelcast.internal.services.NodeAware;
import com.hazelcast.internal.util.UUIDSerializationUtil;
import com.hazelcast.map.EntryProcessor;
import com.hazelcast.map.impl.LazyMapEntry;
import com.hazelcast.map.impl.MapContainer;
import com.hazelcast.nio.ObjectDataInput;
import com.hazelcast.nio.ObjectDataOutput;
import com.hazelcast.nio.serialization.IdentifiedDataSerializable;
import com.hazelcast.spi.impl.NodeEngine;
import io.imapwal.hazelcast.engine.Composed;
import io.imapwal.hazelcast.engine.OperationIds;
import io.imapwal.hazelcast.read.LogEntry;

import java.io.IOException;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.TimeUnit;

/**
 * Sets a key in doubt in memory from the log, on its owner. The {@link Reconciler} sends it; a
 * whole partition is settled by {@link SettleOperation} instead. No other change of the key runs at
 * the same time: earlier changes are in the log that it reads, and later ones are newer.
 *
 * <p>This appends the same value once more, with a newer order, except for a transaction's key that
 * still has its place. That is the cost of a public interface that keeps backups, indexes,
 * listeners and near caches correct. Only keys in doubt have this cost.
 */
public final class DoubtProcessor
        implements EntryProcessor<Object, Object, Object>, NodeAware, IdentifiedDataSerializable {
    private String map;
    private Data key;
    /** The transaction of the change in doubt; or null. */
    private UUID transaction;
    private transient NodeEngine nodeEngine;
    private transient OnBackup backup;

    /** For deserialisation. */
    public DoubtProcessor() {
    }

    public DoubtProcessor(String map, Data key, UUID transaction) {
        this.map = map;
        this.key = key;
        this.transaction = transaction;
    }

    @Override
    public Object process(Map.Entry<Object, Object> entry) {
        OwnMaps maps = Composed.of(nodeEngine, OwnMaps.class);
        maps.placements().check(map, key, transaction);
        MapContainer container = maps.member().maps().getMapContainer(map);
        if (!container.getInterceptorRegistry().getInterceptors().isEmpty()) {
            // Interceptors would change the logged value again.
            endPlace(maps);
            maps.doubt(map, maps.member().partition(key));
            return null;
        }
        // Until memory is set, the place stays: the coordinator may leave before it tries again.
        LogEntry newest = maps.newest(map, key);
        long ttlMs = newest == null || newest.expiresAtMs() == 0 ? 0
                : newest.expiresAtMs() - System.currentTimeMillis();
        backup = newest == null || ttlMs < 0 ? new OnBackup(null, 0)
                : new OnBackup(newest.value(), newest.expiresAtMs());
        if (backup.value == null && ((LazyMapEntry<?, ?>) entry).hasNullValue()) {
            endPlace(maps);
            return null;
        }
        if (transaction != null) {
            maps.placements().settle(map, key, transaction, backup.value);
        }
        backup.set(entry);
        return null;
    }

    private void endPlace(OwnMaps maps) {
        if (transaction != null) {
            maps.placements().remove(map, key, transaction);
        }
    }

    @Override
    public EntryProcessor<Object, Object, Object> getBackupProcessor() {
        return backup;
    }

    @Override
    public void setNode(Node node) {
        nodeEngine = node.getNodeEngine();
    }

    @Override
    public void writeData(ObjectDataOutput out) throws IOException {
        out.writeString(map);
        IOUtil.writeData(out, key);
        out.writeBoolean(transaction != null);
        if (transaction != null) {
            UUIDSerializationUtil.writeUUID(out, transaction);
        }
    }

    @Override
    public void readData(ObjectDataInput in) throws IOException {
        map = in.readString();
        key = IOUtil.readData(in);
        transaction = in.readBoolean() ? UUIDSerializationUtil.readUUID(in) : null;
    }

    @Override
    public int getFactoryId() {
        return OperationIds.FACTORY;
    }

    @Override
    public int getClassId() {
        return OperationIds.DOUBT_PROCESSOR;
    }

    /**
     * Does the same on a backup. A backup gets the value with the operation, and does not read from
     * its own agent.
     */
    public static final class OnBackup
            implements EntryProcessor<Object, Object, Object>, IdentifiedDataSerializable {
        private Data value;
        private long expiresAtMs;

        /** For deserialisation. */
        public OnBackup() {
        }

        public OnBackup(Data value, long expiresAtMs) {
            this.value = value;
            this.expiresAtMs = expiresAtMs;
        }

        @Override
        public Object process(Map.Entry<Object, Object> entry) {
            set(entry);
            return null;
        }

        public void set(Map.Entry<Object, Object> entry) {
            // Without reading the values: this member may not have their classes.
            LazyMapEntry<?, ?> changed = (LazyMapEntry<?, ?>) entry;
            changed.remove();
            if (value != null) {
                // 0 means without expiry, in Hazelcast too.
                long ttlMs = expiresAtMs == 0 ? 0
                        : Math.max(1, expiresAtMs - System.currentTimeMillis());
                changed.setValue(null, ttlMs, TimeUnit.MILLISECONDS);
                changed.setValueByInMemoryFormat(InMemoryFormat.BINARY, value);
            }
        }

        @Override
        public EntryProcessor<Object, Object, Object> getBackupProcessor() {
            return null;
        }

        @Override
        public void writeData(ObjectDataOutput out) throws IOException {
            IOUtil.writeData(out, value);
            out.writeLong(expiresAtMs);
        }

        @Override
        public void readData(ObjectDataInput in) throws IOException {
            value = IOUtil.readData(in);
            expiresAtMs = in.readLong();
        }

        @Override
        public int getFactoryId() {
            return OperationIds.FACTORY;
        }

        @Override
        public int getClassId() {
            return OperationIds.DOUBT_PROCESSOR_BACKUP;
        }
    }
}
