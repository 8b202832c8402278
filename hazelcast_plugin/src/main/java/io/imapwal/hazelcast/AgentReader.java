package io.imapwal.hazelcast;

import com.hazelcast.internal.serialization.Data;
import com.hazelcast.internal.serialization.impl.HeapData;
import com.hazelcast.internal.serialization.impl.SerializationConstants;
import com.hazelcast.logging.ILogger;
import com.hazelcast.logging.Logger;

import java.io.Closeable;
import java.io.IOException;
import java.net.SocketTimeoutException;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.ReentrantLock;

/**
 * Reads from an agent over a connection of its own, so that no write waits for a read. Threads take
 * turns. A read that fails on an idle connection is tried once more on a new one, which has no
 * other effect. A thread waits for its turn at most as for its answer, because the read of another
 * thread may take as long as a merge of all logs.
 */
final class AgentReader implements Closeable {
    private static final int PART_BYTES = 8 << 20;
    private static final int FIRST_PART_KEYS = 64;
    /** The agent accepts no more in one request. */
    private static final int PART_KEYS = 1 << 16;
    /** The agent accepts ten times as many in a request. */
    private static final int MAPS_AT_ONCE = 1000;

    private final Candidates agents;
    private final AgentSettings settings;
    /** The agent of the connection. */
    private volatile Candidates.Candidate agent;
    private final ReentrantLock turn = new ReentrantLock();
    private final MsgpackWriter payload = new MsgpackWriter(4096);
    private volatile AgentConnection connection;
    private volatile boolean closed;
    /**
     * Keys in the next load. It is only a hint, so data races on it have no effect on correctness.
     */
    private volatile int loadSize = FIRST_PART_KEYS;

    AgentReader(Candidates agents) {
        this.agents = agents;
        this.agent = agents.own();
        this.settings = agent.settings();
    }

    /** How long a read waits for its answer. */
    enum Wait {
        /** For {@code timeout-ms}: an operation waits for it. */
        SHORT,
        /** For {@code restore-timeout-ms}, and longer while the agent works on reads. */
        LONG;

        private int ms(AgentSettings settings) {
            return this == SHORT ? settings.timeoutMs() : settings.restoreTimeoutMs();
        }
    }

    /**
     * A live entry.
     *
     * @param value       null: no map can have it ({@link Unusable})
     * @param expiresAtMs Unix time; 0: never
     */
    record Entry(Data key, Data value, long expiresAtMs) {
    }

    /**
     * @param count keys of the page, also those that no map can have
     * @param next  where the next page begins, as msgpack; null at the end
     * @param total how many keys the agent sent in this listing, this page included
     */
    record Keys(List<Data> keys, long count, byte[] next, long total) {
    }

    interface Schemas {
        void accept(long schemaId, byte[] bytes) throws IOException;
    }

    /** One page; {@link KeyListing} checks that none is missing. */
    Keys keys(String map, byte[] cursor, int limit) throws IOException {
        return page(() -> keysPage(map, cursor, limit));
    }

    /**
     * One page with entries.
     *
     * @param live  the entries of the first keys of the page, as far as they fit into an answer
     * @param rest  the other keys
     * @param count keys of the page
     * @param next  where the next page begins, as msgpack; null at the end
     * @param total how many keys the agent sent in this listing, this page included
     */
    record Page(List<Entry> live, List<Data> rest, long count, byte[] next, long total) {
    }

    /** @param partitions only their keys are listed */
    Page entries(String map, byte[] cursor, int limit, Set<Integer> partitions) throws IOException {
        return page(() -> entriesPage(map, cursor, limit, partitions));
    }

    private interface Asking<T> {
        T ask() throws IOException;
    }

    private static <T> T page(Asking<T> asking) throws IOException {
        try {
            return asking.ask();
        } catch (AgentError e) {
            throw e.code().equals("listing-gone") ? new ListingGone(e.getMessage(), e) : e;
        }
    }

    private static void cursor(MsgpackWriter header, byte[] cursor) {
        if (cursor == null) {
            header.nil();
        } else {
            header.raw(cursor, 0, cursor.length);
        }
    }

    private Keys keysPage(String map, byte[] cursor, int limit) throws IOException {
        return inTurn(Wait.LONG, agent -> {
            MsgpackWriter header = agent.start("keys", 3).string(map);
            cursor(header, cursor);
            header.integer(limit);
            AgentConnection.Answer answer =
                    agent.ask("keys", payload.clear(), deadline(Wait.LONG));
            byte[] next = answer.header().nil() ? null : answer.header().raw();
            long count = answer.header().integer();
            long total = answer.header().integer();
            Unusable unusable = new Unusable(map);
            List<Data> keys = datas(answer.payload(), count, unusable);
            unusable.tell();
            return new Keys(keys, count, next, total);
        });
    }

    private Page entriesPage(String map, byte[] cursor, int limit, Set<Integer> partitions)
            throws IOException {
        return inTurn(Wait.LONG, agent -> {
            MsgpackWriter header = agent.start("list", 4).string(map);
            cursor(header, cursor);
            header.integer(limit).array(partitions.size());
            partitions.forEach(header::integer);
            AgentConnection.Answer answer =
                    agent.ask("list", payload.clear(), deadline(Wait.LONG));
            byte[] next = answer.header().nil() ? null : answer.header().raw();
            long count = answer.header().integer();
            long total = answer.header().integer();
            long loaded = answer.header().integer();
            MsgpackReader stream = answer.payload();
            Unusable unusable = new Unusable(map);
            List<Entry> live = entries(stream, answer.header().integer(), unusable);
            if (loaded < 0 || loaded > count) {
                throw new ProtocolException("entries of " + loaded + " of " + count + " keys");
            }
            List<Data> rest = datas(stream, count - loaded, unusable);
            unusable.tell();
            return new Page(live, rest, count, next, total);
        });
    }

    private static List<Data> datas(MsgpackReader stream, long count, Unusable unusable)
            throws IOException {
        List<Data> found = new ArrayList<>((int) Math.min(count, 1 << 20));
        for (long i = 0; i < count; i++) {
            byte[] key = stream.binary();
            Data data = unusable.checked(key, "key", key);
            if (data != null) {
                found.add(data);
            }
        }
        return found;
    }

    private static List<Entry> entries(MsgpackReader stream, long count, Unusable unusable)
            throws IOException {
        List<Entry> found = new ArrayList<>((int) Math.min(count, 1 << 20));
        for (long i = 0; i < count; i++) {
            if (stream.array() != 3) {
                throw new ProtocolException("a loaded entry is [key, value, expires_at_ms]");
            }
            byte[] bytes = stream.binary();
            Data key = unusable.checked(bytes, "key", bytes);
            Data value = unusable.checked(stream.binary(), "value", bytes);
            long expiresAtMs = stream.integer();
            if (key != null) {
                found.add(new Entry(key, value, expiresAtMs));
            }
        }
        return found;
    }

    /**
     * Entries of an answer that no map can have, because their key or value is not the bytes of a
     * Hazelcast value. A member does not write them; a program that may write to the agent can. One
     * such entry must not keep a map from its other entries, so it is named, and its key cannot be
     * read.
     */
    private static final class Unusable {
        private static final ILogger LOGGER = Logger.getLogger(AgentReader.class);
        private static final int SHOWN_BYTES = 16;
        private final String map;
        private int count;
        private String first;

        Unusable(String map) {
            this.map = map;
        }

        /** Null: it is not usable. @param key of its entry */
        Data checked(byte[] bytes, String what, byte[] key) {
            if (bytes.length >= HeapData.HEAP_DATA_OVERHEAD) {
                Data data = new HeapData(bytes);
                if (data.getType() != SerializationConstants.CONSTANT_TYPE_NULL) {
                    return data;
                }
            }
            count++;
            if (first == null) {
                int shown = Math.min(key.length, SHOWN_BYTES);
                first = "the " + what + " of key " + HexFormat.of().formatHex(key, 0, shown)
                        + (shown < key.length ? "…" : "") + " has " + bytes.length
                        + " bytes, which are no value of Hazelcast";
            }
            return null;
        }

        String text() {
            return "map \"" + map + "\": " + count
                    + " entries of the log cannot be used; the first: " + first
                    + ". `imap-wal get` shows it with its position, and `imap-wal repair"
                    + " --drop-entry POSITION` writes a copy of the log without it";
        }

        void tell() {
            if (count > 0) {
                LOGGER.severe("imap-wal: " + text());
            }
        }
    }

    interface Digests {
        /** @param digest null: the agent has none */
        void accept(int partition, byte[] digest);
    }

    /**
     * Digests of the live entries of some partitions, as {@link EntriesDigest} makes them with this
     * salt. An agent of an earlier release has none.
     */
    void digests(String map, byte[] salt, List<Integer> partitions, Digests consumer)
            throws IOException {
        int from = 0;
        while (from < partitions.size()) {
            List<Integer> some = partitions.subList(from, partitions.size());
            List<byte[]> found;
            try {
                found = someDigests(map, salt, some);
            } catch (AgentError e) {
                if (e.code().equals("bad-request")) {
                    return;
                }
                throw e;
            }
            for (int i = 0; i < found.size(); i++) {
                consumer.accept(some.get(i), found.get(i));
            }
            from += found.size();
        }
    }

    /** The agent may answer for the first partitions only. */
    private List<byte[]> someDigests(String map, byte[] salt, List<Integer> partitions)
            throws IOException {
        return inTurn(Wait.LONG, agent -> {
            MsgpackWriter header = agent.start("digests", 3).string(map).binary(salt)
                    .array(partitions.size());
            partitions.forEach(header::integer);
            AgentConnection.Answer answer =
                    agent.ask("digests", payload.clear(), deadline(Wait.LONG));
            long taken = answer.header().integer();
            if (taken < 1 || taken > partitions.size()) {
                throw new ProtocolException("digests of " + taken + " of " + partitions.size()
                        + " partitions");
            }
            List<byte[]> found = new ArrayList<>();
            for (long i = 0; i < taken; i++) {
                found.add(answer.payload().nil() ? null : answer.payload().binary());
            }
            return found;
        });
    }

    /** @param taken how many keys, from the first on, the answer covers */
    private record Part(List<Entry> entries, int taken, int bytes) {
    }

    /** The live entries of these keys. */
    List<Entry> load(String map, List<Data> keys, Wait wait) throws IOException {
        List<Entry> entries = new ArrayList<>();
        loadParts(map, keys, wait, entries::addAll);
        return entries;
    }

    interface Entries {
        void accept(List<Entry> entries) throws IOException;
    }

    /**
     * As {@link #load}, in parts of bounded size. Values may have 100 bytes or megabytes, so the
     * number of keys in a request depends on the size of the last answer. The agent may answer for
     * the first keys only.
     */
    void loadParts(String map, List<Data> keys, Wait wait, Entries consumer)
            throws IOException {
        int from = 0;
        while (from < keys.size()) {
            List<Data> some = keys.subList(from, from + fitting(keys, from));
            Part part = loadPart(map, some, wait);
            from += part.taken;
            int fitting = (int) Math.min(PART_KEYS,
                    (long) PART_BYTES * part.taken / Math.max(1, part.bytes));
            loadSize = Math.max(1, Math.min(fitting, loadSize * 4));
            consumer.accept(part.entries);
        }
    }

    /**
     * How many keys from this one on are sent in a request: limited in number and size, at least
     * one.
     */
    private int fitting(List<Data> keys, int from) {
        int most = Math.min(keys.size() - from, loadSize);
        long bytes = 0;
        for (int count = 0; count < most; count++) {
            bytes += keys.get(from + count).totalSize();
            if (bytes > PART_BYTES && count > 0) {
                return count;
            }
        }
        return most;
    }

    private Part loadPart(String map, List<Data> keys, Wait wait) throws IOException {
        return inTurn(wait, agent -> {
            payload.clear();
            keys.forEach(key -> payload.binary(key.toByteArray()));
            agent.start("load", 2).string(map).integer(keys.size());
            AgentConnection.Answer answer = agent.ask("entries", payload, deadline(wait));
            long count = answer.header().integer();
            long taken = answer.header().hasMore() ? answer.header().integer() : keys.size();
            if (taken < 1 || taken > keys.size()) {
                throw new ProtocolException("an answer for " + taken + " of " + keys.size()
                        + " keys");
            }
            Unusable unusable = new Unusable(map);
            List<Entry> entries = entries(answer.payload(), count, unusable);
            if (wait == Wait.SHORT && unusable.count > 0) {
                throw new UnusableEntry(unusable.text()); // a caller waits for these keys
            }
            unusable.tell();
            return new Part(entries, (int) taken, answer.payloadBytes());
        });
    }

    /**
     * The answer of the agent about some maps.
     *
     * @param known  maps with entries in the log
     * @param wrong  names that no map can have, each with the reason
     */
    record Maps(Set<String> known, Map<String, String> wrong) {
    }

    Maps maps(Collection<String> maps) throws IOException {
        List<String> names = List.copyOf(maps);
        Maps found = new Maps(new HashSet<>(), new HashMap<>());
        for (int from = 0; from < names.size(); from += MAPS_AT_ONCE) {
            Maps some = someMaps(names.subList(from, Math.min(names.size(), from + MAPS_AT_ONCE)));
            found.known.addAll(some.known);
            found.wrong.putAll(some.wrong);
        }
        return found;
    }

    private Maps someMaps(Collection<String> maps) throws IOException {
        return inTurn(Wait.LONG, agent -> {
            MsgpackWriter header = agent.start("maps", 1).array(maps.size());
            maps.forEach(header::string);
            MsgpackReader answer =
                    agent.ask("maps", payload.clear(), deadline(Wait.LONG)).header();
            Set<String> known = new HashSet<>();
            for (int left = answer.array(); left > 0; left--) {
                known.add(answer.string());
            }
            Map<String, String> wrong = new HashMap<>();
            if (answer.value() instanceof Map<?, ?> texts) {
                texts.forEach((map, why) -> wrong.put(String.valueOf(map), String.valueOf(why)));
            }
            return new Maps(known, wrong);
        });
    }

    void schemas(Schemas consumer) throws IOException {
        List<Object[]> schemas = new ArrayList<>();
        Long after = null;
        do {
            after = someSchemas(after, schemas);
        } while (after != null);
        // Registering waits for the other members, so it is not done while other threads wait for
        // their turn.
        for (Object[] schema : schemas) {
            consumer.accept((Long) schema[0], (byte[]) schema[1]);
        }
    }

    /**
     * Adds schemas with ids above {@code after}.
     *
     * @return the last of these ids; null: there are no more
     */
    private Long someSchemas(Long after, List<Object[]> found) throws IOException {
        return inTurn(Wait.LONG, agent -> {
            MsgpackWriter header = agent.start("schemas", after == null ? 0 : 1);
            if (after != null) {
                header.integer(after);
            }
            AgentConnection.Answer answer =
                    agent.ask("schemas", payload.clear(), deadline(Wait.LONG));
            long count = answer.header().integer();
            Long last = answer.header().hasMore() && !answer.header().nil()
                    ? Long.valueOf(answer.header().integer()) : null;
            MsgpackReader stream = answer.payload();
            for (long i = 0; i < count; i++) {
                if (stream.array() != 2) {
                    throw new ProtocolException("a schema is [schema_id, bytes]");
                }
                found.add(new Object[] {stream.integer(), stream.binary()});
            }
            return last;
        });
    }

    /** Also ends a request in progress. */
    @Override
    public void close() {
        closed = true;
        AgentConnection open = connection;
        if (open != null) {
            open.close();
        }
    }

    private interface Request<T> {
        T on(AgentConnection connection) throws IOException;
    }

    private <T> T inTurn(Wait wait, Request<T> request) throws IOException {
        boolean interrupted = false;
        boolean mine = false;
        ZmtpConnection.Patience patience = wait == Wait.SHORT ? ZmtpConnection.Patience.NONE
                : () -> agent.identity().pulse().whileReading(wait.ms(settings)).moreMs();
        try {
            for (long deadline = deadline(wait); !mine;) {
                try {
                    mine = turn.tryLock(deadline - System.nanoTime(), TimeUnit.NANOSECONDS);
                    long moreMs = mine ? 0 : patience.moreMs();
                    if (!mine && moreMs == 0) {
                        throw new SocketTimeoutException("another read did not end in time");
                    }
                    deadline += TimeUnit.MILLISECONDS.toNanos(moreMs);
                } catch (InterruptedException e) {
                    interrupted = true;
                }
            }
            interrupted |= Thread.interrupted();
            boolean fresh = false;
            while (true) {
                try {
                    if (closed) {
                        throw new IOException("the member is shutting down");
                    }
                    if (connection != null && !connection.current(agent.identity())) {
                        disconnect();
                    }
                    if (connection == null) {
                        fresh = true;
                        Candidates.Opened opened = agents.open("read", wait == Wait.LONG);
                        agent = opened.candidate();
                        connection = opened.connection();
                    }
                    connection.patience(patience);
                    return request.on(connection);
                } catch (AgentError e) {
                    if (!e.connectionStays()) {
                        disconnect();
                    }
                    throw e;
                } catch (UnusableEntry e) {
                    throw e;
                } catch (IOException e) {
                    disconnect();
                    if (fresh || closed || e instanceof ProtocolException
                            || e instanceof SocketTimeoutException) {
                        throw e;
                    }
                } catch (RuntimeException e) {
                    disconnect();
                    throw e;
                }
            }
        } finally {
            if (mine) {
                turn.unlock();
            }
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    private void disconnect() {
        if (connection != null) {
            connection.close();
            connection = null;
        }
    }

    private long deadline(Wait wait) {
        return System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(wait.ms(settings));
    }

    /** A read of some keys met an entry that no map can have. */
    private static final class UnusableEntry extends IOException {
        private static final long serialVersionUID = 1L;

        UnusableEntry(String message) {
            super(message);
        }
    }
}
