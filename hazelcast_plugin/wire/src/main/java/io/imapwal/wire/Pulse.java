package io.imapwal.wire;

import java.io.IOException;
import java.net.SocketTimeoutException;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;

/**
 * Watches one agent over a separate connection, at least twice a second.
 *
 * <pre>
 * ZMTP PING   another thread of the agent answers it while the loop is busy or waits for its
 *             storage. No answer within agent-timeout-ms: the agent hangs. All connections to it
 *             are closed, and none is opened until it answers again
 * beat        shows that a member of this cluster is alive, how many of its partitions are not
 *             compared with the log yet, and which maps are durable; the loop of the agent answers
 *             it, perhaps late. The answer has a number that grows while the agent reads logs
 * </pre>
 *
 * So a slow storage is not a hung agent: appends wait for it up to {@code timeout-ms}. And an agent
 * that is busy with its work does not count as one that does not answer: {@link #whileTurning} and
 * {@link #whileReading}.
 */
public final class Pulse {
    private static final long PAUSE_MS_MAX = 500;
    /**
     * The most beats without an answer. A busy agent takes four messages of a connection in
     * advance; over TCP, ZeroMQ frees their space in pairs. If a PING waits after more messages,
     * and the connection is closed then, ZeroMQ ends the agent's process when the process continues
     * (libzmq 4.3.5, issues 3937 and 4767).
     */
    private static final int UNANSWERED_MAX = 3;

    private final AgentSettings settings;
    private final Supplier<State> states;
    private final long pauseMs;
    private final Set<AgentConnection> open = ConcurrentHashMap.newKeySet();
    private volatile HungAgent hung;
    private volatile boolean closed;
    /** When the loop of the agent answered last. */
    private volatile long turnedNanos = System.nanoTime();
    private volatile long readNanos = System.nanoTime();
    private Thread thread;

    // The state of the watched connection. Only the thread uses it.
    private ZmtpConnection wire;
    private int silent;
    private long number;
    private long answered;
    private Hello said;
    /** The number of the hello without an answer; 0: none. */
    private long asked;
    private boolean greeted;
    /** Whether the agent knows beats with a number of partitions. */
    private boolean counts;
    /** Whether the agent knows beats with reports. */
    private boolean reports;
    /** What the agent knows of this connection. */
    private DurabilityReport reported;
    /** The agent's number of parts of reads. */
    private long parts = -1;
    private final MsgpackWriter header = new MsgpackWriter(64);

    /** What a beat reports about this member. */
    public static final class State {
        public static final State NONE = new State(0, null);
        private final int settling;
        private final DurabilityReport report;

        /** @param settling partitions that are not compared with the log of this agent yet */
        public State(int settling, DurabilityReport report) {
            this.settling = settling;
            this.report = report;
        }
    }

    /** The hello that was sent on this connection. */
    private static final class Hello {
        private final Membership membership;
        private final long view;

        Hello(Membership membership, long view) {
            this.membership = membership;
            this.view = view;
        }

        boolean same(Hello other) {
            return other != null && view == other.view && membership.equals(other.membership);
        }
    }

    public Pulse(AgentSettings settings, Supplier<State> states) {
        this.settings = settings;
        this.states = states;
        this.pauseMs = Math.max(1, Math.min(PAUSE_MS_MAX, settings.agentTimeoutMs() / 4));
    }

    /** @throws HungAgent it does not answer */
    public void check() throws HungAgent {
        HungAgent now = hung;
        if (now != null) {
            HungAgent thrown = new HungAgent(settings.agentTimeoutMs());
            thrown.initCause(now);
            throw thrown;
        }
    }

    /**
     * Patience with a request that the agent's loop answers: it may take {@code idleMs} from now
     * on, and longer while the loop answers beats, together at most {@code mostMs}.
     */
    ZmtpConnection.Patience whileTurning(int idleMs, int mostMs) {
        long since = System.nanoTime();
        return () -> {
            long idle = Math.min(System.nanoTime() - since, System.nanoTime() - turnedNanos);
            return moreMs(Math.min(TimeUnit.MILLISECONDS.toNanos(idleMs) - idle,
                    deadline(since, mostMs) - System.nanoTime()));
        };
    }

    /**
     * Patience with a read: the agent may work on it, and on those before it, for any time, but not
     * stop working for {@code idleMs}.
     */
    public ZmtpConnection.Patience whileReading(int idleMs) {
        return () -> moreMs(deadline(readNanos, idleMs) - System.nanoTime());
    }

    /** When the agent's loop answered last. */
    public long turnedNanos() {
        return turnedNanos;
    }

    /** When the agent last did a part of a read. */
    public long readNanos() {
        return readNanos;
    }

    /** In short parts, because the agent may begin to hang. */
    private long moreMs(long nanos) {
        return hung != null || closed || nanos <= 0 ? 0
                : Math.min(pauseMs, TimeUnit.NANOSECONDS.toMillis(nanos) + 1);
    }

    /** Registers a connection, which is closed when the agent hangs. */
    public void add(AgentConnection connection) throws HungAgent {
        open.add(connection);
        check();
    }

    public void remove(AgentConnection connection) {
        open.remove(connection);
    }

    /** Called with each hello; the first one starts the thread. */
    public synchronized void start(AgentConnection.Identity identity) {
        if (thread == null && !closed) {
            thread = new Thread(() -> run(identity), "imap-wal-pulse");
            thread.setDaemon(true);
            thread.start();
        }
    }

    public synchronized void close() {
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
        Hello now = hello(identity);
        if (wire != null && greeted && !said.same(now)) {
            // A beat would say that a member of the former cluster or view is alive.
            disconnect();
        }
        if (wire == null) {
            connect();
        }
        long due = deadline(pauseMs);
        long pongs = wire.pongs();
        long before = answered;
        wire.ping(due);
        say(identity, now, due);
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

    /**
     * The greeting also comes from an agent that is busy. Over TCP, the agent itself admits the
     * connection later.
     */
    private void connect() throws IOException {
        boolean[] lives = {false};
        try {
            wire = ZmtpConnection.open(settings.agent(), settings.secrets(),
                    deadline(settings.agentTimeoutMs()), () -> {
                        lives[0] = true;
                        hung = null;
                        return whileTurning(settings.agentTimeoutMs(), settings.agentTimeoutMs());
                    });
        } catch (SocketTimeoutException e) {
            throw lives[0] ? new IOException("the agent is busy", e) : e;
        }
        silent = 0;
        number = answered = 0;
        said = null;
        asked = 0;
        greeted = counts = reports = false;
        reported = null;
        hung = null;
    }

    /** Null: this member has no welcome yet under its present UUID and cluster id. */
    private static Hello hello(AgentConnection.Identity identity) {
        Membership now = identity.membership();
        long view = identity.view().of(now.clusterId(), now.member());
        return view == 0 ? null : new Hello(now, view);
    }

    private void say(AgentConnection.Identity identity, Hello now, long due) throws IOException {
        if (number - answered >= UNANSWERED_MAX) {
            return;  // the agent is busy
        }
        // Without a hello, the answer to a beat is an error. The error also shows that the loop
        // runs.
        if (now == null || greeted || asked != 0) {
            State state = states.get();
            boolean tell = reports && state.report != null && !state.report.equals(reported);
            header.clear().array(tell ? 4 : counts ? 3 : 2).string("beat").integer(++number);
            if (counts) {
                header.integer(state.settling);
            }
            if (tell) {
                state.report.write(header);
                reported = state.report;
            }
        } else {
            AgentConnection.hello(header.clear().array(3).string("hello").integer(++number),
                    identity, now.membership, "read", settings.secrets().token());
            said = now;
            asked = number;
        }
        wire.send(new byte[][] {header.array(), {}}, new int[] {header.length(), 0}, due);
    }

    private void hear(List<byte[]> frames) throws ProtocolException {
        MsgpackReader answer = AgentConnection.Answer.of(frames).header();
        if (answer.array() < 2) {
            throw new ProtocolException("an answer must have a kind and a number");
        }
        String kind = answer.string();
        long to = answer.integer();
        answered = Math.max(answered, to);
        turnedNanos = System.nanoTime();
        if (to == asked) {
            asked = 0;
            greeted = kind.equals("welcome");
            Object value = greeted ? answer.value() : null;
            Map<?, ?> welcome = value instanceof Map ? (Map<?, ?>) value : Collections.emptyMap();
            counts = Boolean.TRUE.equals(welcome.get("settling"));
            reports = counts && Boolean.TRUE.equals(welcome.get("reports"));
        } else if (!kind.equals("beat")) {
            greeted = false;
        } else if (answer.hasMore()) {
            long now = answer.integer();
            if (now != parts) {
                parts = now;
                readNanos = System.nanoTime();
            }
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
        return deadline(System.nanoTime(), ms);
    }

    private static long deadline(long sinceNanos, long ms) {
        return sinceNanos + TimeUnit.MILLISECONDS.toNanos(ms);
    }

    private void pause() {
        try {
            Thread.sleep(pauseMs);
        } catch (InterruptedException e) {
            // closed: the loop sees it
        }
    }
}
