package io.imapwal.hazelcast.append;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;

/**
 * The callers whose changes no append has taken yet, in the order of their calls.
 *
 * <p>It has no lock: its owner uses it with its own lock held.
 */
final class AppendQueue {
    static final int MAX_APPEND_BYTES = 8 << 20;
    static final int MAX_APPEND_CHANGES = 4096;

    private final Deque<PendingAppend> waiting = new ArrayDeque<>();
    private long bytes;
    private int changes;

    void add(PendingAppend pending) {
        waiting.add(pending);
        bytes += pending.queuedBytes();
        changes += pending.changes.size();
    }

    /** Removes a caller that gives up, if it is still in the queue. */
    void remove(PendingAppend pending) {
        if (waiting.remove(pending)) {
            bytes -= pending.queuedBytes();
            changes -= pending.changes.size() - pending.taken;
        }
    }

    /** The caller that has waited longest; null: the queue is empty. */
    PendingAppend oldest() {
        return waiting.peek();
    }

    /** Bytes of the changes that no append has taken. */
    long bytes() {
        return bytes;
    }

    /** How many changes no append has taken. */
    int changes() {
        return changes;
    }

    /**
     * Moves as many changes into the append as fit. A caller leaves the queue with its last change.
     * The changes of a transaction are taken together or not at all. The first change is always
     * taken.
     */
    void moveTo(InFlightAppend append) {
        PendingAppend pending;
        while ((pending = waiting.peek()) != null) {
            if (pending.changes.isEmpty()) {
                append.greetings = append.greetings.isEmpty() ? new ArrayList<>()
                        : append.greetings;
                append.greetings.add(pending);
                waiting.poll();
                continue;
            }
            if (pending.whole && !fits(append, pending.changes.size(), pending.queuedBytes())) {
                return;
            }
            while (pending.taken < pending.changes.size()) {
                Change change = pending.changes.get(pending.taken);
                int size = change.head.length;
                if (!pending.whole && !fits(append, 1, size)) {
                    return;
                }
                append.changes.add(change);
                append.bytes += size;
                pending.taken++;
                bytes -= size;
                changes--;
            }
            waiting.poll();
        }
    }

    private static boolean fits(InFlightAppend append, int moreChanges, long moreBytes) {
        return append.changes.isEmpty()
                || append.changes.size() + moreChanges <= MAX_APPEND_CHANGES
                    && append.bytes + moreBytes <= MAX_APPEND_BYTES;
    }
}
