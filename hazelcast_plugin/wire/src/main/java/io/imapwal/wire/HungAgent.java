package io.imapwal.wire;

import java.net.SocketTimeoutException;

/** The agent's process does not respond at all: it is stopped, or its machine is unreachable. */
public final class HungAgent extends SocketTimeoutException {
    private static final long serialVersionUID = 1L;

    public HungAgent(int timeoutMs) {
        super("it has not answered for " + timeoutMs + " ms, as if its process was stopped");
    }
}
