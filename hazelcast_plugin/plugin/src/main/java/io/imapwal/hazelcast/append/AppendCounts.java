package io.imapwal.hazelcast.append;

import io.imapwal.hazelcast.LogUnavailable;
import io.imapwal.hazelcast.NotAppended;
import io.imapwal.hazelcast.OutcomeUnknown;

import java.util.concurrent.atomic.LongAdder;

/**
 * Counts the changes of a member by the outcome that their callers got. A change that is sent again
 * counts once.
 */
final class AppendCounts {
    private final LongAdder appended = new LongAdder();
    private final LongAdder refused = new LongAdder();
    private final LongAdder unknown = new LongAdder();

    void appended(int changes) {
        appended.add(changes);
    }

    /** @param failure what the caller got */
    void failed(int changes, RuntimeException failure) {
        if (failure instanceof NotAppended || failure instanceof LogUnavailable) {
            refused.add(changes);
        } else if (failure instanceof OutcomeUnknown) {
            unknown.add(changes);
        }
    }

    long appended() {
        return appended.sum();
    }

    long refused() {
        return refused.sum();
    }

    long unknown() {
        return unknown.sum();
    }
}
