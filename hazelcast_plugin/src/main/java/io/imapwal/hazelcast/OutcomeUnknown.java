package io.imapwal.hazelcast;

import com.hazelcast.core.HazelcastException;
import com.hazelcast.spi.exception.SilentException;

/**
 * The change was sent, and no acknowledgement came: it may be in the log. Memory still holds the
 * former value; as soon as the agent answers, the plug-in settles the key from the log into memory.
 * Read the key again before repeating what is not idempotent.
 *
 * <p>Silent, so that Hazelcast does not log a stack trace for each of the operations that fail
 * together; the plug-in logs the cause once.
 */
public final class OutcomeUnknown extends HazelcastException implements SilentException {
    private static final long serialVersionUID = 1L;

    public OutcomeUnknown(String message, Throwable cause) {
        super(message, cause);
    }
}
