package io.imapwal.hazelcast.append;

import com.hazelcast.logging.ILogger;

import java.io.IOException;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.concurrent.locks.LockSupport;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.LongSupplier;
import java.util.function.Supplier;

/**
 * The appends that have no outcome yet (at most two), and the caller that leads.
 *
 * <p>It has no thread of its own. A caller puts its changes in the queue. If no caller leads, this
 * one does: it sends the queued changes as one append, waits for the answer, sends the changes that
 * were queued meanwhile, wakes the callers that are done, and makes one that is not done the next
 * leader. So a single caller needs one round trip and no change of threads, and many callers share
 * one round trip. While the leader waits for an answer, another caller may send a second append
 * ({@code docs/decisions/commits.md}).
 *
 * <p>There are two locks: {@link #lock} for the fields here, and the wire, for writing to the
 * connection and changing it. A thread that needs both takes {@link #lock} first, and waits for the
 * wire only if no append is under way. Only the leader reads from the connection.
 */
final class InFlightWindow {
    /** Sends appends. All methods but {@link #settle} are called with the wire held. */
    interface Sender {
        /** Whether an append can be sent without a new connection and without schemas. */
        boolean isReady();

        /**
         * Numbers the changes of an append, and sends them. Puts an exception into
         * {@link InFlightAppend#failure}.
         *
         * @param alone no answer is outstanding, so a connection may be opened, and schemas may be
         *         logged
         */
        void send(InFlightAppend append, boolean alone);

        /**
         * Waits for the answer to an append.
         *
         * @param open all appends without an outcome, the oldest first; used with the wire held
         */
        void settle(InFlightAppend append, Supplier<List<InFlightAppend>> open);

        /** Ends an append that may be in the log, and its callers without changes. */
        void abandon(InFlightAppend append, IOException cause);

        /** Informs the agent that this member stops. */
        void sayGoodbye();

        void disconnect();
    }

    /** How many bytes a socket to a local agent accepts at once. */
    private static final int QUICK_BYTES = 64 * 1024;

    private final Sender sender;
    private final ReentrantLock wire;
    private final LongSupplier nanoTime;
    private final ILogger logger;

    private final Object lock = new Object();
    private final AppendQueue queue = new AppendQueue();
    /** The oldest first. */
    private final Deque<InFlightAppend> underWay = new ArrayDeque<>(2);
    private boolean led;
    private boolean closed;
    /** The time from which the agent could work on the oldest append. */
    private long begunNanos;
    /** The time that the agent usually needs from then on. */
    private long usualNanos;

    InFlightWindow(Sender sender, ReentrantLock wire, LongSupplier nanoTime, ILogger logger) {
        this.sender = sender;
        this.wire = wire;
        this.nanoTime = nanoTime;
        this.logger = logger;
    }

    /** Returns when the caller has its outcome. */
    void run(PendingAppend pending) {
        // An interrupt would close the channel for all callers in the append.
        boolean interrupted = Thread.interrupted();
        boolean lead;
        synchronized (lock) {
            queue.add(pending);
            lead = !led;
            led = true;
        }
        try {
            if (!lead) {
                try {
                    sendIfWorthwhile();
                } catch (Throwable e) {
                    // The callers in the append get the error. This caller may still have to lead.
                    logger.severe("imap-wal: sending changes failed", e);
                }
            }
            while (!lead && !pending.leads() && !pending.done()) {
                LockSupport.park(this);
                interrupted |= Thread.interrupted();
            }
            if (lead || pending.leads()) {
                interrupted |= Thread.interrupted();
                lead(pending);
            }
        } finally {
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    /** After this, the connection is closed as soon as no caller waits. */
    void close() {
        boolean mine;
        synchronized (lock) {
            closed = true;
            // A leader closes the connection itself when it reads the flag.
            mine = !led;
            led = true;
        }
        if (mine) {
            sender.sayGoodbye();
            sender.disconnect();
            handOn(new ArrayList<>());
        }
    }

    private void lead(PendingAppend own) {
        List<PendingAppend> finished = new ArrayList<>();
        boolean completed = false;
        try {
            while (!own.done()) {
                collect(oldest(), finished);
            }
            // The agent works on the next append while the callers of this one wake up.
            sendIfWorthwhile();
            completed = true;
        } finally {
            try {
                if (!completed) {
                    abandon(own, finished);
                }
            } finally {
                try {
                    handOn(finished);
                } finally {
                    for (PendingAppend pending : finished) {
                        if (pending != own) {
                            pending.unpark();
                        }
                    }
                }
            }
        }
    }

    private void sendIfWorthwhile() {
        InFlightAppend next;
        synchronized (lock) {
            next = beginIfWorthwhile();
        }
        if (next != null) {
            send(next, false);
        }
    }

    /** The append that is answered next. If there is none, it begins one of the queued changes. */
    private InFlightAppend oldest() {
        InFlightAppend append;
        synchronized (lock) {
            append = underWay.peek();
            if (append != null) {
                return append;
            }
            // The wait is short: a thread that writes has an append under way until it has written.
            wire.lock();
            append = begin();
        }
        send(append, true);
        return append;
    }

    /**
     * With {@link #lock} held: begins an append of the queued changes, which this thread sends, if
     * that needs no waiting and is worthwhile. Otherwise it returns null.
     */
    private InFlightAppend beginIfWorthwhile() {
        InFlightAppend first = underWay.peek();
        if (closed || underWay.size() > 1 || !isWorthwhile(first) || !wire.tryLock()) {
            return null;
        }
        boolean ready = false;
        try {
            // No append may follow one that could not be sent: that one has the lower numbers.
            ready = sender.isReady() && (first == null || first.failure == null);
        } finally {
            if (!ready) {
                wire.unlock();
            }
        }
        return ready ? begin() : null;
    }

    /**
     * With a second append, the agent can continue as soon as it has finished the first one. It
     * need not wait until the answer has arrived here. If the second one is sent too early, it has
     * few changes, and few changes share a sync. So it must have as many changes as the first, and
     * half of the usual time of an append must have passed. With a slow storage, all callers have
     * queued long before that, so there is only one append at a time.
     */
    private boolean isWorthwhile(InFlightAppend first) {
        if (queue.changes() == 0) {
            return false;
        }
        if (first == null) {
            return queue.bytes() <= QUICK_BYTES;
        }
        return queue.bytes() + first.bytes <= QUICK_BYTES
                && queue.changes() >= first.changes.size()
                && nanoTime.getAsLong() - begunNanos >= usualNanos / 2;
    }

    /** With both locks held. {@link #send} releases the wire. */
    private InFlightAppend begin() {
        InFlightAppend append = null;
        boolean completed = false;
        try {
            append = new InFlightAppend();
            if (underWay.isEmpty()) {
                begunNanos = nanoTime.getAsLong();
            }
            underWay.add(append);
            queue.moveTo(append);
            completed = true;
            return append;
        } finally {
            if (!completed) {
                if (append != null) {
                    // Its callers get the error when the append is the oldest.
                    append.spoil();
                }
                wire.unlock();
            }
        }
    }

    private void send(InFlightAppend append, boolean alone) {
        boolean completed = false;
        try {
            sender.send(append, alone);
            completed = true;
        } finally {
            if (!completed) {
                append.spoil();
            }
            append.posted = true;
            wire.unlock();
        }
    }

    /** After an Error (OutOfMemoryError): all callers must stop waiting. */
    private void abandon(PendingAppend own, List<PendingAppend> finished) {
        IOException cause = new IOException("the sending thread failed");
        wire.lock();
        try {
            synchronized (lock) {
                queue.remove(own);
                while (!underWay.isEmpty()) {
                    InFlightAppend append = underWay.poll();
                    append.number(append.changes, append.session());
                    sender.abandon(append, cause);
                    addFinished(append, finished);
                }
            }
            sender.disconnect();
        } finally {
            wire.unlock();
        }
    }

    /** Returns when the oldest append has its outcome; adds the callers to wake. */
    private void collect(InFlightAppend append, List<PendingAppend> finished) {
        awaitPosted(append);
        while (!append.over()) {
            sender.settle(append, this::open);
        }
        synchronized (lock) {
            underWay.remove();
            long now = nanoTime.getAsLong();
            usualNanos += (now - begunNanos - usualNanos) / 8;
            begunNanos = now;
        }
        addFinished(append, finished);
    }

    private List<InFlightAppend> open() {
        synchronized (lock) {
            return new ArrayList<>(underWay.stream().filter(append -> !append.over()).toList());
        }
    }

    private void awaitPosted(InFlightAppend append) {
        if (!append.posted) {
            wire.lock();
            wire.unlock();
        }
    }

    private static void addFinished(InFlightAppend append, List<PendingAppend> finished) {
        finished.addAll(append.greetings);
        PendingAppend last = null;
        for (Change change : append.changes) {
            if (change.pending != last && change.pending.done()) {
                last = change.pending;
                finished.add(last);
            }
        }
    }

    /** Makes a waiting caller the leader: one of the oldest append, or the oldest in the queue. */
    private void handOn(List<PendingAppend> finished) {
        PendingAppend next;
        while (true) {
            InFlightAppend append;
            synchronized (lock) {
                append = underWay.peek();
                if (append == null || append.posted && !append.over()) {
                    next = append == null ? queue.oldest() : waitingFor(append);
                    led = next != null;
                    if (next != null) {
                        next.lead();
                    } else if (closed) {
                        sender.disconnect();
                    }
                    break;
                }
            }
            awaitPosted(append);
            if (append.over()) {
                collect(append, finished);
            }
        }
        if (next != null) {
            next.unpark();
        }
    }

    private static PendingAppend waitingFor(InFlightAppend append) {
        return append.numbered().stream().filter(change -> !change.over).findFirst()
                .orElseThrow().pending;
    }
}
