package io.imapwal.hazelcast;

import java.util.List;
import java.util.concurrent.locks.LockSupport;

/** One caller of {@link AgentLink} and what it waits for. Without changes it waits for a greeted connection only. */
final class Ticket {
    final List<Change> changes;
    final Thread caller = Thread.currentThread();
    /** How many of the changes were sent already; the leader's. */
    int taken;
    /** Changes without an outcome yet; the leader's. */
    private int open;
    private int appended;
    private RuntimeException failure;
    private volatile boolean leads;
    private volatile boolean done;

    Ticket(List<Change> changes) {
        this.changes = changes;
        this.open = changes.size();
        for (Change change : changes) {
            change.ticket = this;
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

    void succeed() {
        appended++;
        close();
    }

    /** OutcomeUnknown outweighs NotAppended: of a batch that failed both ways the caller must not hear that nothing happened. */
    void fail(RuntimeException cause) {
        if (failure == null || cause instanceof OutcomeUnknown) {
            failure = cause;
        }
        close();
    }

    /** For a ticket without changes. */
    void finish(RuntimeException cause) {
        failure = cause;
        done = true;
    }

    private void close() {
        if (--open == 0) {
            done = true;
        }
    }

    /** Makes the waiting caller the leader. */
    void lead() {
        leads = true;
        LockSupport.unpark(caller);
    }
}
