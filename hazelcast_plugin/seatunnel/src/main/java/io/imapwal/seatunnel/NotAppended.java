package io.imapwal.seatunnel;

import com.hazelcast.core.OperationTimeoutException;

/**
 * The change is certainly neither in the log nor in memory. SeaTunnel repeats an operation for a
 * minute after an {@link OperationTimeoutException}, and gives up after most others.
 */
public final class NotAppended extends OperationTimeoutException {
    private static final long serialVersionUID = 1L;

    public NotAppended(String message, Throwable cause) {
        super(message, cause);
    }
}
