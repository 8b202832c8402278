package io.imapwal.hazelcast;

import java.io.IOException;

/**
 * The other side sent what {@code docs/protocol.md} does not know: a fault of one of the two
 * programs, or not an agent at all.
 */
final class ProtocolException extends IOException {
    private static final long serialVersionUID = 1L;

    ProtocolException(String message) {
        super(message);
    }
}
