package io.imapwal.hazelcast.read;

import io.imapwal.wire.AgentConnection;
import io.imapwal.wire.AgentError;
import io.imapwal.wire.AgentSettings;
import io.imapwal.wire.Candidates;
import io.imapwal.wire.ProtocolException;
import io.imapwal.wire.ZmtpConnection;

import java.io.Closeable;
import java.io.IOException;
import java.net.SocketTimeoutException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.ReentrantLock;

/**
 * A connection for reads only, so that no write waits for a read. Threads take turns. A read that
 * fails on an idle connection is tried once more on a new one, which has no other effect. A thread
 * waits for its turn at most as long as for its answer, because the read of another thread may take
 * as long as a merge of all logs.
 */
final class ReadConnection implements Closeable {
    private static final String LEAVES = "the member is shutting down";

    private final Candidates agents;
    private final AgentSettings settings;
    private final ReentrantLock turn = new ReentrantLock();
    /** The agent of the connection. */
    private volatile Candidates.Candidate agent;
    private volatile AgentConnection connection;
    private volatile boolean closed;

    ReadConnection(Candidates agents) {
        this.agents = agents;
        this.agent = agents.own();
        this.settings = agent.settings();
    }

    interface Request<T> {
        T on(AgentConnection connection) throws IOException;
    }

    /** The {@code nanoTime} at which a read that begins now has waited long enough. */
    long deadline(ReadWait wait) {
        return System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(wait.ms(settings));
    }

    /** Carries out the request when no other thread uses the connection. */
    <T> T inTurn(ReadWait wait, Request<T> request) throws IOException {
        ZmtpConnection.Patience patience = wait == ReadWait.SHORT ? ZmtpConnection.Patience.NONE
                : () -> agent.identity().pulse().whileReading(wait.ms(settings)).moreMs();
        boolean interrupted = awaitTurn(wait, patience);
        try {
            interrupted |= Thread.interrupted();
            return answer(wait, patience, request);
        } finally {
            turn.unlock();
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    /** Returns whether the thread was interrupted meanwhile; its status is then cleared. */
    private boolean awaitTurn(ReadWait wait, ZmtpConnection.Patience patience) throws IOException {
        boolean interrupted = false;
        boolean mine = false;
        try {
            for (long deadline = deadline(wait); !mine;) {
                try {
                    mine = turn.tryLock(deadline - System.nanoTime(), TimeUnit.NANOSECONDS);
                    long moreMs = mine ? 0 : patience.moreMs();
                    if (!mine && moreMs == 0) {
                        throw new SocketTimeoutException("another read did not end in time");
                    }
                    deadline += TimeUnit.MILLISECONDS.toNanos(moreMs);
                } catch (InterruptedException e) {
                    interrupted = true;
                }
            }
        } finally {
            if (interrupted && !mine) {
                Thread.currentThread().interrupt();
            }
        }
        return interrupted;
    }

    private <T> T answer(ReadWait wait, ZmtpConnection.Patience patience, Request<T> request)
            throws IOException {
        while (true) {
            boolean fresh = connect(wait);
            try {
                connection.patience(patience);
                return request.on(connection);
            } catch (AgentError e) {
                if (!e.connectionStays()) {
                    disconnect();
                }
                throw e;
            } catch (IOException e) {
                disconnect();
                if (fresh || closed || e instanceof ProtocolException
                        || e instanceof SocketTimeoutException) {
                    throw e;
                }
            } catch (RuntimeException e) {
                disconnect();
                throw e;
            }
        }
    }

    /** Whether it opened a new connection: there was none, or it was for an earlier view. */
    private boolean connect(ReadWait wait) throws IOException {
        if (closed || connection != null && !connection.current(agent.identity())) {
            disconnect();
        }
        if (closed) {
            throw new IOException(LEAVES);
        }
        if (connection != null) {
            return false;
        }
        Candidates.Opened opened = agents.open("read", wait == ReadWait.LONG);
        agent = opened.candidate();
        connection = opened.connection();
        if (closed) {  // meanwhile, and close() has not seen the connection
            disconnect();
            throw new IOException(LEAVES);
        }
        return true;
    }

    private void disconnect() {
        if (connection != null) {
            connection.close();
            connection = null;
        }
    }

    /** Also ends a request in progress. */
    @Override
    public void close() {
        closed = true;
        AgentConnection open = connection;
        if (open != null) {
            open.close();
        }
    }
}
