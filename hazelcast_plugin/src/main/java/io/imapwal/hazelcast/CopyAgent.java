package io.imapwal.hazelcast;

import java.io.IOException;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.function.LongConsumer;

/**
 * One agent of an {@link Ensemble}: its connection, and the appends that it has not answered. The
 * thread that holds the wire sends; the leader reads the answers, perhaps at the same time.
 */
final class CopyAgent {
    final WriteConnection connection;
    final Breaker breaker;
    private final String name;
    private final Deque<Sent> unanswered = new ArrayDeque<>();
    /**
     * The incarnation of changes that it was sent before and may still append, because no welcome
     * came after them; 0: there are none.
     */
    private long leftIncarnation;

    /**
     * An append without an answer.
     *
     * @param ticket  the number that it has in the ensemble
     * @param number  of the request on this connection
     * @param changes how many changes it has
     */
    private record Sent(long ticket, long number, int changes) {
    }

    CopyAgent(WriteConnection connection, Breaker breaker, String name) {
        this.connection = connection;
        this.breaker = breaker;
        this.name = name;
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
        return session;
    }

    /** The same; then the connection is closed. */
    void shutOut() throws IOException {
        greet();
        connection.disconnect();
    }

    boolean mayStillAppend() {
        return leftIncarnation != 0;
    }

    /** Changes that it was sent in older incarnations no longer count. */
    void follow(long incarnation) {
        if (leftIncarnation < incarnation) {
            leftIncarnation = 0;
        }
    }

    synchronized void sent(long ticket, long number, int changes) {
        unanswered.add(new Sent(ticket, number, changes));
    }

    /** No byte of the last append was sent. */
    synchronized void notSent() {
        unanswered.removeLast();
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
            Sent oldest;
            synchronized (this) {
                oldest = unanswered.peek();
            }
            connection.awaitAck(oldest.number, deadlineNanos);
            synchronized (this) {
                unanswered.remove();
            }
        }
    }

    /**
     * Closes the connection.
     *
     * @param acked     the last append that counts as acknowledged
     * @param forgotten gets how many of its changes may be missing here
     */
    synchronized void disconnect(long acked, LongConsumer forgotten) {
        if (!unanswered.isEmpty()) {
            leftIncarnation = connection.newest().incarnation();
            forgotten.accept(unanswered.stream().filter(each -> each.ticket <= acked)
                    .mapToLong(Sent::changes).sum());
            unanswered.clear();
        }
        connection.disconnect();
    }
}
