package io.imapwal.hazelcast;

import java.io.IOException;
import java.net.SocketTimeoutException;
import java.util.List;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;

/**
 * Watches one agent over a separate connection, at least twice a second.
 *
 * <pre>
 * ZMTP PING   ZeroMQ's own thread in the agent answers it, also while the agent waits for its
 *             storage. No answer within agent-timeout-ms: the agent hangs. All connections to it
 *             are closed, and none is opened until it answers again
 * beat        shows that a member of this cluster is alive; the loop of the agent answers it,
 *             perhaps late
 * </pre>
 *
 * So a slow storage is not a hung agent: appends wait for it up to {@code timeout-ms}.
 */
final class Pulse {
    private static final long PAUSE_MS_MAX = 500;
    private static final int UNANSWERED_MAX = 4;

    private final AgentSettings settings;
    private final long pauseMs;
    private final Set<AgentConnection> open = ConcurrentHashMap.newKeySet();
    private volatile HungAgent hung;
    private volatile boolean closed;
    private Thread thread;

    // The state of the watched connection. Only the thread uses it.
    private ZmtpConnection wire;
    private int silent;
    private long number;
    private long answered;
    private Hello said;
    private boolean asked;
    private boolean greeted;
    private final MsgpackWriter header = new MsgpackWriter(64);

    /** The hello that was sent on this connection. */
    private record Hello(UUID cluster, UUID member, long view) {
    }

    Pulse(AgentSettings settings) {
        this.settings = settings;
        this.pauseMs = Math.max(1, Math.min(PAUSE_MS_MAX, settings.agentTimeoutMs() / 4));
    }

    /** @throws HungAgent it does not answer */
    void check() throws HungAgent {
        HungAgent now = hung;
        if (now != null) {
            HungAgent thrown = new HungAgent(settings.agentTimeoutMs());
            thrown.initCause(now);
            throw thrown;
        }
    }

    boolean hangs() {
        return hung != null;
    }

    /** Registers a connection, which is closed when the agent hangs. */
    void add(AgentConnection connection) throws HungAgent {
        open.add(connection);
        check();
    }

    void remove(AgentConnection connection) {
        open.remove(connection);
    }

    /** Called with each hello; the first one starts the thread. */
    synchronized void start(AgentConnection.Identity identity) {
        if (thread == null && !closed) {
            thread = new Thread(() -> run(identity), "imap-wal-pulse");
            thread.setDaemon(true);
            thread.start();
        }
    }

    synchronized void close() {
        closed = true;
        hung = null;
        if (thread != null) {
            thread.interrupt();
        }
    }

    private void run(AgentConnection.Identity identity) {
        while (!closed) {
            try {
                beat(identity);
            } catch (IOException | RuntimeException e) {
                // If the agent has ended, its callers get errors from their own connections.
                disconnect();
                if (e instanceof SocketTimeoutException) {
                    hang();
                } else {
                    hung = null;
                }
            }
            if (wire == null) {
                pause();
            }
        }
        disconnect();
    }

    /** Sends a PING and a beat, and receives until the next ones are due. */
    private void beat(AgentConnection.Identity identity) throws IOException {
        if (wire == null) {
            wire = ZmtpConnection.open(settings.agent(), settings.secrets(),
                    deadline(settings.agentTimeoutMs()));
            silent = 0;
            number = answered = 0;
            said = null;
            asked = greeted = false;
            hung = null;
        }
        long due = deadline(pauseMs);
        long pongs = wire.pongs();
        long before = answered;
        wire.ping(due);
        say(identity, due);
        while (true) {
            try {
                hear(wire.receive(due));
            } catch (SocketTimeoutException e) {
                break;
            }
        }
        // Counted in beats, not in time: this process may have been stopped meanwhile, and not the
        // agent.
        silent = wire.pongs() == pongs && answered == before ? silent + 1 : 0;
        if (silent * pauseMs >= settings.agentTimeoutMs()) {
            throw new HungAgent(settings.agentTimeoutMs());
        }
    }

    private void say(AgentConnection.Identity identity, long due) throws IOException {
        UUID cluster = identity.cluster().clusterId();
        UUID member = identity.cluster().member();
        long view = identity.view().of(cluster, member);
        if (number - answered > UNANSWERED_MAX || view == 0) {
            // The agent is busy, or this member has no welcome yet under its present UUID and
            // cluster id.
            return;
        }
        Hello now = new Hello(cluster, member, view);
        if (greeted && now.equals(said)) {
            header.clear().array(2).string("beat").integer(++number);
        } else if (!asked) {
            AgentConnection.hello(header.clear().array(3).string("hello").integer(++number),
                    identity, cluster, member, "read",
                    settings.secrets().token());
            said = now;
            asked = true;
            greeted = false;
        } else {
            return;
        }
        wire.send(new byte[][] {header.array(), {}}, new int[] {header.length(), 0}, due);
    }

    private void hear(List<byte[]> frames) throws ProtocolException {
        MsgpackReader answer = AgentConnection.Answer.of(frames).header();
        if (answer.array() < 2) {
            throw new ProtocolException("an answer must have a kind and a number");
        }
        String kind = answer.string();
        answered = Math.max(answered, answer.integer());
        if (!kind.equals("beat")) {
            asked = false;
            greeted = kind.equals("welcome");
        }
    }

    private void hang() {
        if (hung == null) {
            hung = new HungAgent(settings.agentTimeoutMs());
        }
        open.forEach(AgentConnection::close);
    }

    private void disconnect() {
        if (wire != null) {
            wire.close();
            wire = null;
        }
    }

    private static long deadline(long ms) {
        return System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(ms);
    }

    private void pause() {
        try {
            Thread.sleep(pauseMs);
        } catch (InterruptedException e) {
            // closed: the loop sees it
        }
    }
}
