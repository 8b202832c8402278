package io.imapwal.seatunnel;

import com.hazelcast.core.HazelcastException;

/** The change is certainly neither in the log nor in memory. */
public final class NotAppended extends HazelcastException {
    private static final long serialVersionUID = 1L;

    public NotAppended(String message, Throwable cause) {
        super(message, cause);
    }
}
