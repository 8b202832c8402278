package io.imapwal.hazelcast;

import com.hazelcast.core.HazelcastException;
import com.hazelcast.spi.exception.SilentException;

/**
 * The change was sent, and no acknowledgement was received: it may be in the log. Memory still has
 * the former value. As soon as the agent answers, the plug-in sets the key in memory from the log.
 * Read the key again before you repeat an operation that is not idempotent.
 *
 * <p>It is silent: Hazelcast logs no stack trace for each of the operations that fail together. The
 * plug-in logs the cause once.
 */
public final class OutcomeUnknown extends HazelcastException implements SilentException {
    private static final long serialVersionUID = 1L;

    public OutcomeUnknown(String message, Throwable cause) {
        super(message, cause);
    }
}
