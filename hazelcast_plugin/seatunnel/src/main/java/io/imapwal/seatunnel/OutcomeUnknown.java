package io.imapwal.seatunnel;

import com.hazelcast.core.OperationTimeoutException;

/**
 * The change is perhaps in the log, and not in memory. SeaTunnel repeats it, as
 * {@link NotAppended}; and once the agent answers again, memory gets what the log has.
 */
public final class OutcomeUnknown extends OperationTimeoutException {
    private static final long serialVersionUID = 1L;

    public OutcomeUnknown(String message, Throwable cause) {
        super(message, cause);
    }
}
