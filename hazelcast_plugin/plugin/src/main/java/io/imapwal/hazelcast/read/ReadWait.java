package io.imapwal.hazelcast.read;

import io.imapwal.wire.AgentSettings;

/** How long a read waits for its answer. */
public enum ReadWait {
    /** For {@code timeout-ms}: an operation waits for it. */
    SHORT,
    /** For {@code restore-timeout-ms}, and longer while the agent works on reads. */
    LONG;

    int ms(AgentSettings settings) {
        return this == SHORT ? settings.timeoutMs() : settings.restoreTimeoutMs();
    }
}
