package io.imapwal.seatunnel;

import com.hazelcast.config.MapStoreConfig;
import com.hazelcast.core.HazelcastException;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.core.OperationTimeoutException;
import io.imapwal.wire.AgentError;
import io.imapwal.wire.AgentSettings;

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

    private LogMap(String name, LogClient client) {
        this.name = name;
        this.client = client;
    }

    /** A map in the log of the agent that its settings name. */
    static LogMap of(HazelcastInstance instance, String name, AgentSettings settings) {
        ThisMember member = new ThisMember(instance);
        MapStoreConfig config = member.mapStore(name);
        if (config.getWriteDelaySeconds() > 0) {
            throw new IllegalArgumentException("map \"" + name + "\": write-delay-seconds is "
                    + config.getWriteDelaySeconds()
                    + ", so a change would be acknowledged before it is in the log; set it to 0");
        }
        if (config.getInitialLoadMode() != MapStoreConfig.InitialLoadMode.EAGER) {
            throw new IllegalArgumentException("map \"" + name + "\": initial-mode is LAZY, so the"
                    + " map would look empty until it is loaded; set it to EAGER");
        }
        return new LogMap(name, LogClient.of(member, settings));
    }

    void store(Map<Object, LogReader.Entry> entries) {
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
        return new Change(name, key, value, expiresAtMs, partition,
                client.member.order(partition));
    }

    /** The entry of a key, for an operation; null: there is none. */
    LogReader.Entry load(Object key) {
        try {
            return client.single.load(name, key);
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
    Map<Object, LogReader.Entry> loadAll(Collection<Object> keys) {
        List<byte[]> bytes = new ArrayList<>(keys.size());
        keys.forEach(key -> bytes.add(TypedBytes.of(key)));
        return untilRead(() -> loaded(bytes));
    }

    /** All live entries. Waits until the log can be read. */
    Map<Object, LogReader.Entry> loadAll() {
        return untilRead(() -> loaded(client.whole.keys(name)));
    }

    private Map<Object, LogReader.Entry> loaded(List<byte[]> keys) throws IOException {
        Map<Object, LogReader.Entry> entries = new HashMap<>();
        Unusable unusable = new Unusable();
        client.whole.load(name, keys, (key, value, expiresAtMs) -> unusable.tried(() ->
                entries.put(TypedBytes.object(key),
                        new LogReader.Entry(TypedBytes.object(value), expiresAtMs))));
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
                client.member.requireRunning();
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
