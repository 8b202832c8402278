package io.imapwal.hazelcast;

import java.util.List;
import java.util.concurrent.locks.LockSupport;

/** One caller of {@link AgentLink} and what it waits for. Without changes it waits for a greeted connection only. */
final class PendingAppend {
    final List<Change> changes;
    /** All of its changes go into one message, or none does. */
    final boolean whole;
    final Thread caller = Thread.currentThread();
    /** How many of the changes were taken from the queue already; with the link's lock held. */
    int taken;
    /** Changes without an outcome yet. Whoever has their message under way: all of a ticket's changes that are under way at one time are in one message
     * (a second one is never sent behind one of {@link AgentLink#MAX_MESSAGE_ENTRIES}). */
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

    /** Bytes of the changes that no message has taken. */
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

    /** How many of the changes were acknowledged, also when others failed. */
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

    /** OutcomeUnknown outweighs NotAppended: of a batch that failed both ways the caller must not hear that nothing happened. */
    void fail(Change change, RuntimeException cause) {
        if (change.over) {
            return;
        }
        if (failure == null || cause instanceof OutcomeUnknown) {
            failure = cause;
        }
        close(change);
    }

    /** For a ticket without changes. */
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

    /** Makes the waiting caller the leader; with the link's lock held, so that nobody can see it done before. It is to be unparked then. */
    void lead() {
        leads = true;
    }

    void unpark() {
        LockSupport.unpark(caller);
    }
}
