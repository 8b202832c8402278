package io.imapwal.hazelcast.append;

import io.imapwal.wire.AgentError;
import io.imapwal.wire.ProtocolException;
import io.imapwal.wire.SessionInfo;

import java.io.IOException;
import java.net.SocketTimeoutException;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.LongSupplier;
import java.util.function.Supplier;

/**
 * Sends appends to the agent, and finds the outcome of those without an answer.
 *
 * <p>An append gets its request numbers when it is built, by the thread that holds the wire, in the
 * order of the queue: contiguous in an append, and higher than those of the append before it.
 *
 * <pre>
 * event                               what the writer does
 * broken before a byte of it was      connects again, sends it
 * sent
 * broken later                        connects again; changes that are in the log by last_request
 *                                     of the welcome are acknowledged, the others are sent again
 *                                     with the same numbers
 * no new connection at once, or no    OutcomeUnknown for sent changes, NotAppended for the others
 * answer in time
 * refused                             NotAppended for it; connects again, as if broken, for the
 *                                     append that was sent after it
 * void-incarnation: a newer view was  connects again; changes of the older session that count,
 * claimed                             as the welcome says, are acknowledged, the others are sent
 *                                     again in the session of the new view
 * </pre>
 */
final class AgentWriter implements InFlightWindow.Sender {
    /** The connection for appends. Only {@link #awaitAck} is called without the wire. */
    interface Channel {
        /** Returns when there is a connection, greeted in the newest known view. */
        SessionInfo greet() throws IOException;

        /** The session of the connection; null: there is no connection. */
        SessionInfo session();

        /** Whether {@link #greet} and {@link #logSchemas} would do nothing. */
        boolean isReady();

        /** Logs the schemas that the log lacks. @param deadlineNanos as System.nanoTime() */
        void logSchemas(long deadlineNanos) throws IOException;

        /** How many bytes the connection has written; Long.MAX_VALUE: there is no connection. */
        long written();

        /** Sends an append and returns the number of its request. */
        long send(SessionInfo session, List<Change> changes, long deadlineNanos) throws IOException;

        /** Waits for the acknowledgement of that request. @throws AgentError it was refused */
        void awaitAck(long number, long deadlineNanos) throws IOException;

        /** Sets the reason for later refusals, if no connection can be made at once. */
        void failed(IOException cause);

        /** How many connections were greeted. */
        long welcomes();

        void sayGoodbye();

        void disconnect();
    }

    private final Channel channel;
    private final Outcomes outcomes;
    private final ReentrantLock wire;
    private final LongSupplier nanoTime;
    private final long timeoutNanos;
    private long lastRequest;

    /** @param timeoutMs how long callers wait for an acknowledgement, in milliseconds */
    AgentWriter(Channel channel, Outcomes outcomes, ReentrantLock wire, LongSupplier nanoTime,
                long timeoutMs) {
        this.channel = channel;
        this.outcomes = outcomes;
        this.wire = wire;
        this.nanoTime = nanoTime;
        this.timeoutNanos = TimeUnit.MILLISECONDS.toNanos(timeoutMs);
    }

    @Override
    public boolean isReady() {
        return channel.isReady();
    }

    @Override
    public void send(InFlightAppend append, boolean alone) {
        number(append, alone);
        append.deadlineNanos = nanoTime.getAsLong() + timeoutNanos;
        if (append.over()) {
            return;
        }
        try {
            if (alone) {
                channel.logSchemas(append.deadlineNanos);
            }
            sendOnce(append);
        } catch (IOException | RuntimeException e) {
            append.failure = e;
        }
    }

    /** Numbers each change that may be sent. Other callers get their outcome here. */
    private void number(InFlightAppend append, boolean alone) {
        IOException failure = null;
        if (alone) {
            try {
                greet();
            } catch (IOException e) {
                failure = e;
            }
        }
        for (PendingAppend greeting : append.greetings) {
            greeting.finish(failure == null ? null : outcomes.unreachable(failure));
            greeting.unpark();
        }
        List<Change> numbered = new ArrayList<>(append.changes.size());
        PendingAppend looked = null;
        boolean maySend = false;
        for (Change change : append.changes) {
            if (failure == null && (change.pending != looked || !change.pending.whole)) {
                looked = change.pending;
                List<Change> together = looked.whole ? looked.changes : List.of(change);
                maySend = outcomes.maySend(together, channel.session());
            }
            if (failure != null) {
                change.pending.fail(change, outcomes.notAppended(change, failure));
            } else if (!maySend) {
                change.pending.fail(change, OrderGuard.moved(change.stamp.partition()));
            } else {
                change.request = ++lastRequest;
                numbered.add(change);
                continue;
            }
            if (change.pending.done()) {
                change.pending.unpark();
            }
        }
        append.number(numbered, channel.session());
    }

    private void greet() throws IOException {
        lastRequest = Math.max(lastRequest, channel.greet().lastRequest());
    }

    private void sendOnce(InFlightAppend append) throws IOException {
        SessionInfo session = channel.session();
        append.give(session, channel.written());
        append.number = channel.send(session, append.numbered(), append.deadlineNanos);
    }

    /**
     * Waits for the answer. Without one, it follows the table of this class. Unlike
     * {@code Settlement}, it compares nothing with the log.
     */
    @Override
    public void settle(InFlightAppend append, Supplier<List<InFlightAppend>> open) {
        try {
            Exception failure = append.failure;
            if (failure instanceof IOException io) {
                throw io;
            } else if (failure != null) {
                throw (RuntimeException) failure;
            }
            channel.awaitAck(append.number, append.deadlineNanos);
            append.succeed();
        } catch (AgentError e) {
            wire.lock();
            try {
                refused(append, e, open);
            } finally {
                wire.unlock();
            }
        } catch (IOException | RuntimeException e) {
            IOException cause = e instanceof IOException io ? io : new IOException(e);
            boolean retry = !(e instanceof RuntimeException || cause instanceof ProtocolException
                    || cause instanceof SocketTimeoutException);
            wire.lock();
            try {
                channel.failed(cause);
                again(open.get(), cause, retry && inTime(append));
            } finally {
                wire.unlock();
            }
        }
    }

    private void refused(InFlightAppend append, AgentError error,
                         Supplier<List<InFlightAppend>> open) {
        if (AgentError.isVoid(error)) {
            append.answered(InFlightAppend.Event.NEWER_VIEW);
            again(open.get(), error, inTime(append));
            return;
        }
        if (error.code().equals("outcome-unknown")) {
            // A newer view may be the reason; then the next welcome gives the outcome.
            append.answered(InFlightAppend.Event.OUTCOME_UNKNOWN);
            again(open.get(), error, true);
            return;
        }
        boolean sent = append.state() == InFlightAppend.State.SENT;
        fail(append, append.mayBeInLog() || sent && !error.certain(), error);
        // The agent refuses all appends after a refused one, until the next hello. But if this node
        // was superseded, the next welcome may be another agent's, whose appends must not be
        // confused with ours.
        IOException cause = new IOException("the append before it was refused: "
                + AgentError.reason(error));
        again(open.get(), cause, !error.code().equals("superseded"));
    }

    private boolean inTime(InFlightAppend append) {
        return nanoTime.getAsLong() < append.deadlineNanos;
    }

    private void fail(InFlightAppend append, boolean mayBeInLog, IOException cause) {
        outcomes.fail(append, mayBeInLog, channel.welcomes(), cause);
        if (mayBeInLog) {
            // A new welcome decides whether the agent has appended it.
            channel.disconnect();
        }
    }

    /**
     * With the wire held: closes the connection, ends the open appends that the next welcome
     * decides, and sends the rest again. Without a next welcome they fail.
     */
    private void again(List<InFlightAppend> open, IOException cause, boolean retry) {
        long written = channel.written();
        open.forEach(append -> append.closing(written));
        channel.disconnect();
        for (InFlightAppend append : open) {
            if (append.broken()) {
                fail(append, append.mayBeInLog(), new IOException(append.failure));
            }
        }
        open.removeIf(InFlightAppend::over);
        if (open.isEmpty()) {
            return;
        }
        long welcomes = channel.welcomes();
        IOException why = cause;
        if (retry) {
            try {
                greet();
            } catch (IOException e) {
                why = e;
            }
        }
        if (channel.session() == null) {
            for (InFlightAppend append : open) {
                boolean unknown = append.state() == InFlightAppend.State.UNKNOWN;
                // The refusal of a hello says what to do if another cluster has the log now.
                fail(append, append.mayBeInLog(), unknown && !AgentError.isVoid(why) ? cause : why);
            }
            return;
        }
        for (InFlightAppend append : open) {
            outcomes.decide(append, channel.session(), welcomes, cause);
        }
        open.removeIf(InFlightAppend::over);
        if (!open.isEmpty()) {
            sendAll(open);
        }
    }

    private void sendAll(List<InFlightAppend> open) {
        Exception failure = null;
        try {
            channel.logSchemas(open.get(0).deadlineNanos);
        } catch (IOException | RuntimeException e) {
            failure = e;
        }
        for (InFlightAppend append : open) {
            append.failure = failure;
            if (failure == null) {
                try {
                    sendOnce(append);
                } catch (IOException | RuntimeException e) {
                    failure = append.failure = e;
                }
            }
        }
    }

    @Override
    public void abandon(InFlightAppend append, IOException cause) {
        fail(append, true, cause);
        append.greetings.forEach(each -> each.finish(outcomes.unreachable(cause)));
    }

    @Override
    public void sayGoodbye() {
        channel.sayGoodbye();
    }

    @Override
    public void disconnect() {
        channel.disconnect();
    }
}
