package io.imapwal.hazelcast;

import com.hazelcast.internal.serialization.impl.compact.Schema;
import com.hazelcast.logging.ILogger;
import com.hazelcast.spi.exception.RetryableHazelcastException;

import java.io.IOException;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;

/**
 * The way of changes from a member to its agent, shared by all its maps.
 *
 * <p>It has no thread of its own. A caller puts its changes in the queue; if nobody leads, it leads: it sends what is queued
 * as one {@code append}, waits for the ack, completes the others and hands on to whoever queued meanwhile. So one
 * caller pays one round trip and no hand-off, and many callers share one.
 *
 * <p>Request numbers are given when a message is built, by the one leader, in queue order: contiguous inside a message,
 * a later message above the former one.
 *
 * <pre>
 * broken before a byte of the message left    connect again, send
 * broken later                                connect again; the welcome's last_request says whether it is in the log:
 *                                             yes: acknowledged, no: send again under the same numbers
 * cannot connect again at once, or no answer  OutcomeUnknown for what was sent, NotAppended for what was not
 * in time
 * </pre>
 */
final class AgentLink {
    private static final int MAX_MESSAGE_BYTES = 8 << 20;
    private static final int MAX_MESSAGE_ENTRIES = 4096;
    private static final int KEPT_BUFFER_BYTES = 1 << 20;
    private static final long MIN_PAUSE_MS = 50;
    private static final long MAX_PAUSE_MS = 1000;

    private final AgentSettings settings;
    private final AgentConnection.Identity identity;
    private final OrderGuard guard;
    private final SchemaLog schemas;
    private final SchemaLog.Logged logged;
    private final Settler settler;
    private final ILogger logger;
    private final String member;

    private final Object lock = new Object();
    private final Deque<Ticket> queue = new ArrayDeque<>();
    private boolean led;
    private boolean closed;

    // the leader's
    private AgentConnection connection;
    private MsgpackWriter payload = new MsgpackWriter(64 * 1024);
    private long lastRequest;
    private long pauseMs = MIN_PAUSE_MS;
    private long pausedUntilNanos = System.nanoTime();
    private IOException lastFailure;

    private volatile Welcome welcome;
    /** How many connections were greeted; a key whose outcome is unknown waits for one more. */
    private volatile long welcomes;

    AgentLink(AgentSettings settings, AgentConnection.Identity identity, OrderGuard guard, SchemaLog schemas, Settler settler,
              ILogger logger, String member) {
        this.settings = settings;
        this.identity = identity;
        this.guard = guard;
        this.schemas = schemas;
        this.logged = schemas.new Logged();
        this.settler = settler;
        this.logger = logger;
        this.member = member;
    }

    /** The newest welcome, or null before the first one. */
    Welcome welcome() {
        return welcome;
    }

    long welcomes() {
        return welcomes;
    }

    AgentSettings settings() {
        return settings;
    }

    /** Who is at the other end, for messages. */
    String agent() {
        Welcome known = welcome;
        return "agent " + settings.agent() + (known == null ? "" : " (node " + known.node() + ")") + " of member " + member;
    }

    /**
     * Returns when all changes are as durable as the agent makes them.
     *
     * @throws NotAppended    none of them happened
     * @throws OutcomeUnknown some may have happened; the settler has their keys
     * @throws RetryableHazelcastException a partition changed hands while its change was queued
     */
    void append(List<Change> changes) {
        if (changes.isEmpty()) {
            return;
        }
        Ticket ticket = new Ticket(changes);
        run(ticket);
        RuntimeException failure = ticket.failure();
        if (failure == null) {
            return;
        }
        if (ticket.appended() > 0) {
            // Part of a batch is in the log, and Hazelcast will change nothing in memory.
            changes.forEach(change -> settler.add(this, change, -1, 0));
            if (failure instanceof RetryableHazelcastException) {
                // Hazelcast repeats the whole batch at the new owner.
                throw failure;
            }
            throw new OutcomeUnknown("map \"" + changes.get(0).map + "\": " + ticket.appended() + " of " + changes.size()
                    + " changes are in the log and the rest failed; " + settling() + ": " + failure.getMessage(), failure);
        }
        throw failure;
    }

    /** Returns when a connection is greeted under the present cluster id. @throws LogUnavailable when there is none */
    Welcome connect() {
        Ticket ticket = new Ticket(List.of());
        run(ticket);
        if (ticket.failure() != null) {
            throw ticket.failure();
        }
        return welcome;
    }

    void close() {
        synchronized (lock) {
            closed = true;
        }
        // A leader in mid-message keeps its connection and drops it when it looks at the flag.
        boolean mine;
        synchronized (lock) {
            mine = !led;
            led |= mine;
        }
        if (mine) {
            disconnect();
            handOn(null);
        }
    }

    private void run(Ticket ticket) {
        boolean lead;
        synchronized (lock) {
            queue.add(ticket);
            lead = !led;
            led = true;
        }
        // An interrupt would close the channel under the feet of everybody in the message.
        boolean interrupted = false;
        try {
            while (!lead && !ticket.done()) {
                LockSupport.park(this);
                interrupted |= Thread.interrupted();
                lead = ticket.leads();
            }
            if (lead) {
                interrupted |= Thread.interrupted();
                lead(ticket);
            }
        } finally {
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    private void lead(Ticket own) {
        List<Change> message = new ArrayList<>();
        List<Ticket> finished = new ArrayList<>();
        try {
            while (!own.done()) {
                message.clear();
                List<Ticket> greetings = take(message);
                exchange(message, greetings);
                wake(message, greetings, finished);
            }
        } finally {
            if (!own.done()) {
                // An Error on the way (memory): nobody may wait for ever.
                IOException cause = new IOException("the sending thread failed");
                fail(message, true, cause);
                disconnect();
                wake(message, List.of(), finished);
            }
            handOn(own);
            for (Ticket ticket : finished) {
                if (ticket != own) {
                    LockSupport.unpark(ticket.caller);
                }
            }
        }
    }

    /** Takes from the queue what fits in one message; a ticket leaves the queue with its last change. */
    private List<Ticket> take(List<Change> message) {
        List<Ticket> greetings = List.of();
        long bytes = 0;
        synchronized (lock) {
            Ticket ticket;
            while ((ticket = queue.peek()) != null) {
                if (ticket.changes.isEmpty()) {
                    greetings = greetings.isEmpty() ? new ArrayList<>() : greetings;
                    greetings.add(queue.poll());
                    continue;
                }
                while (ticket.taken < ticket.changes.size()) {
                    Change change = ticket.changes.get(ticket.taken);
                    if (!message.isEmpty()
                            && (message.size() == MAX_MESSAGE_ENTRIES || bytes + change.head.length > MAX_MESSAGE_BYTES)) {
                        return greetings;
                    }
                    bytes += change.head.length;
                    message.add(change);
                    ticket.taken++;
                }
                queue.poll();
            }
        }
        return greetings;
    }

    /** Leaves no change of the message and no greeting without an outcome. */
    private void exchange(List<Change> message, List<Ticket> greetings) {
        IOException failure = null;
        try {
            greet();
        } catch (IOException e) {
            failure = e;
        }
        for (Ticket greeting : greetings) {
            greeting.finish(failure == null ? null : unreachable(failure));
        }
        List<Change> rest = new ArrayList<>(message.size());
        for (Change change : message) {
            if (failure != null) {
                change.ticket.fail(notAppended(map(change), failure));
            } else if (!guard.holds(change.stamp)) {
                change.ticket.fail(OrderGuard.moved(change.stamp.partition()));
            } else if (!change.stamp.clusterId().equals(connection.welcome().clusterId())) {
                change.ticket.fail(OrderGuard.moved(change.stamp.partition()));
            } else {
                change.request = ++lastRequest;
                rest.add(change);
            }
        }
        if (!rest.isEmpty()) {
            send(rest);
        }
    }

    private void send(List<Change> message) {
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(settings.timeoutMs());
        boolean sent = false;
        while (true) {
            Welcome session = connection.welcome();
            long before = connection.written();
            boolean sending = false;
            try {
                logSchemas(session, deadline);
                before = connection.written();
                sending = true;
                Change first = message.get(0);
                encode(message, session);
                MsgpackWriter header = connection.start("append", 3);
                header.integer(session.session()).integer(first.request).integer(message.size());
                connection.ask("ack", payload, deadline);
                message.forEach(change -> change.ticket.succeed());
                return;
            } catch (AgentError e) {
                if (!e.connectionStays()) {
                    disconnect();
                }
                // A request that was in doubt before and is refused now is still in doubt.
                fail(message, sent || (sending && !e.certain()), e);
                return;
            } catch (IOException | RuntimeException e) {
                IOException cause = e instanceof IOException io ? io : new IOException(e);
                sent |= sending && connection.written() > before;
                disconnect();
                lastFailure = cause;
                if (e instanceof RuntimeException || cause instanceof ProtocolException
                        || cause instanceof java.net.SocketTimeoutException || System.nanoTime() >= deadline) {
                    fail(message, sent, cause);
                    return;
                }
                try {
                    greet();
                } catch (IOException again) {
                    fail(message, sent, again);
                    return;
                }
                Welcome now = connection.welcome();
                if (now.session() != session.session() || !now.clusterId().equals(session.clusterId())) {
                    // Another session has no memory of ours: sent is in doubt, unsent is not.
                    fail(message, sent, cause);
                    return;
                }
                if (sent && now.lastRequest() >= message.get(message.size() - 1).request) {
                    message.forEach(change -> change.ticket.succeed());
                    return;
                }
            } finally {
                if (payload.array().length > KEPT_BUFFER_BYTES) {
                    payload = new MsgpackWriter(64 * 1024);
                }
            }
        }
    }

    private void encode(List<Change> message, Welcome session) {
        payload.clear();
        for (Change change : message) {
            change.write(payload, session.incarnation(), session.session());
        }
    }

    private void logSchemas(Welcome session, long deadline) throws IOException {
        List<Schema> missing = logged.missing();
        if (missing.isEmpty()) {
            return;
        }
        payload.clear();
        missing.forEach(schema -> schemas.write(payload, schema));
        connection.start("metadata", 2).integer(session.session()).integer(missing.size());
        connection.ask("ack", payload, deadline);
        logged.add(missing);
        logger.info("imap-wal: " + missing.size() + " Compact schema(s) logged by " + agent());
    }

    /** Sees to a connection that was greeted under the present cluster id. */
    private void greet() throws IOException {
        UUID clusterId = guard.clusterId();
        synchronized (lock) {
            if (closed) {
                throw new IOException("the member is shutting down");
            }
        }
        if (clusterId == null) {
            throw new IOException("the member has not joined its cluster yet");
        }
        if (connection != null && connection.welcome().clusterId().equals(clusterId)) {
            return;
        }
        disconnect();
        if (lastFailure != null && System.nanoTime() - pausedUntilNanos < 0) {
            throw lastFailure;
        }
        long from = System.nanoTime();
        try {
            connection = AgentConnection.open(settings, identity, clusterId, "write");
        } catch (IOException e) {
            // A connect that hangs holds up callers: at most half of their time.
            pauseMs = Math.min(MAX_PAUSE_MS, pauseMs * 2);
            long spent = System.nanoTime() - from;
            pausedUntilNanos = System.nanoTime() + Math.max(TimeUnit.MILLISECONDS.toNanos(pauseMs), spent);
            if (lastFailure == null || !String.valueOf(lastFailure.getMessage()).equals(e.getMessage())) {
                logger.warning("imap-wal: no " + agent() + ", changes are refused until it is there: " + reason(e));
            }
            lastFailure = e;
            throw e;
        }
        Welcome now = connection.welcome();
        Welcome former = welcome;
        if (former == null || former.session() != now.session() || !former.node().equals(now.node())) {
            logged.clear();
        }
        lastFailure = null;
        pauseMs = MIN_PAUSE_MS;
        lastRequest = Math.max(lastRequest, now.lastRequest());
        welcome = now;
        welcomes++;
        logger.info("imap-wal: " + agent() + " is there: session " + now.session() + ", incarnation " + now.incarnation());
    }

    private void disconnect() {
        if (connection != null) {
            connection.close();
            connection = null;
        }
    }

    private void fail(List<Change> message, boolean sent, IOException cause) {
        for (Change change : message) {
            if (change.ticket.done()) {
                continue;
            }
            if (sent) {
                Welcome session = welcome;
                settler.add(this, change, welcomes, session == null ? 0 : session.session());
                change.ticket.fail(new OutcomeUnknown(map(change) + "no acknowledgement by " + agent() + ": " + reason(cause)
                        + ". The change may be in the log; " + settling(), cause));
            } else {
                change.ticket.fail(notAppended(map(change), cause));
            }
        }
        if (sent) {
            // Whatever the agent still does with it, a new welcome tells.
            disconnect();
        }
    }

    private NotAppended notAppended(String map, IOException cause) {
        return new NotAppended(map + "not appended by " + agent() + ": " + reason(cause)
                + ". Nothing was changed; the operation may be repeated as it is", cause);
    }

    private LogUnavailable unreachable(IOException cause) {
        return new LogUnavailable(cause instanceof AgentError || cause instanceof ProtocolException
                ? agent() + " refuses: " + reason(cause)
                : agent() + " cannot be reached: " + reason(cause) + " (is \"imap-wal agent\" running there?)", cause);
    }

    private static String map(Change change) {
        return "map \"" + change.map + "\": ";
    }

    private static String settling() {
        return "memory keeps the former value until the agent answers and the plug-in settles the key from the log";
    }

    static String reason(Throwable cause) {
        String text = cause.getMessage();
        return text == null || text.isBlank() ? cause.getClass().getSimpleName() : text;
    }

    private static void wake(List<Change> message, List<Ticket> greetings, List<Ticket> finished) {
        finished.addAll(greetings);
        Ticket last = null;
        for (Change change : message) {
            if (change.ticket != last && change.ticket.done()) {
                last = change.ticket;
                finished.add(last);
            }
        }
    }

    private void handOn(Ticket own) {
        Ticket next;
        synchronized (lock) {
            next = queue.peek();
            led = next != null;
            if (closed && next == null) {
                disconnect();
            }
        }
        if (next != null) {
            next.lead();
        }
    }
}
