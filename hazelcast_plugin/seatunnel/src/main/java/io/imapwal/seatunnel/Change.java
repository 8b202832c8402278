package io.imapwal.seatunnel;

import io.imapwal.wire.MsgpackWriter;
import io.imapwal.wire.SessionInfo;

/** One change that is not in the log yet: a DataEntry, without its order. */
final class Change {
    final String map;
    final Object key;
    final byte[] keyBytes;
    final int valueBytes;
    private final long order;
    private final byte[] head;

    /**
     * @param value       null: a deletion
     * @param expiresAtMs 0: never
     * @param order       see {@link ThisMember#order}
     */
    Change(String map, Object key, Object value, long expiresAtMs, int partition, long order) {
        this.map = map;
        this.key = key;
        this.order = order;
        keyBytes = TypedBytes.of(key);
        byte[] bytes = value == null ? null : TypedBytes.of(value);
        valueBytes = bytes == null ? 0 : bytes.length;
        MsgpackWriter to = new MsgpackWriter(256 + keyBytes.length + valueBytes);
        to.array(10).string(map).binary(keyBytes).string(key.getClass().getName());
        if (bytes == null) {
            to.nil().string("");
        } else {
            to.binary(bytes).string(value.getClass().getName());
        }
        to.bool(bytes == null).integer(System.currentTimeMillis()).integer(expiresAtMs)
                .integer(partition);
        head = to.toByteArray();
    }

    /** About how much of a message it takes. */
    int bytes() {
        return head.length + 64;
    }

    void write(MsgpackWriter to, SessionInfo session, long request) {
        to.raw(head, 0, head.length).array(4).integer(session.incarnation()).integer(order)
                .integer(session.session()).integer(request);
    }
}
