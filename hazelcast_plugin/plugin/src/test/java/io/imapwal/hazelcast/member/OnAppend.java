package io.imapwal.hazelcast.member;

/** What a {@link FakeAgent} does with an append. */
public enum OnAppend {
    ACK,
    /** Appends it, then the connection breaks. */
    BREAK_AFTER,
    /** Appends it, then the agent stops. */
    DIE_AFTER,
    /** The connection breaks, nothing is appended. */
    BREAK_BEFORE,
    /** Appends it, and does not answer. */
    SILENT_AFTER,
    /** Appends nothing, and does not answer. */
    SILENT_BEFORE,
    /** Appends it, and answers outcome-unknown. */
    UNKNOWN_AFTER,
    /** Appends it, then the next view is claimed: it counts, and the answer is outcome-unknown. */
    VIEW_AFTER,
    /** The next view is claimed first: it does not count, and the answer is outcome-unknown. */
    VIEW_BEFORE,
    FULL,
    /** Refuses one append, and acknowledges the next ones. */
    FULL_ONCE,
    /** Acknowledges one append, and refuses the next ones. */
    FULL_LATER
}
