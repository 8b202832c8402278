package io.imapwal.hazelcast.read;

import io.imapwal.wire.AgentSettings;
import io.imapwal.wire.Candidates;
import io.imapwal.wire.ReadConnection;
import io.imapwal.wire.ZmtpConnection;

import java.io.Closeable;
import java.io.IOException;
import java.net.SocketTimeoutException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.ReentrantLock;

/**
 * Threads that read on one connection take turns. A thread waits for its turn at most as long as
 * for its answer, because the read of another thread may take as long as a merge of all logs.
 */
final class ReadTurns implements Closeable {
    private final Candidates agents;
    private final AgentSettings settings;
    private final ReentrantLock turn = new ReentrantLock();
    private final ReadConnection connection;

    ReadTurns(Candidates agents) {
        this.agents = agents;
        this.settings = agents.own().settings();
        this.connection = new ReadConnection(agents.own());
    }

    /** The {@code nanoTime} at which a read that begins now has waited long enough. */
    long deadline(ReadWait wait) {
        return System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(wait.ms(settings));
    }

    /** Carries out the request when no other thread uses the connection. */
    <T> T inTurn(ReadWait wait, ReadConnection.Request<T> request) throws IOException {
        ZmtpConnection.Patience patience = wait == ReadWait.SHORT ? ZmtpConnection.Patience.NONE
                : () -> connection.agent().identity().pulse().whileReading(wait.ms(settings))
                        .moreMs();
        boolean interrupted = awaitTurn(wait, patience);
        try {
            interrupted |= Thread.interrupted();
            return connection.ask(() -> agents.open("read", wait == ReadWait.LONG), patience,
                    request);
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

    /** Also ends a request in progress. */
    @Override
    public void close() {
        connection.close();
    }
}
