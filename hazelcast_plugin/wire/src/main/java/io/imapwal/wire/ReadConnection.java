package io.imapwal.wire;

import java.io.Closeable;
import java.io.IOException;
import java.net.SocketTimeoutException;

/**
 * A connection for reads only, so that no write waits for a read. A read that fails on an idle
 * connection is tried once more on a new one, which has no other effect. One thread at a time
 * reads; any thread may close it.
 */
public final class ReadConnection implements Closeable {
    private static final String LEAVES = "the member is shutting down";

    /** The agent of the connection. */
    private volatile Candidates.Candidate agent;
    private volatile AgentConnection connection;
    private volatile boolean closed;

    /** @param own the agent that is asked first */
    public ReadConnection(Candidates.Candidate own) {
        this.agent = own;
    }

    /** Opens a connection to an agent. */
    public interface Opener {
        Candidates.Opened open() throws IOException;
    }

    public interface Request<T> {
        T on(AgentConnection connection) throws IOException;
    }

    public Candidates.Candidate agent() {
        return agent;
    }

    /** Raises the agent's "listing-gone" as {@link ListingGone}. */
    public <T> T ask(Opener opener, ZmtpConnection.Patience patience, Request<T> request)
            throws IOException {
        while (true) {
            boolean fresh = connect(opener);
            try {
                connection.patience(patience);
                return request.on(connection);
            } catch (AgentError e) {
                if (!e.connectionStays()) {
                    disconnect();
                }
                throw e.code().equals("listing-gone") ? new ListingGone(e.getMessage(), e) : e;
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
    private boolean connect(Opener opener) throws IOException {
        if (closed || connection != null && !connection.current(agent.identity())) {
            disconnect();
        }
        if (closed) {
            throw new IOException(LEAVES);
        }
        if (connection != null) {
            return false;
        }
        Candidates.Opened opened = opener.open();
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
