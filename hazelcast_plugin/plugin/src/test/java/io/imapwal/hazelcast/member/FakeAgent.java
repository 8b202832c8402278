package io.imapwal.hazelcast.member;

import io.imapwal.wire.FakeWire;

import java.io.Closeable;
import java.io.DataInputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.LinkedBlockingQueue;

/**
 * An agent whose log is in memory. It can be stopped, started, and made to fail. Agents may share a
 * log. {@link FakeConnection} answers the requests.
 */
public final class FakeAgent implements Closeable {
    public final FakeLog log;
    public final FakeFaults faults = new FakeFaults();
    final Path socket;
    public volatile int appends;
    public volatile int loads;
    /** Listings of keys that began. */
    public volatile int listings;
    /** Requests for digests. */
    public volatile int digests;
    /** Loads that failed because of a key that cannot be read. */
    volatile int unreadableLoads;
    volatile int beats;
    /** What the last beat said; -1: it had no number. */
    public volatile long settling = -1;
    /** Hellos, connections and questions about maps that have arrived. */
    volatile int hellos;
    public volatile int greetings;
    public volatile int merges;
    volatile int byes;
    /** Requests that arrived before the one before them was answered. */
    public volatile int sentAhead;
    /** Appends refused because an earlier one of their connection was refused. */
    public volatile int refusedAfterAnother;
    /** What plug-ins sent against the protocol. */
    public final List<String> violations = new CopyOnWriteArrayList<>();
    /** Of each plug-in, how many connections it opened to write. The last one may write. */
    final Map<String, Integer> writers = new ConcurrentHashMap<>();
    private ServerSocketChannel server;
    private final Set<SocketChannel> open = ConcurrentHashMap.newKeySet();

    /** The name of its node. */
    public final String node;
    /** Of each session, the number of its last request in this node's log. */
    final Map<Long, Long> lastRequests;

    public FakeAgent(FakeLog log) throws IOException {
        this(log, "n1", log.lastRequests);
    }

    /** One of several agents over the logs of one cluster, each with a node of its own. */
    public FakeAgent(FakeLog log, String node) throws IOException {
        this(log, node, new ConcurrentHashMap<>());
    }

    private FakeAgent(FakeLog log, String node, Map<Long, Long> lastRequests) throws IOException {
        this.log = log;
        this.node = node;
        this.lastRequests = lastRequests;
        this.socket = Files.createTempDirectory("fake-agent").resolve("agent.sock");
    }

    /** How many parts of reads the agent has done: it works all the time. */
    long parts() {
        return faults.mergeHangs ? 0 : System.nanoTime();
    }

    public String endpoint() {
        return "ipc://" + socket;
    }

    public synchronized FakeAgent start() throws IOException {
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
                        // A blocked accept takes one more connection after close().
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

    /** As if killed: connections break, and connecting fails. */
    public synchronized void stop() throws IOException {
        if (server != null) {
            server.close();
            server = null;
        }
        for (SocketChannel channel : open) {
            // close() alone waits for the thread that reads. The other end would not notice yet.
            try {
                channel.shutdownInput();
                channel.shutdownOutput();
            } catch (IOException e) {
                // The other end closed it first.
            }
            channel.close();
        }
        open.clear();
    }

    /** Whether it stops within a second. */
    boolean stops() throws InterruptedException {
        for (int i = 0; i < 100; i++) {
            synchronized (this) {
                if (server == null) {
                    return true;
                }
            }
            Thread.sleep(10);
        }
        return false;
    }

    @Override
    public void close() throws IOException {
        stop();
        Files.deleteIfExists(socket);
        Files.deleteIfExists(socket.getParent());
    }

    private interface Work {
        void run() throws IOException, InterruptedException;
    }

    private static void daemon(Work work) {
        Thread thread = new Thread(() -> {
            try {
                work.run();
            } catch (IOException | InterruptedException e) {
                // The agent stopped, or the other end closed the connection.
            }
        }, "fake-agent");
        thread.setDaemon(true);
        thread.start();
    }

    private void serve(SocketChannel channel) throws IOException, InterruptedException {
        try (channel) {
            DataInputStream in = FakeWire.input(channel);
            OutputStream out = FakeWire.output(channel);
            faults.awaitThaw();
            greetings++;
            FakeWire.handshake(in, out, faults.admissionDelayMs);
            // An empty list: the connection was closed.
            BlockingQueue<List<byte[]>> requests = new LinkedBlockingQueue<>();
            daemon(() -> {
                try {
                    while (true) {
                        requests.add(FakeWire.receive(in, command -> pong(out, command)));
                        faults.awaitThaw();
                    }
                } finally {
                    requests.add(List.of());
                }
            });
            FakeConnection connection = new FakeConnection(this, requests);
            while (true) {
                List<byte[]> frames = requests.take();
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
                if (answer == FakeAnswers.BREAK) {
                    return;
                }
                faults.awaitThaw();
                synchronized (out) {
                    FakeWire.sendAnswer(out, answer);
                }
            }
        } finally {
            open.remove(channel);
        }
    }

    /** ZeroMQ's own thread answers a PING, also while the agent is busy. */
    private void pong(OutputStream out, byte[] command) throws IOException {
        try {
            faults.awaitThaw();
        } catch (InterruptedException e) {
            throw new IOException(e);
        }
        if (FakeWire.isPing(command)) {
            synchronized (out) {
                FakeWire.sendPong(out);
            }
        }
    }
}
