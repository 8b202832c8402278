package io.imapwal.seatunnel;

import com.hazelcast.core.OperationTimeoutException;

/**
 * The change may be in the log, and is not in memory. SeaTunnel repeats it, as after
 * {@link NotAppended}. When the agent answers again, memory gets what the log has.
 */
public final class OutcomeUnknown extends OperationTimeoutException {
    private static final long serialVersionUID = 1L;

    public OutcomeUnknown(String message, Throwable cause) {
        super(message, cause);
    }
}
