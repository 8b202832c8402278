package io.imapwal.seatunnel;

import com.hazelcast.core.HazelcastException;

/**
 * The change is perhaps in the log, and not in memory. Once the agent answers again, memory gets
 * what the log has.
 */
public final class OutcomeUnknown extends HazelcastException {
    private static final long serialVersionUID = 1L;

    public OutcomeUnknown(String message, Throwable cause) {
        super(message, cause);
    }
}
