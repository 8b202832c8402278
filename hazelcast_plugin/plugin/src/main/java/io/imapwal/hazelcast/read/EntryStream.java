package io.imapwal.hazelcast.read;

import com.hazelcast.internal.serialization.Data;
import com.hazelcast.internal.serialization.impl.HeapData;
import com.hazelcast.internal.serialization.impl.SerializationConstants;
import com.hazelcast.logging.ILogger;
import com.hazelcast.logging.Logger;
import io.imapwal.wire.MsgpackReader;
import io.imapwal.wire.ProtocolException;

import java.io.IOException;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;

/**
 * Keys and entries of a map in an agent's answer. Some may be impossible in a map, because their
 * key or value is not the bytes of a Hazelcast value. A member does not write such entries, but a
 * program that may write to the agent can. One such entry must not make the others unavailable, so
 * it is reported, and only its key cannot be read.
 */
final class EntryStream {
    private static final ILogger LOGGER = Logger.getLogger(EntryStream.class);
    private static final int SHOWN_BYTES = 16;
    /** The agent sends the count, so no list is allocated for more before the keys arrive. */
    private static final int MOST_EXPECTED = 1 << 20;

    private final String map;
    private final MsgpackReader stream;
    private int unusable;
    private String first;

    EntryStream(String map, MsgpackReader stream) {
        this.map = map;
        this.stream = stream;
    }

    /** The next keys, without those that no map can have. */
    List<Data> keys(long count) throws IOException {
        List<Data> found = new ArrayList<>((int) Math.min(count, MOST_EXPECTED));
        for (long i = 0; i < count; i++) {
            byte[] key = stream.binary();
            Data data = checked(key, "key", key);
            if (data != null) {
                found.add(data);
            }
        }
        return found;
    }

    /** The next entries, without those whose key no map can have. */
    List<LogEntry> entries(long count) throws IOException {
        List<LogEntry> found = new ArrayList<>((int) Math.min(count, MOST_EXPECTED));
        for (long i = 0; i < count; i++) {
            if (stream.array() != 3) {
                throw new ProtocolException("a loaded entry is [key, value, expires_at_ms]");
            }
            byte[] bytes = stream.binary();
            Data key = checked(bytes, "key", bytes);
            Data value = checked(stream.binary(), "value", bytes);
            long expiresAtMs = stream.integer();
            if (key != null) {
                found.add(new LogEntry(key, value, expiresAtMs));
            }
        }
        return found;
    }

    /** Null: it is not usable. @param key of its entry */
    private Data checked(byte[] bytes, String what, byte[] key) {
        if (bytes.length >= HeapData.HEAP_DATA_OVERHEAD) {
            Data data = new HeapData(bytes);
            if (data.getType() != SerializationConstants.CONSTANT_TYPE_NULL) {
                return data;
            }
        }
        unusable++;
        if (first == null) {
            int shown = Math.min(key.length, SHOWN_BYTES);
            first = "the " + what + " of key " + HexFormat.of().formatHex(key, 0, shown)
                    + (shown < key.length ? "…" : "") + " has " + bytes.length
                    + " bytes, which are not a Hazelcast value";
        }
        return null;
    }

    private String text() {
        return "map \"" + map + "\": " + unusable
                + " entries of the log cannot be used; the first: " + first
                + ". `imap-wal get` shows it with its position";
    }

    /** Logs an error if there were entries that no map can have. */
    void reportUnusable() {
        if (unusable > 0) {
            LOGGER.severe("imap-wal: " + text());
        }
    }

    /** @throws IOException there were entries that no map can have */
    void requireUsable() throws IOException {
        if (unusable > 0) {
            throw new IOException(text());
        }
    }
}
