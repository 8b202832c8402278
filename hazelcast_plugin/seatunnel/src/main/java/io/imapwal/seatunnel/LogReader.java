package io.imapwal.seatunnel;

import io.imapwal.wire.AgentConnection;
import io.imapwal.wire.AgentSettings;
import io.imapwal.wire.Candidates;
import io.imapwal.wire.ListingGone;
import io.imapwal.wire.MsgpackReader;
import io.imapwal.wire.MsgpackWriter;
import io.imapwal.wire.ProtocolException;
import io.imapwal.wire.ReadConnection;
import io.imapwal.wire.ZmtpConnection;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.TimeUnit;

/** Reads a log by its agent, on one connection. Threads take turns. */
final class LogReader {
    private static final int LISTINGS_MAX = 8;
    private static final int LOAD_KEYS = 1000;
    private static final int LOAD_BYTES = 8 << 20;

    private final Candidates.Candidate agent;
    private final AgentSettings settings;
    private final boolean patient;
    private final MsgpackWriter payload = new MsgpackWriter(4096);
    private final ReadConnection connection;

    /** @param patient whether answers may take as long as a merge of all logs */
    LogReader(Candidates.Candidate agent, boolean patient) {
        this.agent = agent;
        this.settings = agent.settings();
        this.patient = patient;
        this.connection = new ReadConnection(agent);
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

    interface Entries {
        void accept(byte[] key, byte[] value, long expiresAtMs) throws IOException;
    }

    /** The bytes of all keys of a map. */
    List<byte[]> keys(String map) throws IOException {
        for (int begun = 1; ; begun++) {
            try {
                return listing(map);
            } catch (ListingGone e) {
                if (begun == LISTINGS_MAX) {
                    throw e;
                }
            }
        }
    }

    private List<byte[]> listing(String map) throws IOException {
        List<byte[]> keys = new ArrayList<>();
        byte[] cursor = null;
        do {
            byte[] from = cursor;
            MsgpackReader header = ask(agent -> {
                MsgpackWriter request = agent.start("keys", 3).string(map);
                if (from == null) {
                    request.nil();
                } else {
                    request.raw(from, 0, from.length);
                }
                request.integer(settings.restoreChunk());
                AgentConnection.Answer answer =
                        agent.ask("keys", payload.clear(), deadline());
                while (answer.payload().hasMore()) {
                    keys.add(answer.payload().binary());
                }
                return answer.header();
            });
            cursor = header.nil() ? null : header.raw();
            header.integer();
            if (header.integer() != keys.size()) {
                throw new ListingGone("keys of map \"" + map + "\" are missing", null);
            }
        } while (cursor != null);
        return keys;
    }

    /** The entry of a key; null: there is none. */
    Entry load(String map, Object key) throws IOException {
        List<Entry> entries = new ArrayList<>(1);
        load(map, Collections.singletonList(TypedBytes.of(key)), (bytes, value, expiresAtMs) ->
                entries.add(new Entry(TypedBytes.object(value), expiresAtMs)));
        return entries.isEmpty() ? null : entries.get(0);
    }

    /** The live entries of these keys. */
    void load(String map, List<byte[]> keys, Entries entries) throws IOException {
        for (int from = 0; from < keys.size();) {
            int to = from;
            for (long bytes = 0; to < keys.size() && to - from < LOAD_KEYS
                    && (to == from || bytes + keys.get(to).length < LOAD_BYTES); to++) {
                bytes += keys.get(to).length;
            }
            from += some(map, keys.subList(from, to), entries);
        }
    }

    /** How many of the keys, from the first on, the agent has answered for. */
    private int some(String map, List<byte[]> keys, Entries entries) throws IOException {
        AgentConnection.Answer answer = ask(agent -> {
            agent.start("load", 2).string(map).integer(keys.size());
            payload.clear();
            keys.forEach(payload::binary);
            return agent.ask("entries", payload, deadline());
        });
        long count = answer.header().integer();
        long taken = answer.header().hasMore() ? answer.header().integer() : keys.size();
        if (taken < 1 || taken > keys.size()) {
            throw new ProtocolException("entries of " + taken + " of " + keys.size() + " keys");
        }
        for (long i = 0; i < count; i++) {
            if (answer.payload().array() != 3) {
                throw new ProtocolException("a loaded entry is [key, value, expires_at_ms]");
            }
            entries.accept(answer.payload().binary(), answer.payload().binary(),
                    answer.payload().integer());
        }
        return (int) taken;
    }

    private long deadline() {
        return System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(
                patient ? settings.restoreTimeoutMs() : settings.timeoutMs());
    }

    private synchronized <T> T ask(ReadConnection.Request<T> request) throws IOException {
        ZmtpConnection.Patience patience = patient
                ? agent.identity().pulse().whileReading(settings.restoreTimeoutMs())
                : ZmtpConnection.Patience.NONE;
        return connection.ask(() -> agent.opened("read", patient), patience, request);
    }

    void close() {
        connection.close();
    }
}
