package io.imapwal.hazelcast;

import java.io.IOException;

/**
 * The other end sent something that {@code docs/protocol.md} does not allow. One of the two
 * programs has a bug, or the other end is not an agent.
 */
final class ProtocolException extends IOException {
    private static final long serialVersionUID = 1L;

    ProtocolException(String message) {
        super(message);
    }
}
