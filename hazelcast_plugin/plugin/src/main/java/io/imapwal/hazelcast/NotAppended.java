package io.imapwal.hazelcast;

import com.hazelcast.core.HazelcastException;
import com.hazelcast.spi.exception.SilentException;

/**
 * The change is certainly neither in the log nor in memory. The operation may be repeated without
 * changes.
 *
 * <p>It is silent: Hazelcast logs no stack trace for each of the operations that fail together. The
 * plug-in logs the cause once.
 */
public final class NotAppended extends HazelcastException implements SilentException {
    private static final long serialVersionUID = 1L;

    public NotAppended(String message, Throwable cause) {
        super(message, cause);
    }
}
