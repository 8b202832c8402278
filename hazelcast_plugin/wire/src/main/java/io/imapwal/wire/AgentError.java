package io.imapwal.wire;

import java.io.IOException;
import java.util.Arrays;
import java.util.HashSet;
import java.util.Set;

/** The agent's {@code error} answer: a code of {@code docs/protocol.md} and a text. */
public final class AgentError extends IOException {
    private static final long serialVersionUID = 1L;
    public static final String VOID = "void-incarnation";
    public static final String SCHEMA_REFUSED = "schema-refused";
    static final String NOT_ALLOWED = "not-allowed";
    private static final Set<String> CERTAIN =
            new HashSet<>(Arrays.asList("not-ready", "bad-request", "unsupported-version",
                "too-large", "superseded", VOID, "full", SCHEMA_REFUSED, NOT_ALLOWED));
    private static final Set<String> CONNECTION_STAYS =
            new HashSet<>(Arrays.asList("bad-request", "too-large", "full", "restore-failed",
                "storage", "listing-gone", SCHEMA_REFUSED));

    private final String code;
    private final String text;

    public AgentError(String code, String text) {
        super(code + ": " + text);
        this.code = code;
        this.text = text;
    }

    /** Without the code. */
    public String text() {
        return text;
    }

    public String code() {
        return code;
    }

    /** Whether the request certainly had no effect. With an unknown code it may have had one. */
    public boolean certain() {
        return CERTAIN.contains(code);
    }

    /** Whether the session can still be used; otherwise a new hello is needed. */
    public boolean connectionStays() {
        return CONNECTION_STAYS.contains(code);
    }

    /** The text of an error, or the name of its class if it has none. */
    public static String reason(Throwable cause) {
        String text = cause.getMessage();
        return text == null || text.trim().isEmpty() ? cause.getClass().getSimpleName() : text;
    }

    /** Whether the agent refuses this member because there is a newer view without it. */
    public static boolean isVoid(IOException e) {
        return e instanceof AgentError && ((AgentError) e).code().equals(VOID);
    }
}
