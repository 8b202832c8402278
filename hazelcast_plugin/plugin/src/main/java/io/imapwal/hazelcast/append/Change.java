package io.imapwal.hazelcast.append;

import com.hazelcast.internal.serialization.Data;
import io.imapwal.wire.MsgpackWriter;

import java.nio.charset.StandardCharsets;
import java.util.UUID;

/**
 * One change that is not in the log yet: a DataEntry. The sending thread completes its order.
 *
 * <pre>
 * DataEntry  [map, key, key_class, value, value_class, deleted, timestamp_ms, expires_at_ms,
 *             partition, order]
 * head       everything up to order, as msgpack
 * order      [incarnation, version and turn, session, request]
 * </pre>
 *
 * A clear of a partition has no key, and has the number of partitions in place of an expiry.
 */
public final class Change {
    public final String map;
    /** Null in a clear. */
    public final Data key;
    public final byte[] head;
    public final PartitionStamp stamp;
    /** Its transaction; null: none. */
    public final UUID transaction;
    public PendingAppend pending;
    public long request;
    /** Whether it has an outcome. Used by {@link PendingAppend}. */
    boolean over;

    public Change(String map, Data key, byte[] head, PartitionStamp stamp) {
        this(map, key, head, stamp, null);
    }

    public Change(String map, Data key, byte[] head, PartitionStamp stamp, UUID transaction) {
        this.map = map;
        this.key = key;
        this.head = head;
        this.stamp = stamp;
        this.transaction = transaction;
    }

    /** All keys of a partition are deleted. */
    public static Change clear(String map, PartitionStamp stamp, int partitionCount) {
        byte[] name = map.getBytes(StandardCharsets.UTF_8);
        MsgpackWriter to = new MsgpackWriter(64 + name.length);
        to.array(10).string(name).nil().string("").nil().string("").bool(true)
                .integer(System.currentTimeMillis())
                .integer(partitionCount).integer(stamp.partition());
        return new Change(map, null, to.toByteArray(), stamp);
    }

    public static byte[] head(byte[] map, byte[] key, byte[] keyClass, byte[] value,
            byte[] valueClass, long timestampMs, long expiresAtMs, int partition) {
        MsgpackWriter to = new MsgpackWriter(64 + map.length + key.length + keyClass.length
                + valueClass.length + (value == null ? 0 : value.length));
        to.array(10).string(map).binary(key).string(keyClass);
        if (value == null) {
            to.nil();
        } else {
            to.binary(value);
        }
        to.string(valueClass).bool(value == null).integer(timestampMs).integer(expiresAtMs)
                .integer(partition);
        return to.toByteArray();
    }

    public void write(MsgpackWriter to, long incarnation, long session) {
        to.raw(head, 0, head.length).array(4).integer(incarnation).integer(stamp.order());
        to.integer(session).integer(request);
    }
}
