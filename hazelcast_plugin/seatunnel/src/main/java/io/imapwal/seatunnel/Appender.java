package io.imapwal.seatunnel;

import io.imapwal.wire.AgentConnection;
import io.imapwal.wire.AgentError;
import io.imapwal.wire.AgentSettings;
import io.imapwal.wire.Candidates;
import io.imapwal.wire.MsgpackWriter;
import io.imapwal.wire.SessionInfo;

import java.io.IOException;
import java.net.SocketTimeoutException;
import java.util.ArrayList;
import java.util.List;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.ReentrantLock;

/**
 * Appends the changes of all maps of a member to the log of its agent. Callers queue their changes;
 * one of them sends all that wait as one message, which the agent commits with one sync.
 */
final class Appender {
    private static final int MESSAGE_BYTES = 8 << 20;
    private static final long PAUSE_NANOS = TimeUnit.MILLISECONDS.toNanos(50);
    private static final long GOODBYE_MS = 500;

    private final Candidates.Candidate agent;
    private final AgentSettings settings;
    private final String name;
    private final Doubts doubts;
    private final ReentrantLock turn = new ReentrantLock();
    private final Queue<Waiting> queue = new ConcurrentLinkedQueue<>();
    private volatile long valueBytesMax;

    // Used by the thread whose turn it is.
    private final MsgpackWriter payload = new MsgpackWriter(64 * 1024);
    private AgentConnection connection;
    private long request;
    private IOException failure;
    private long pausedUntil;
    private boolean closed;

    /** @param name of the agent, for messages */
    Appender(Candidates.Candidate agent, String name, Doubts doubts) {
        this.agent = agent;
        this.settings = agent.settings();
        this.name = name;
        this.doubts = doubts;
    }

    /** The changes of one caller, and what became of them. */
    private static final class Waiting {
        final List<Change> changes;
        final int bytes;
        boolean over;
        RuntimeException failure;

        Waiting(List<Change> changes) {
            this.changes = changes;
            this.bytes = changes.stream().mapToInt(Change::bytes).sum();
        }
    }

    /**
     * Returns when all changes are acknowledged.
     *
     * @throws NotAppended    none of them happened
     * @throws OutcomeUnknown some may have happened
     */
    void append(List<Change> changes) {
        if (changes.isEmpty()) {
            return;
        }
        changes.forEach(this::requireSize);
        Waiting mine = new Waiting(changes);
        queue.add(mine);
        turn.lock();
        try {
            while (!mine.over) {
                sendNext();
            }
        } finally {
            turn.unlock();
        }
        // One error for each caller, with its own stack. SeaTunnel looks at the last cause to
        // decide whether to repeat the operation, so there is none; the text has the reason.
        if (mine.failure instanceof NotAppended) {
            throw new NotAppended(mine.failure.getMessage(), null);
        } else if (mine.failure != null) {
            throw new OutcomeUnknown(mine.failure.getMessage(), null);
        }
    }

    private void requireSize(Change change) {
        long bytes = (long) change.keyBytes.length + change.valueBytes;
        if (change.valueBytes > 0 && valueBytesMax > 0 && bytes > valueBytesMax) {
            throw new NotAppended("imap-wal: map \"" + change.map + "\": key and value take "
                    + bytes + " bytes, and " + name + " accepts " + valueBytesMax
                    + "; raise its max_value_bytes. Nothing was changed", null);
        }
    }

    private void sendNext() {
        List<Waiting> batch = new ArrayList<>();
        List<Change> changes = new ArrayList<>();
        long bytes = 0;
        for (Waiting next; (next = queue.peek()) != null
                && (batch.isEmpty() || bytes + next.bytes <= MESSAGE_BYTES); queue.remove()) {
            batch.add(next);
            changes.addAll(next.changes);
            bytes += next.bytes;
        }
        RuntimeException failed = outcome(changes);
        for (Waiting waiting : batch) {
            // An agent refuses a message because of one change, perhaps of another caller.
            waiting.failure = batch.size() > 1 && failed instanceof NotAppended
                    && failed.getCause() instanceof AgentError ? outcome(waiting.changes) : failed;
            waiting.over = true;
        }
    }

    /** Null: they are acknowledged. */
    private RuntimeException outcome(List<Change> changes) {
        int from = 0;
        try {
            while (from < changes.size()) {
                int to = from;
                for (long bytes = 0; to < changes.size() && (to == from
                        || bytes + changes.get(to).bytes() <= MESSAGE_BYTES); to++) {
                    bytes += changes.get(to).bytes();
                }
                send(changes.subList(from, to));
                from = to;
            }
            return null;
        } catch (NotAppended e) {
            return from == 0 ? e : unknown(changes.subList(0, from), e);
        } catch (OutcomeUnknown e) {
            doubts.add(changes);
            return e;
        } catch (RuntimeException e) {
            disconnect();
            return unknown(changes, e);
        }
    }

    private OutcomeUnknown unknown(List<Change> changes, Exception cause) {
        doubts.add(changes);
        return lost(cause);
    }

    /**
     * One message. If its answer is lost, a new hello says whether it is in the log; if it is not,
     * it is sent once more.
     */
    private void send(List<Change> changes) {
        greet();
        for (boolean again = true; ; again = false) {
            SessionInfo session = connection.session();
            long first = request + 1;
            long last = request + changes.size();
            long before = connection.written();
            IOException cause;
            try {
                write(session, first, changes);
                request = last;
                return;
            } catch (IOException e) {
                cause = e;
            }
            boolean refused = cause instanceof AgentError && ((AgentError) cause).certain();
            boolean unsent = refused || connection.written() == before;
            disconnect();
            if (refused && !AgentError.isVoid(cause)) {
                throw notAppended(cause);
            }
            if (!again || cause instanceof SocketTimeoutException) {
                throw unsent ? notAppended(cause) : lost(cause);
            }
            try {
                greet();
            } catch (NotAppended e) {
                throw unsent ? e : lost(cause);
            }
            long counted = connection.session().counted(session);
            if (counted >= last) {
                return;
            } else if (counted >= first || counted < 0) {
                throw lost(cause);
            }
        }
    }

    private NotAppended notAppended(IOException cause) {
        return new NotAppended("imap-wal: " + name + ": " + AgentError.reason(cause)
                + ". Nothing was changed", cause);
    }

    private OutcomeUnknown lost(Exception cause) {
        return new OutcomeUnknown("imap-wal: " + name + ": " + AgentError.reason(cause)
                + ". The change may be in the log; memory was not changed", cause);
    }

    private void write(SessionInfo session, long first, List<Change> changes) throws IOException {
        payload.clear();
        long number = first;
        for (Change change : changes) {
            change.write(payload, session, number++);
        }
        connection.start("append", 3).integer(session.session()).integer(first)
                .integer(changes.size());
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(settings.timeoutMs());
        connection.send(payload, deadline);
        connection.awaitAck(connection.number(), deadline);
    }

    /** @throws NotAppended there is no agent, it refuses, or an attempt failed a moment ago */
    private void greet() {
        if (connection != null && connection.current(agent.identity())) {
            return;
        }
        disconnect();
        if (closed) {
            throw notAppended(new IOException("the member is shutting down"));
        }
        if (failure != null && System.nanoTime() - pausedUntil < 0) {
            throw notAppended(failure);
        }
        long from = System.nanoTime();
        try {
            connection = agent.open("write", false);
        } catch (IOException e) {
            // A connect that hangs takes at most half of the time of the partition's thread.
            long now = System.nanoTime();
            pausedUntil = now + Math.max(PAUSE_NANOS, now - from);
            failure = e;
            throw notAppended(e);
        }
        failure = null;
        request = connection.session().lastRequest();
        valueBytesMax = connection.session().maxValueBytes();
    }

    private void disconnect() {
        if (connection != null) {
            connection.close();
            connection = null;
        }
    }

    void close() {
        turn.lock();
        try {
            closed = true;
            if (connection != null) {
                connection.start("bye", 0);
                connection.ask("bye", payload.clear(),
                        System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(GOODBYE_MS));
            }
        } catch (IOException e) {
            // The session ends as that of a killed member does.
        } finally {
            disconnect();
            turn.unlock();
        }
    }
}
