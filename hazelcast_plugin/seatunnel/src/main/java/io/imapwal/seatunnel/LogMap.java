package io.imapwal.seatunnel;

import com.hazelcast.core.HazelcastException;
import com.hazelcast.core.HazelcastInstanceNotActiveException;
import com.hazelcast.core.OperationTimeoutException;
import io.imapwal.wire.AgentError;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/** One map in the log: what both entrances do. */
final class LogMap {
    private static final long PAUSE_MS = 200;
    private static final long PAUSE_MS_MAX = 2000;
    private static final long WARN_NANOS = TimeUnit.SECONDS.toNanos(10);

    private final String name;
    private final LogClient client;

    LogMap(String name, LogClient client) {
        this.name = name;
        this.client = client;
    }

    /** A value, and when it expires; 0: never. */
    static final class Entry {
        final Object value;
        final long expiresAtMs;

        Entry(Object value, long expiresAtMs) {
            this.value = value;
            this.expiresAtMs = expiresAtMs;
        }

        /** 0: it never expires. */
        long ttlMs() {
            return expiresAtMs == 0 ? 0
                    : Math.max(1, expiresAtMs - System.currentTimeMillis());
        }
    }

    String name() {
        return name;
    }

    /** @throws HazelcastInstanceNotActiveException the member has shut down */
    void check() {
        if (!client.member.isRunning()) {
            throw new HazelcastInstanceNotActiveException();
        }
    }

    void store(Map<Object, Entry> entries) {
        List<Change> changes = new ArrayList<>(entries.size());
        entries.forEach((key, entry) -> changes.add(change(key, entry.value, entry.expiresAtMs)));
        client.appender.append(changes);
    }

    void delete(Collection<Object> keys) {
        List<Change> changes = new ArrayList<>(keys.size());
        keys.forEach(key -> changes.add(change(key, null, 0)));
        client.appender.append(changes);
    }

    private Change change(Object key, Object value, long expiresAtMs) {
        int partition = client.member.partition(key);
        return new Change(this, key, value, expiresAtMs, partition,
                client.member.order(partition));
    }

    /** The entry of a key; null: there is none. */
    Entry load(Object key) throws IOException {
        List<Entry> entries = new ArrayList<>(1);
        client.single.load(name, Collections.singletonList(TypedBytes.of(key)),
                (keyBytes, value, expiresAtMs) ->
                        entries.add(new Entry(TypedBytes.object(value), expiresAtMs)));
        return entries.isEmpty() ? null : entries.get(0);
    }

    /** As {@link #load(Object)}, for an operation. */
    Entry loadNow(Object key) {
        try {
            return load(key);
        } catch (IOException e) {
            // Without a cause, as in Appender.append.
            throw new OperationTimeoutException("imap-wal: map \"" + name + "\": key " + key
                    + " is not in memory, and agent " + client.agent + " cannot be asked: "
                    + AgentError.reason(e));
        }
    }

    /** All keys. Waits until the log can be read. */
    List<Object> keys() {
        return untilRead(() -> {
            List<byte[]> bytes = client.whole.keys(name);
            List<Object> keys = new ArrayList<>(bytes.size());
            Unusable unusable = new Unusable();
            for (byte[] key : bytes) {
                unusable.tried(() -> keys.add(TypedBytes.object(key)));
            }
            unusable.report();
            return keys;
        });
    }

    /** The live entries of these keys. Waits until the log can be read. */
    Map<Object, Entry> loadAll(Collection<Object> keys) {
        List<byte[]> bytes = new ArrayList<>(keys.size());
        keys.forEach(key -> bytes.add(TypedBytes.of(key)));
        return untilRead(() -> loaded(bytes));
    }

    /** All live entries. Waits until the log can be read. */
    Map<Object, Entry> loadAll() {
        return untilRead(() -> loaded(client.whole.keys(name)));
    }

    private Map<Object, Entry> loaded(List<byte[]> keys) throws IOException {
        Map<Object, Entry> entries = new HashMap<>();
        Unusable unusable = new Unusable();
        client.whole.load(name, keys, (key, value, expiresAtMs) -> unusable.tried(() ->
                entries.put(TypedBytes.object(key),
                        new Entry(TypedBytes.object(value), expiresAtMs))));
        unusable.report();
        return entries;
    }

    private interface Reading<T> {
        T read() throws IOException;
    }

    /**
     * Hazelcast forgets an error of a loader, and the map would count as loaded, and be empty. So a
     * map is not available until its log could be read, and the member's log says why.
     */
    private <T> T untilRead(Reading<T> reading) {
        long warned = System.nanoTime() - WARN_NANOS;
        for (long pause = PAUSE_MS; ; pause = Math.min(PAUSE_MS_MAX, pause * 2)) {
            try {
                return reading.read();
            } catch (IOException e) {
                check();
                if (System.nanoTime() - warned >= WARN_NANOS) {
                    warned = System.nanoTime();
                    client.member.logger().warning("imap-wal: map \"" + name
                            + "\" waits for agent " + client.agent + ": "
                            + AgentError.reason(e));
                }
            }
            try {
                TimeUnit.MILLISECONDS.sleep(pause);
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
                throw new HazelcastException("imap-wal: map \"" + name
                        + "\" was not loaded: interrupted", e);
            }
        }
    }

    private interface Use {
        void run() throws IOException;
    }

    /** Entries that no object can be made of. The others must still be available. */
    private final class Unusable {
        private int count;
        private IOException first;

        void tried(Use use) {
            try {
                use.run();
            } catch (IOException e) {
                count++;
                first = first == null ? e : first;
            }
        }

        void report() {
            if (count > 0) {
                client.member.logger().severe("imap-wal: map \"" + name + "\": " + count
                        + " entries of the log cannot be used, and stay in it; the first: "
                        + AgentError.reason(first), first);
            }
        }
    }
}
