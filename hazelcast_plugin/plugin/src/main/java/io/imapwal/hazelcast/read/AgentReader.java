package io.imapwal.hazelcast.read;

import com.hazelcast.internal.serialization.Data;
import io.imapwal.wire.AgentConnection;
import io.imapwal.wire.Candidates;
import io.imapwal.wire.MsgpackReader;
import io.imapwal.wire.MsgpackWriter;
import io.imapwal.wire.ProtocolException;
import io.imapwal.wire.ReadConnection;

import java.io.Closeable;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** The requests that read an agent's log. */
public final class AgentReader implements Closeable {
    private static final int PART_BYTES = 8 << 20;
    private static final int FIRST_PART_KEYS = 64;
    /** The most keys that the agent accepts in one request. */
    private static final int PART_KEYS = 1 << 16;
    /** Names of maps in one request. The agent accepts ten times as many. */
    private static final int MAPS_AT_ONCE = 1000;

    private final ReadTurns connection;
    /** Used only by the thread whose turn it is. */
    private final MsgpackWriter payload = new MsgpackWriter(4096);
    /**
     * Keys in the next load. It is only a hint, so data races on it have no effect on correctness.
     */
    private volatile int loadSize = FIRST_PART_KEYS;

    public AgentReader(Candidates agents) {
        this.connection = new ReadTurns(agents);
    }

    /**
     * @param count keys of the page, also those that no map can have
     * @param next  where the next page begins, as msgpack; null at the end
     * @param total how many keys the agent sent in this listing, this page included
     */
    public record Keys(List<Data> keys, long count, byte[] next, long total) {
    }

    public interface Schemas {
        void accept(long schemaId, byte[] bytes) throws IOException;
    }

    /** One page; {@link KeyListing} checks that none is missing. */
    public Keys keys(String map, byte[] cursor, int limit) throws IOException {
        return inTurn(ReadWait.LONG, agent -> {
            MsgpackWriter header = agent.start("keys", 3).string(map);
            cursor(header, cursor);
            header.integer(limit);
            AgentConnection.Answer answer =
                    agent.ask("keys", payload.clear(), deadline(ReadWait.LONG));
            byte[] next = answer.header().nil() ? null : answer.header().raw();
            long count = answer.header().integer();
            long total = answer.header().integer();
            EntryStream stream = new EntryStream(map, answer.payload());
            List<Data> keys = stream.keys(count);
            stream.reportUnusable();
            return new Keys(keys, count, next, total);
        });
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
    public record Page(List<LogEntry> live, List<Data> rest, long count, byte[] next, long total) {
    }

    /** @param partitions only their keys are listed */
    public Page entries(String map, byte[] cursor, int limit, Set<Integer> partitions)
            throws IOException {
        return inTurn(ReadWait.LONG, agent -> {
            MsgpackWriter header = agent.start("list", 4).string(map);
            cursor(header, cursor);
            header.integer(limit).array(partitions.size());
            partitions.forEach(header::integer);
            AgentConnection.Answer answer =
                    agent.ask("list", payload.clear(), deadline(ReadWait.LONG));
            byte[] next = answer.header().nil() ? null : answer.header().raw();
            long count = answer.header().integer();
            long total = answer.header().integer();
            long loaded = answer.header().integer();
            EntryStream stream = new EntryStream(map, answer.payload());
            List<LogEntry> live = stream.entries(answer.header().integer());
            if (loaded < 0 || loaded > count) {
                throw new ProtocolException("entries of " + loaded + " of " + count + " keys");
            }
            List<Data> rest = stream.keys(count - loaded);
            stream.reportUnusable();
            return new Page(live, rest, count, next, total);
        });
    }

    private static void cursor(MsgpackWriter header, byte[] cursor) {
        if (cursor == null) {
            header.nil();
        } else {
            header.raw(cursor, 0, cursor.length);
        }
    }

    public interface Digests {
        /** @param digest null: the agent has none */
        void accept(int partition, byte[] digest);
    }

    /**
     * Digests of the live entries of some partitions, as {@code EntriesDigest} makes them with this
     * salt.
     */
    public void digests(String map, byte[] salt, List<Integer> partitions, Digests consumer)
            throws IOException {
        int from = 0;
        while (from < partitions.size()) {
            List<Integer> some = partitions.subList(from, partitions.size());
            List<byte[]> found = someDigests(map, salt, some);
            for (int i = 0; i < found.size(); i++) {
                consumer.accept(some.get(i), found.get(i));
            }
            from += found.size();
        }
    }

    /** The agent may answer for the first partitions only. */
    private List<byte[]> someDigests(String map, byte[] salt, List<Integer> partitions)
            throws IOException {
        return inTurn(ReadWait.LONG, agent -> {
            MsgpackWriter header = agent.start("digests", 3).string(map).binary(salt)
                    .array(partitions.size());
            partitions.forEach(header::integer);
            AgentConnection.Answer answer =
                    agent.ask("digests", payload.clear(), deadline(ReadWait.LONG));
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
    private record Part(EntryStream stream, List<LogEntry> entries, int taken, int bytes) {
    }

    /** The live entries of these keys. */
    public List<LogEntry> load(String map, List<Data> keys, ReadWait wait) throws IOException {
        List<LogEntry> entries = new ArrayList<>();
        loadParts(map, keys, wait, entries::addAll);
        return entries;
    }

    public interface Entries {
        void accept(List<LogEntry> entries) throws IOException;
    }

    /**
     * As {@link #load}, in parts of bounded size. Values may have 100 bytes or megabytes, so the
     * number of keys in a request depends on the size of the last answer. The agent may answer for
     * the first keys only.
     */
    public void loadParts(String map, List<Data> keys, ReadWait wait, Entries consumer)
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

    private Part loadPart(String map, List<Data> keys, ReadWait wait) throws IOException {
        Part part = inTurn(wait, agent -> {
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
            EntryStream stream = new EntryStream(map, answer.payload());
            return new Part(stream, stream.entries(count), (int) taken, answer.payloadBytes());
        });
        if (wait == ReadWait.SHORT) {
            part.stream.requireUsable();  // a caller waits for these keys
        } else {
            part.stream.reportUnusable();
        }
        return part;
    }

    /**
     * The answer of the agent about some maps.
     *
     * @param known  maps with entries in the log
     * @param wrong  names that no map can have, each with the reason
     */
    public record Maps(Set<String> known, Map<String, String> wrong) {
    }

    public Maps maps(Collection<String> maps) throws IOException {
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
        return inTurn(ReadWait.LONG, agent -> {
            MsgpackWriter header = agent.start("maps", 1).array(maps.size());
            maps.forEach(header::string);
            MsgpackReader answer =
                    agent.ask("maps", payload.clear(), deadline(ReadWait.LONG)).header();
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

    public void schemas(Schemas consumer) throws IOException {
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
        return inTurn(ReadWait.LONG, agent -> {
            MsgpackWriter header = agent.start("schemas", after == null ? 0 : 1);
            if (after != null) {
                header.integer(after);
            }
            AgentConnection.Answer answer =
                    agent.ask("schemas", payload.clear(), deadline(ReadWait.LONG));
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

    private <T> T inTurn(ReadWait wait, ReadConnection.Request<T> request) throws IOException {
        return connection.inTurn(wait, request);
    }

    private long deadline(ReadWait wait) {
        return connection.deadline(wait);
    }

    /** Also ends a request in progress. */
    @Override
    public void close() {
        connection.close();
    }
}
