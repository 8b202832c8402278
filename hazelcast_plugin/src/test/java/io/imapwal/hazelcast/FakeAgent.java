package io.imapwal.hazelcast;

import java.io.ByteArrayOutputStream;
import java.io.Closeable;
import java.io.DataInputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.nio.channels.Channels;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;

/**
 * An agent whose log is a table in memory. It can be stopped, started, and made to fail.
 * Agents may share a log.
 */
final class FakeAgent implements Closeable {

    /** What to do with appends. */
    enum Mood {
        ACK,
        /** Appended, then the connection breaks. */
        BREAK_AFTER,
        /** Appended, then the agent is gone. */
        DIE_AFTER,
        /** The connection breaks, nothing appended. */
        BREAK_BEFORE,
        /** Appended, no answer. */
        SILENT_AFTER,
        /** Nothing appended, no answer. */
        SILENT_BEFORE,
        /** Appended, and the answer is outcome-unknown. */
        UNKNOWN_AFTER,
        /**
         * Appended, then the next view is claimed: in the log, and the answer is outcome-unknown.
         */
        VIEW_AFTER,
        /** The next view is claimed first: it does not count, and the answer is outcome-unknown. */
        VIEW_BEFORE,
        FULL,
        FULL_ONCE
    }

    record Record(byte[] key, String keyClass, byte[] value, String valueClass, boolean deleted,
            long expiresAtMs, int partition,
                  List<Long> order) {
    }

    /** What several agents read together. */
    static final class Log {
        final Map<String, TreeMap<byte[], Record>> maps = new TreeMap<>();
        final List<Record> appended = new ArrayList<>();
        final Map<Long, byte[]> schemas = new LinkedHashMap<>();
        final Map<String, Long> sessions = new TreeMap<>();
        final Map<Long, Long> lastRequests = new TreeMap<>();
        /** Of each session, its plug-in and its view. */
        private final Map<Long, String> plugins = new TreeMap<>();
        private final Map<Long, Long> views = new TreeMap<>();
        private String newestCluster = "";
        long newestView;
        /** Another cluster has the log, and keeps it. */
        boolean followed;
        /** Of the newest view; null: any member of the cluster. */
        Set<String> viewMembers;

        /** The next view of the newest cluster. */
        synchronized void claimView(Set<String> members) {
            newestView++;
            viewMembers = members;
        }

        /**
         * The next incarnation, of another cluster. An agent refuses the older one from then on;
         * here two members of one test take turns.
         */
        synchronized void claimCluster(String clusterId) {
            newestCluster = clusterId;
            claimView(null);
        }

        synchronized boolean mayWrite(String clusterId, String member, long view) {
            return clusterId.equals(newestCluster)
                    && (viewMembers == null || viewMembers.contains(member) || view == newestView);
        }

        synchronized long session(String plugin) {
            long session = sessions.computeIfAbsent(plugin + "/" + newestView, name ->
                    sessions.size() + 1L);
            plugins.put(session, plugin);
            views.put(session, newestView);
            return session;
        }

        synchronized boolean isVoid(long session) {
            return views.get(session) != newestView;
        }

        /**
         * Sessions of the plug-in in earlier views, with the last request of each that is in the
         * log.
         */
        synchronized Map<Long, Long> former(String plugin) {
            Map<Long, Long> former = new TreeMap<>();
            plugins.forEach((session, name) -> {
                if (name.equals(plugin) && isVoid(session)) {
                    former.put(session, lastRequests.getOrDefault(session, 0L));
                }
            });
            return former;
        }

        synchronized Record newest(String map, byte[] key) {
            Record found = maps.getOrDefault(map, new TreeMap<>(Arrays::compare)).get(key);
            return found == null || found.deleted
                    || (found.expiresAtMs != 0 && found.expiresAtMs <= System.currentTimeMillis())
                    ? null : found;
        }

        synchronized int size(String map) {
            return (int) maps.getOrDefault(map, new TreeMap<>(Arrays::compare)).keySet().stream()
                    .filter(key -> newest(map, key) != null).count();
        }

        synchronized void put(String map, Record record) {
            appended.add(record);
            maps.computeIfAbsent(map, name -> new TreeMap<>(Arrays::compare))
                    .merge(record.key, record,
                    (a, b) -> Arrays.compare(longs(a), longs(b)) <= 0 ? b : a);
        }

        /** All keys of a partition are deleted: in this table, a tombstone for each. */
        synchronized void clear(String map, Record clear) {
            appended.add(clear);
            maps.getOrDefault(map, new TreeMap<>(Arrays::compare)).replaceAll((key, known) ->
                    known.partition == clear.partition
                            && Arrays.compare(longs(known), longs(clear)) < 0
                            ? new Record(key, "", null, "", true, 0, clear.partition, clear.order)
                            : known);
        }

        synchronized List<Record> appended() {
            return new ArrayList<>(appended);
        }

        private static long[] longs(Record record) {
            return record.order.stream().mapToLong(Long::longValue).toArray();
        }
    }

    final Log log;
    final Path socket;
    volatile Mood mood = Mood.ACK;
    volatile String readError;
    /** A load of this key alone fails. */
    volatile byte[] unreadable;
    /** Schemas of this type are refused. */
    volatile String refusedType;
    volatile int unreadableLoads;
    volatile long delayMs;
    /**
     * The next append does nothing and is not answered until another request of its connection
     * came.
     */
    volatile boolean holdsForNext;
    /** Appends are not looked at before it is zero. */
    volatile CountDownLatch hold = new CountDownLatch(0);
    volatile long readDelayMs;
    volatile long helloDelayMs;
    /** After so many loads the agent stops; negative: never. */
    volatile int breakAfterLoads = -1;
    /** So many pages of keys from now on, one is answered "listing-gone"; negative: none. */
    volatile int goneAfterPages = -1;
    /**
     * So many pages of keys from now on, one is left out, as if its answer was lost; negative:
     * none.
     */
    volatile int skipAfterPages = -1;
    /** Listings of keys that began. */
    volatile int listings;
    /** Most keys that one answer covers. */
    volatile int loadLimit = Integer.MAX_VALUE;
    volatile int appends;
    /** As if its process was stopped: nothing is read, connections stay. */
    volatile boolean frozen;
    volatile int beats;
    volatile int byes;
    /** Requests that were there before the one before them was answered. */
    volatile int sentAhead;
    /** Appends refused because of an earlier one of their connection. */
    volatile int refusedBehind;
    volatile int loads;
    final List<String> violations = new CopyOnWriteArrayList<>();
    private ServerSocketChannel server;
    private final Set<SocketChannel> open = ConcurrentHashMap.newKeySet();
    private final Map<String, Integer> writers = new ConcurrentHashMap<>();

    FakeAgent(Log log) throws IOException {
        this.log = log;
        this.socket = Files.createTempDirectory("fake-agent").resolve("agent.sock");
    }

    String endpoint() {
        return "ipc://" + socket;
    }

    synchronized FakeAgent start() throws IOException {
        if (server != null) {
            return this;
        }
        Files.deleteIfExists(socket);
        ServerSocketChannel listening = ServerSocketChannel.open(StandardProtocolFamily.UNIX);
        listening.bind(UnixDomainSocketAddress.of(socket));
        server = listening;
        daemon(() -> {
            while (true) {
                SocketChannel channel = listening.accept();
                synchronized (this) {
                    if (server != listening) {
                        // A blocked accept takes one more after close().
                        channel.close();
                        return;
                    }
                    open.add(channel);
                }
                daemon(() -> serve(channel));
            }
        });
        return this;
    }

    /** As if killed: connections break, nothing listens. */
    synchronized void stop() throws IOException {
        if (server != null) {
            server.close();
            server = null;
        }
        for (SocketChannel channel : open) {
            // close() alone waits for the thread that reads it, and the other side would not notice
            // yet
            try {
                channel.shutdownInput();
                channel.shutdownOutput();
            } catch (IOException e) {
                // the other side was quicker
            }
            channel.close();
        }
        open.clear();
    }

    @Override
    public void close() throws IOException {
        stop();
        Files.deleteIfExists(socket);
        Files.deleteIfExists(socket.getParent());
    }

    private interface Work {
        void run() throws IOException;
    }

    private static void daemon(Work work) {
        Thread thread = new Thread(() -> {
            try {
                work.run();
            } catch (IOException e) {
                // stopped, or the other side went
            }
        }, "fake-agent");
        thread.setDaemon(true);
        thread.start();
    }

    private void serve(SocketChannel channel) throws IOException {
        try (channel) {
            DataInputStream in = new DataInputStream(
                    new java.io.BufferedInputStream(Channels.newInputStream(channel), 1 << 16));
            OutputStream out = new OutputStream() {
                // the one of Channels waits for a read under way (Java 17)
                @Override
                public void write(int one) throws IOException {
                    write(new byte[] {(byte) one}, 0, 1);
                }

                @Override
                public void write(byte[] bytes, int from, int length) throws IOException {
                    for (ByteBuffer left = ByteBuffer.wrap(bytes, from,
                            length); left.hasRemaining();) {
                        channel.write(left);
                    }
                }
            };
            thaw();
            handshake(in, out);
            BlockingQueue<List<byte[]>> requests = new LinkedBlockingQueue<>();
            Connection connection = new Connection(requests);
            daemon(() -> {
                try {
                    while (true) {
                        requests.add(receive(in, command -> pong(out, command)));
                        thaw();
                    }
                } finally {
                    requests.add(List.of());
                }
            });
            while (true) {
                List<byte[]> frames = take(requests);
                if (frames.isEmpty()) {
                    return;
                }
                if (frames.size() != 2) {
                    violations.add("a message of " + frames.size() + " frames");
                }
                List<byte[]> answer = connection.answer(frames.get(0), frames.get(1));
                if (!requests.isEmpty() && !requests.peek().isEmpty()) {
                    sentAhead++;
                }
                if (answer == null) {
                    continue;
                }
                if (answer.isEmpty()) {
                    return;
                }
                thaw();
                synchronized (out) {
                    send(out, List.of(joined(answer)));
                }
            }
        } finally {
            open.remove(channel);
        }
    }

    static void handshake(DataInputStream in, OutputStream out) throws IOException {
        byte[] greeting = new byte[64];
        greeting[0] = (byte) 0xff;
        greeting[9] = 0x7f;
        greeting[10] = 3;
        greeting[11] = 1;
        System.arraycopy("NULL".getBytes(StandardCharsets.US_ASCII), 0, greeting, 12, 4);
        out.write(greeting);
        in.readFully(new byte[64]);
        byte[] ready = "\5READY\13Socket-Type\0\0\0\6ROUTER\10Identity\0\0\0\0".getBytes(
                StandardCharsets.ISO_8859_1);
        out.write(new byte[] {4, (byte) ready.length});
        out.write(ready);
        if (in.read() != 4) {
            throw new EOFException("no READY");
        }
        in.readFully(new byte[in.read()]);
    }

    /** As ZeroMQ's own thread answers a PING. */
    private void pong(OutputStream out, byte[] command) throws IOException {
        thaw();
        if (new String(command, StandardCharsets.ISO_8859_1).startsWith("\4PING")) {
            synchronized (out) {
                out.write(new byte[] {4, 5, 4, 'P', 'O', 'N', 'G'});
            }
        }
    }

    private void thaw() throws IOException {
        while (frozen) {
            pause(5);
        }
    }

    interface Command {
        void accept(byte[] command) throws IOException;
    }

    static List<byte[]> receive(DataInputStream in) throws IOException {
        return receive(in, command -> { });
    }

    static List<byte[]> receive(DataInputStream in, Command commands) throws IOException {
        List<byte[]> frames = new ArrayList<>();
        while (true) {
            int flags = in.readUnsignedByte();
            long size = (flags & 2) != 0 ? in.readLong() : in.readUnsignedByte();
            byte[] body = new byte[(int) size];
            in.readFully(body);
            if ((flags & 4) != 0) {
                commands.accept(body);
                continue;
            }
            frames.add(body);
            if ((flags & 1) == 0) {
                return frames;
            }
        }
    }

    /** The frame of an answer: the size of its header, the header, the payload. */
    private static byte[] joined(List<byte[]> answer) {
        byte[] header = answer.get(0);
        byte[] payload = answer.get(1);
        return ByteBuffer.allocate(4 + header.length + payload.length).putInt(header.length)
                .put(header).put(payload).array();
    }

    static void send(OutputStream out, List<byte[]> frames) throws IOException {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        for (int i = 0; i < frames.size(); i++) {
            byte[] frame = frames.get(i);
            int more = i + 1 < frames.size() ? 1 : 0;
            if (frame.length > 255) {
                bytes.write(more | 2);
                bytes.write(ByteBuffer.allocate(8).putLong(frame.length).array());
            } else {
                bytes.write(more);
                bytes.write(frame.length);
            }
            bytes.write(frame);
        }
        out.write(bytes.toByteArray());
    }

    private static <T> T take(BlockingQueue<T> queue) throws IOException {
        try {
            return queue.take();
        } catch (InterruptedException e) {
            throw new IOException(e);
        }
    }

    private static void pause(long ms) throws IOException {
        try {
            Thread.sleep(ms);
        } catch (InterruptedException e) {
            throw new IOException(e);
        }
    }

    private final class Connection {
        private final BlockingQueue<List<byte[]>> requests;
        private String plugin;
        private String member;
        private long view;
        private int hello;
        private String purpose;
        private boolean refused;
        private int partitionCount;
        private List<byte[]> cursorKeys;

        Connection(BlockingQueue<List<byte[]>> requests) {
            this.requests = requests;
        }

        /** Null: say nothing. Empty: break. */
        List<byte[]> answer(byte[] headerBytes, byte[] payload) throws IOException {
            MsgpackReader header = new MsgpackReader(headerBytes);
            header.array();
            String kind = header.string();
            long number = header.integer();
            if (kind.equals("stat")) {
                synchronized (log) {
                    MsgpackWriter stat = begin("stat", number, 1).map(1).string("claim").map(2);
                    stat.string("cluster_id").string(log.newestCluster).string("incarnation")
                            .integer(log.newestView);
                    return List.of(stat.toByteArray(), new byte[0]);
                }
            }
            if (plugin == null && !kind.equals("hello")) {
                return error(number, "not-ready", "say hello first");
            }
            switch (kind) {
                case "hello":
                    pause(helloDelayMs);
                    return hello(number, (Map<?, ?>) header.value());
                case "append":
                    return append(number, header, payload);
                case "metadata":
                    synchronized (log) {
                        MsgpackReader stream = new MsgpackReader(payload);
                        Map<Long, byte[]> schemas = new LinkedHashMap<>();
                        while (stream.hasMore()) {
                            stream.array();
                            stream.string();
                            schemas.put(stream.integer(), stream.binary());
                        }
                        String refused = refusedType;
                        if (refused != null && schemas.values().stream()
                                .anyMatch(each -> new String(each, StandardCharsets.UTF_8)
                                    .contains(refused))) {
                            return error(number, "schema-refused", "a schema of type " + refused);
                        }
                        log.schemas.putAll(schemas);
                    }
                    header.integer();
                    return List.of(begin("ack", number, 2).integer(0).integer(header.integer())
                            .toByteArray(), new byte[0]);
                case "schemas": {
                    MsgpackWriter stream = new MsgpackWriter();
                    synchronized (log) {
                        log.schemas.forEach((id, bytes) ->
                                stream.array(2).integer(id).binary(bytes));
                        return List.of(begin("schemas", number, 1).integer(log.schemas.size())
                                .toByteArray(), stream.toByteArray());
                    }
                }
                case "keys":
                case "list":
                    return keys(kind, number, header);
                case "maps":
                    return maps(number, header);
                case "load":
                    return load(number, header, payload);
                case "beat":
                    beats++;
                    return List.of(begin("beat", number, 0).toByteArray(), new byte[0]);
                case "bye":
                    byes++;
                    return List.of(begin("bye", number, 0).toByteArray(), new byte[0]);
                case "view":
                    return view(number, (Map<?, ?>) header.value());
                default:
                    return error(number, "bad-request", kind);
            }
        }

        private List<byte[]> hello(long number, Map<?, ?> said) {
            String cluster = (String) said.get("cluster_id");
            String from = (String) said.get("plugin_uuid");
            member = (String) said.get("member_uuid");
            view = (Long) said.get("view");
            purpose = (String) said.get("purpose");
            partitionCount = ((Long) said.get("partition_count")).intValue();
            synchronized (log) {
                if (log.followed) {
                    return error(number, "void-incarnation",
                            "this cluster was followed by another one");
                } else if (!cluster.equals(log.newestCluster)) {
                    log.claimCluster(cluster);
                } else if (!log.mayWrite(cluster, member, view)) {
                    return error(number, "void-incarnation", "this member was left out of view "
                            + log.newestView
                            + ": it must join the cluster again as a new member");
                }
                plugin = from;
                if (purpose.equals("write")) {
                    hello = writers.merge(plugin, 1, Integer::sum);
                }
                view = log.newestView;
                long session = log.session(plugin);
                MsgpackWriter answer = begin("welcome", number, 1).map(8);
                answer.string("protocol").integer(1).string("node").string("n1").string("session")
                        .integer(session);
                answer.string("incarnation").integer(log.newestView).string("last_request")
                        .integer(log.lastRequests.getOrDefault(session, 0L));
                Map<Long, Long> former = log.former(plugin);
                answer.string("former").array(former.size());
                former.forEach((earlier, last) -> answer.array(2).integer(earlier).integer(last));
                answer.string("max_value_bytes").integer(1 << 20).string("agent_version")
                        .string("fake");
                return List.of(answer.toByteArray(), new byte[0]);
            }
        }

        private List<byte[]> view(long number, Map<?, ?> said) {
            synchronized (log) {
                List<?> lost = (List<?>) said.get("lost");
                if (!log.mayWrite((String) said.get("cluster_id"), member, view)) {
                    return error(number, "void-incarnation", "this member was left out of view "
                            + log.newestView);
                }
                if (log.viewMembers == null || !log.viewMembers.contains(member)
                        || log.viewMembers.stream().anyMatch(lost::contains)) {
                    Set<String> members = ConcurrentHashMap.newKeySet();
                    ((List<?>) said.get("members")).forEach(each -> members.add((String) each));
                    log.claimView(members);
                }
                MsgpackWriter answer = begin("view", number, 2).integer(log.newestView)
                        .array(log.viewMembers.size());
                log.viewMembers.forEach(answer::string);
                return List.of(answer.toByteArray(), new byte[0]);
            }
        }

        private List<byte[]> append(long number, MsgpackReader header, byte[] payload)
                throws IOException {
            Mood now = mood;
            appends++;
            pause(delayMs);
            if (holdsForNext) {
                holdsForNext = false;
                for (long end = System.nanoTime() + 10_000_000_000L; requests.isEmpty()
                        && System.nanoTime() < end;) {
                    pause(1);
                }
            }
            try {
                hold.await();
            } catch (InterruptedException e) {
                throw new IOException(e);
            }
            if (refused) {
                refusedBehind++;
                return error(number, "not-ready", "an earlier append was refused");
            }
            if (hello != writers.get(plugin)) {
                return error(number, "superseded", "another hello came");
            }
            long session = header.integer();
            long first = header.integer();
            long count = header.integer();
            if (now == Mood.FULL || now == Mood.FULL_ONCE) {
                mood = now == Mood.FULL ? now : Mood.ACK;
                refused = true;
                return error(number, "full", "no room");
            } else if (log.isVoid(session)) {
                refused = true;
                return error(number, "void-incarnation", "this session's view was followed by "
                        + log.newestView);
            } else if (now == Mood.VIEW_BEFORE) {
                mood = Mood.ACK;
                refused = true;
                log.claimView(Set.of(member));
                return error(number, "outcome-unknown", "a newer view was claimed");
            } else if (now == Mood.BREAK_BEFORE) {
                mood = Mood.ACK;
                return List.of();
            } else if (now == Mood.SILENT_BEFORE) {
                return null;
            }
            synchronized (log) {
                long last = log.lastRequests.getOrDefault(session, 0L);
                MsgpackReader stream = new MsgpackReader(payload);
                for (long i = 0; i < count; i++) {
                    if (stream.array() != 10) {
                        violations.add("an entry that is not ten fields");
                    }
                    String map = stream.string();
                    byte[] key = stream.nil() ? null : stream.binary();
                    String keyClass = stream.string();
                    byte[] value = stream.nil() ? null : stream.binary();
                    String valueClass = stream.string();
                    boolean deleted = stream.bool();
                    long timestamp = stream.integer();
                    long expires = stream.integer();
                    int partition = (int) stream.integer();
                    stream.array();
                    List<Long> order = List.of(stream.integer(), stream.integer(), stream.integer(),
                            stream.integer());
                    if (order.get(3) != first + i || order.get(2) != session
                            || deleted != (value == null)
                            || Math.abs(timestamp - System.currentTimeMillis()) > 60_000) {
                        violations.add("entry " + i + " of message " + first + ": order " + order
                                + " session " + session);
                    }
                    if (order.get(3) > last) {
                        Record record = new Record(key, keyClass, value, valueClass, deleted,
                                expires, partition, order);
                        if (key == null) {
                            log.clear(map, record);
                        } else {
                            log.put(map, record);
                        }
                    }
                }
                if (stream.hasMore()) {
                    violations.add("bytes after the last entry");
                }
                log.lastRequests.put(session, Math.max(last, first + count - 1));
            }
            if (now == Mood.DIE_AFTER) {
                mood = Mood.ACK;
                FakeAgent.this.stop();
                return List.of();
            } else if (now == Mood.BREAK_AFTER) {
                mood = Mood.ACK;
                return List.of();
            } else if (now == Mood.SILENT_AFTER) {
                return null;
            } else if (now == Mood.VIEW_AFTER) {
                mood = Mood.ACK;
                refused = true;
                log.claimView(Set.of(member));
                return error(number, "outcome-unknown", "a newer view was claimed");
            } else if (now == Mood.UNKNOWN_AFTER) {
                refused = true;
                return error(number, "outcome-unknown", "the disk said no");
            }
            return List.of(begin("ack", number, 2).integer(first).integer(count).toByteArray(),
                    new byte[0]);
        }

        /** Null: all. */
        private Set<Integer> partitions(MsgpackReader header) throws IOException {
            if (!header.hasMore()) {
                return null;
            }
            Set<Integer> partitions = new java.util.HashSet<>();
            for (int left = header.array(); left > 0; left--) {
                partitions.add((int) header.integer());
            }
            return partitions;
        }

        private int partition(byte[] key) {
            int hash = new com.hazelcast.internal.serialization.impl.HeapData(key)
                    .getPartitionHash();
            return com.hazelcast.internal.util.HashUtil.hashToIndex(hash, partitionCount);
        }

        private List<byte[]> keys(String kind, long number, MsgpackReader header)
                throws IOException {
            if (kind.equals("list") && breaksAtLoad()) {
                return List.of();
            }
            if (readError != null) {
                return error(number, "restore-failed", readError);
            }
            String map = header.string();
            int from = header.nil() ? -1 : (int) header.integer();
            int limit = (int) header.integer();
            Set<Integer> partitions = partitions(header);
            synchronized (log) {
                if (goneAfterPages >= 0 && --goneAfterPages < 0) {
                    return error(number, "listing-gone", "the index was built anew; begin again");
                }
                if (from < 0) {
                    listings++;
                    cursorKeys = new ArrayList<>(
                            log.maps.getOrDefault(map, new TreeMap<>(Arrays::compare)).keySet());
                    cursorKeys.removeIf(key -> log.newest(map, key) == null
                            || partitions != null && !partitions.contains(partition(key)));
                    from = 0;
                }
                if (skipAfterPages >= 0 && --skipAfterPages < 0) {
                    from = Math.min(cursorKeys.size(), from + limit);
                }
                int to = Math.min(cursorKeys.size(), from + limit);
                List<byte[]> page = cursorKeys.subList(from, to);
                Loaded loaded = kind.equals("keys") ? new Loaded(new MsgpackWriter(), 0, 0, null)
                        : loaded(map, page);
                if (loaded.error != null) {
                    return error(number, "restore-failed", loaded.error);
                }
                page.subList(loaded.taken, page.size()).forEach(loaded.stream::binary);
                MsgpackWriter answer = begin(kind, number, kind.equals("keys") ? 3 : 5);
                if (to == cursorKeys.size()) {
                    answer.nil();
                } else {
                    answer.integer(to);
                }
                answer.integer(to - from).integer(to);
                if (kind.equals("list")) {
                    answer.integer(loaded.taken).integer(loaded.live);
                }
                return List.of(answer.toByteArray(), loaded.stream.toByteArray());
            }
        }

        /**
     * The entries of the first keys.
     *
     * @param taken how many keys these are
     * @param error null: none
     */
        private record Loaded(MsgpackWriter stream, int taken, int live, String error) {
        }

        private Loaded loaded(String map, List<byte[]> keys) throws IOException {
            MsgpackWriter stream = new MsgpackWriter();
            int live = 0;
            int taken = 0;
            synchronized (log) {
                for (byte[] key : keys.subList(0, Math.min(keys.size(), loadLimit))) {
                    taken++;
                    if (Arrays.equals(key, unreadable)) {
                        unreadableLoads++;
                        return new Loaded(stream, 0, 0, "this key cannot be read");
                    }
                    Record found = log.newest(map, key);
                    if (found != null) {
                        live++;
                        stream.array(3).binary(found.key).binary(found.value)
                                .integer(found.expiresAtMs);
                    }
                }
            }
            return new Loaded(stream, taken, live, null);
        }

        private List<byte[]> maps(long number, MsgpackReader header) throws IOException {
            if (readError != null) {
                return error(number, "restore-failed", readError);
            }
            synchronized (log) {
                List<String> known = new ArrayList<>();
                for (int left = header.array(); left > 0; left--) {
                    String map = header.string();
                    if (log.maps.containsKey(map)) {
                        known.add(map);
                    }
                }
                MsgpackWriter answer = begin("maps", number, 2).array(known.size());
                known.forEach(answer::string);
                answer.map(0);
                return List.of(answer.toByteArray(), new byte[0]);
            }
        }

        private List<byte[]> load(long number, MsgpackReader header, byte[] payload)
                throws IOException {
            if (breaksAtLoad()) {
                return List.of();
            }
            if (readError != null) {
                return error(number, "restore-failed", readError);
            }
            String map = header.string();
            MsgpackReader stream = new MsgpackReader(payload);
            List<byte[]> keys = new ArrayList<>();
            while (stream.hasMore()) {
                keys.add(stream.binary());
            }
            Loaded loaded = loaded(map, keys);
            if (loaded.error != null) {
                return error(number, "restore-failed", loaded.error);
            }
            return List.of(begin("entries", number, 2).integer(loaded.live).integer(loaded.taken)
                    .toByteArray(), loaded.stream.toByteArray());
        }

        private boolean breaksAtLoad() throws IOException {
            loads++;
            pause(readDelayMs);
            if (breakAfterLoads >= 0 && --breakAfterLoads < 0) {
                FakeAgent.this.stop();
                return true;
            }
            return false;
        }

        private MsgpackWriter begin(String kind, long number, int fields) {
            return new MsgpackWriter().array(2 + fields).string(kind).integer(number);
        }

        private List<byte[]> error(long number, String code, String text) {
            return List.of(begin("error", number, 2).string(code).string(text).toByteArray(),
                    new byte[0]);
        }
    }
}
