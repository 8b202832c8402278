package io.imapwal.hazelcast.append;

import io.imapwal.wire.AgentError;
import io.imapwal.wire.HungAgent;
import io.imapwal.wire.SessionInfo;

import java.io.IOException;
import java.net.SocketTimeoutException;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.List;

/**
 * One agent of an {@link Ensemble}: its connection, and the appends that it has not answered. The
 * thread that holds the wire sends; the leader reads the answers, perhaps at the same time.
 */
final class CopyAgent {
    /** The most copies of earlier changes without an answer. */
    private static final int COPIES_UNANSWERED = 8;

    final WriteConnection connection;
    final Breaker breaker;
    private final String name;
    private final Backlog backlog;
    private final Deque<Sent> unanswered = new ArrayDeque<>();
    /**
     * The incarnation of changes that it was sent before and may still append, because no welcome
     * came after them; 0: there are none.
     */
    private long leftIncarnation;
    /** Copies that it was sent before and may still append, and their incarnation. */
    private List<Backlog.Append> leftCopies = List.of();
    private long copiesIncarnation;
    /** The newest one. */
    private volatile SessionInfo welcome;

    /**
     * An append without an answer.
     *
     * @param ticket  the number that it has in the ensemble
     * @param number  of the request on this connection
     * @param appends what it has, as the backlog knows it
     * @param again   other nodes have acknowledged it before
     */
    private record Sent(long ticket, long number, List<Backlog.Append> appends, boolean again) {
    }

    CopyAgent(WriteConnection connection, Breaker breaker, String name, Backlog backlog) {
        this.connection = connection;
        this.breaker = breaker;
        this.name = name;
        this.backlog = backlog;
    }

    @Override
    public String toString() {
        return name;
    }

    /** Says hello. After its welcome, the agent appends nothing that it was sent before. */
    SessionInfo greet() throws IOException {
        SessionInfo session = connection.greet();
        if (!session.shared()) {
            connection.disconnect();
            throw new IOException(name + " is of a version that does not support copies; upgrade"
                    + " it, or set copies to 1");
        }
        leftIncarnation = 0;
        leftCopies = List.of();
        if (session != welcome) {  // of another connection, so nothing is unanswered
            synchronized (this) {
                unanswered.clear();
                welcome = session;
            }
            backlog.welcomed(session);
        }
        return session;
    }

    /** The same; then the connection is closed. */
    void shutOut() throws IOException {
        greet();
        connection.disconnect();
    }

    boolean mayStillAppend() {
        return leftIncarnation != 0 || backlog.mayBeInDoubt(leftCopies);
    }

    /** Changes that it was sent in older incarnations no longer count. */
    void follow(long incarnation) {
        if (leftIncarnation < incarnation) {
            leftIncarnation = 0;
        }
        if (copiesIncarnation < incarnation) {
            leftCopies = List.of();
        }
    }

    /** An append is about to be sent. */
    void sent(long ticket, Backlog.Append append) {
        sent(new Sent(ticket, connection.nextNumber(), List.of(append), false));
    }

    private synchronized void sent(Sent next) {
        unanswered.add(next);
        backlog.given(next.appends, welcome.node());
    }

    /** No byte of the last append was sent. */
    synchronized void notSent() {
        backlog.notGiven(unanswered.removeLast().appends, welcome.node());
    }

    synchronized int unanswered() {
        return unanswered.size();
    }

    /** Whether it has answered that append, and those before it. */
    synchronized boolean answered(long ticket) {
        return unanswered.isEmpty() || unanswered.peek().ticket > ticket;
    }

    /**
     * Waits until it has acknowledged that append, and those before it.
     *
     * @throws AgentError                      it refused one
     * @throws java.net.SocketTimeoutException not yet; this may be called again
     */
    void await(long ticket, long deadlineNanos) throws IOException {
        while (!answered(ticket)) {
            awaitOldest(deadlineNanos);
        }
    }

    private void awaitOldest(long deadlineNanos) throws IOException {
        Sent oldest;
        synchronized (this) {
            oldest = unanswered.peek();
        }
        try {
            connection.awaitAck(oldest.number, deadlineNanos);
        } catch (AgentError e) {
            if (!oldest.again || AgentError.isVoid(e)) {
                throw e;
            }
            backlog.refused(oldest.appends);
            // Not an AgentError: an append that was sent after it was not refused for itself.
            throw new IOException("it refuses a copy of an earlier change: " + AgentError.reason(e),
                    e);
        }
        synchronized (this) {
            unanswered.remove();
        }
        backlog.answered(oldest.appends, welcome.node());
    }

    /**
     * As {@link WriteConnection#logSchemas}, after the answers to all appends.
     *
     * @param soonNanos when these must have arrived
     */
    void logSchemas(long soonNanos, long deadlineNanos) throws IOException {
        if (connection.lacksSchemas()) {
            await(Long.MAX_VALUE, soonNanos);
            connection.logSchemas(deadlineNanos);
        }
    }

    /**
     * Sends what it lacks and can get. It has just been greeted. Answers that are late are taken
     * with those of the next appends.
     *
     * @param ticket     of the last append
     * @param untilNanos then nothing more is sent
     * @param lastNanos  when it must have accepted what was sent
     * @return how many changes were sent
     * @throws IOException it failed, or does not accept more
     */
    int copyAgain(long ticket, long untilNanos, long lastNanos) throws IOException {
        List<Backlog.Message> lacking = backlog.lackedBy(welcome);
        if (lacking.isEmpty() || System.nanoTime() - untilNanos > 0) {
            return 0;
        }
        int changes = 0;
        try {
            logSchemas(untilNanos, lastNanos);
        } catch (SocketTimeoutException e) {
            throw new IOException("it does not take a schema in time", e);
        }
        try {
            for (Backlog.Message each : lacking) {
                while (unanswered() >= COPIES_UNANSWERED) {
                    awaitOldest(untilNanos);
                }
                if (System.nanoTime() - untilNanos > 0) {
                    return changes;
                }
                send(each, ticket, lastNanos);
                changes += each.count();
            }
            await(ticket, untilNanos);
        } catch (SocketTimeoutException e) {
            if (e instanceof HungAgent) {
                throw e;
            }
            // The time has passed, and the agent works.
        }
        return changes;
    }

    private void send(Backlog.Message copies, long ticket, long deadlineNanos) throws IOException {
        sent(new Sent(ticket, connection.nextNumber(), copies.appends, true));
        try {
            connection.send(welcome.session(), copies.first(), copies.count(),
                    backlog.payload(copies), deadlineNanos);
        } catch (SocketTimeoutException e) {
            throw new IOException("it takes copies of earlier changes too slowly", e);
        }
    }

    /** Takes the answers that have arrived. */
    void takeAnswers() throws IOException {
        try {
            await(Long.MAX_VALUE, System.nanoTime());
        } catch (SocketTimeoutException e) {
            if (e instanceof HungAgent) {
                throw e;
            }
        }
    }

    /** Closes the connection. */
    synchronized void disconnect() {
        if (unanswered.stream().anyMatch(each -> !each.again)) {
            leftIncarnation = connection.newest().incarnation();
        }
        List<Backlog.Append> copies = unanswered.stream().filter(each -> each.again)
                .flatMap(each -> each.appends.stream()).toList();
        if (!copies.isEmpty()) {
            leftCopies = copies;
            copiesIncarnation = connection.newest().incarnation();
        }
        unanswered.clear();
        connection.disconnect();
    }
}
