package io.imapwal.hazelcast;

import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

/**
 * Holds operations of one map on one partition until the partition is settled. It is one of the
 * loading futures of the partition's record store, which Hazelcast checks before each operation.
 *
 * <pre>
 *  partition    isDone   get       what Hazelcast does with an operation
 *  unsettled    false              repeats it later
 *  overdue      true     throws    fails it with that exception
 *  settled      true     returns   carries it out, and removes the gate
 * </pre>
 */
final class Gate implements Future<Object> {
    private final MapState state;
    private final int partition;

    Gate(MapState state, int partition) {
        this.state = state;
        this.partition = partition;
    }

    private boolean open() {
        return state.wholeness().settled(partition);
    }

    @Override
    public boolean isDone() {
        return open() || state.overdue(partition);
    }

    @Override
    public Object get() {
        if (!open()) {
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

    /** False while it is closed, even for itself: otherwise Hazelcast would remove it from the list after it threw its exception. */
    @Override
    public boolean equals(Object other) {
        return this == other && open();
    }

    @Override
    public int hashCode() {
        return System.identityHashCode(this);
    }
}
