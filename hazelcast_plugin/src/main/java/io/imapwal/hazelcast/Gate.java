package io.imapwal.hazelcast;

import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

/**
 * Holds operations of one map on one partition until the partition is whole. It is one of the
 * loading futures of the partition's record store, which Hazelcast checks before each operation.
 *
 * <pre>
 *  partition    isDone   get       what Hazelcast does with an operation
 *  not whole    false              repeats it later
 *  overdue      true     throws    fails it with that exception
 *  a backup     true     returns   carries it out
 *  whole        true     returns   carries it out, and removes the gate
 * </pre>
 */
final class Gate implements Future<Object> {
    private final MapState state;
    private final int partition;

    Gate(MapState state, int partition) {
        this.state = state;
        this.partition = partition;
    }

    @Override
    public boolean isDone() {
        if (!state.holds(partition)) {
            return true;
        }
        state.demand(partition);
        return state.overdue(partition);
    }

    @Override
    public Object get() {
        if (state.holds(partition)) {
            RuntimeException refusal = state.refusal(partition);
            // Hazelcast logs it for each operation that fails.
            refusal.setStackTrace(new StackTraceElement[0]);
            throw refusal;
        }
        return null;
    }

    @Override
    public Object get(long timeout, TimeUnit unit) {
        return get();
    }

    @Override
    public boolean cancel(boolean mayInterruptIfRunning) {
        return false;
    }

    @Override
    public boolean isCancelled() {
        return false;
    }

    /**
     * False until the partition is whole, even for itself: otherwise Hazelcast would remove it from the list after it threw its
     * exception, or after it let a backup pass.
     */
    @Override
    public boolean equals(Object other) {
        return this == other && state.wholeness().whole(partition);
    }

    @Override
    public int hashCode() {
        return System.identityHashCode(this);
    }
}
