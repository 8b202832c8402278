package io.imapwal.wire;

import java.io.IOException;

/**
 * The other end sent something that {@code docs/protocol.md} does not allow. One of the two
 * programs has a bug, or the other end is not an agent.
 */
public final class ProtocolException extends IOException {
    private static final long serialVersionUID = 1L;

    public ProtocolException(String message) {
        super(message);
    }
}
