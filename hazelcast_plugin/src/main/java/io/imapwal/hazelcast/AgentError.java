package io.imapwal.hazelcast;

import java.io.IOException;
import java.util.Set;

/**
 * The agent's {@code error} answer: a code of {@code docs/protocol.md} and a text.
 */
final class AgentError extends IOException {
    private static final long serialVersionUID = 1L;
    static final String VOID = "void-incarnation";
    static final String SCHEMA_REFUSED = "schema-refused";
    static final String NOT_ALLOWED = "not-allowed";
    private static final Set<String> CERTAIN =
            Set.of("not-ready", "bad-request", "unsupported-version", "too-large", "superseded",
                VOID, "full", SCHEMA_REFUSED, NOT_ALLOWED);
    private static final Set<String> CONNECTION_STAYS =
            Set.of("bad-request", "too-large", "full", "restore-failed", "storage", "listing-gone",
                SCHEMA_REFUSED);

    private final String code;
    private final String text;

    AgentError(String code, String text) {
        super(code + ": " + text);
        this.code = code;
        this.text = text;
    }

    /** Without the code. */
    String text() {
        return text;
    }

    String code() {
        return code;
    }

    /** Whether the request certainly had no effect. With an unknown code it may have had one. */
    boolean certain() {
        return CERTAIN.contains(code);
    }

    /** Whether the session can still be used; otherwise a new hello is needed. */
    boolean connectionStays() {
        return CONNECTION_STAYS.contains(code);
    }
}
