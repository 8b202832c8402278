package io.imapwal.hazelcast.append;

import io.imapwal.hazelcast.OutcomeUnknown;

import java.util.List;
import java.util.concurrent.locks.LockSupport;

/**
 * One caller of {@link AgentLink} and the outcome that it waits for. A caller without changes waits
 * only for a greeted connection.
 */
final class PendingAppend {
    final List<Change> changes;
    /** Either one append takes all of its changes, or none does. */
    final boolean whole;
    final Thread caller = Thread.currentThread();
    /**
     * How many of the changes an append has taken; read and written with the window's lock held.
     */
    int taken;
    /**
     * How many changes have no outcome yet. The thread that has their append changes it. All
     * changes of a caller that are in flight at one time are in one append, because no second
     * append is sent after one of {@link AppendQueue#MAX_APPEND_CHANGES}.
     */
    private int open;
    private int appended;
    private RuntimeException failure;
    private volatile boolean leads;
    private volatile boolean done;

    PendingAppend(List<Change> changes, boolean whole) {
        this.changes = changes;
        this.whole = whole;
        this.open = changes.size();
        for (Change change : changes) {
            change.pending = this;
        }
    }

    /** Bytes of the changes that no append has taken. */
    long queuedBytes() {
        long bytes = 0;
        for (int i = taken; i < changes.size(); i++) {
            bytes += changes.get(i).head.length;
        }
        return bytes;
    }

    boolean done() {
        return done;
    }

    boolean leads() {
        return leads;
    }

    /** How many of the changes were acknowledged. Others may have failed. */
    int appended() {
        return appended;
    }

    RuntimeException failure() {
        return failure;
    }

    void succeed(Change change) {
        if (change.over) {
            return;
        }
        appended++;
        close(change);
    }

    /**
     * If some changes of a batch fail with OutcomeUnknown and others with NotAppended, the caller
     * gets OutcomeUnknown: NotAppended would say that nothing happened.
     */
    void fail(Change change, RuntimeException cause) {
        if (change.over) {
            return;
        }
        if (failure == null || cause instanceof OutcomeUnknown) {
            failure = cause;
        }
        close(change);
    }

    /** Ends the wait of a caller without changes. @param cause null: it has its connection */
    void finish(RuntimeException cause) {
        failure = cause;
        done = true;
    }

    private void close(Change change) {
        change.over = true;
        if (--open == 0) {
            done = true;
        }
    }

    /**
     * Makes the waiting caller the leader. The caller of this method then unparks it. The window's
     * lock is held, so that no other thread finds it done first.
     */
    void lead() {
        leads = true;
    }

    void unpark() {
        LockSupport.unpark(caller);
    }
}
