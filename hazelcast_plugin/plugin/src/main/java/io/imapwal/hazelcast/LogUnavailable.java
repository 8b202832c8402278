package io.imapwal.hazelcast;

import com.hazelcast.core.HazelcastException;
import com.hazelcast.spi.exception.SilentException;

/**
 * The map is not restored on this member, because its log cannot be read now. Nothing was changed.
 * The next operation tries again, so the map is available again as soon as its agent is.
 *
 * <p>It is silent: Hazelcast logs no stack trace for each of the operations that fail together. The
 * plug-in logs the cause once.
 */
public final class LogUnavailable extends HazelcastException implements SilentException {
    private static final long serialVersionUID = 1L;

    public LogUnavailable(String message, Throwable cause) {
        super(message, cause);
    }
}
