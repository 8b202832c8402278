package io.imapwal.hazelcast;

import com.hazelcast.internal.serialization.impl.compact.Schema;
import com.hazelcast.logging.ILogger;
import com.hazelcast.spi.exception.RetryableHazelcastException;

import java.io.IOException;
import java.net.SocketTimeoutException;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.concurrent.locks.LockSupport;
import java.util.concurrent.locks.ReentrantLock;

/**
 * The way of changes from a member to its agent, shared by all its maps.
 *
 * <p>It has no thread of its own. A caller puts its changes in the queue; if nobody leads, it leads: it sends what is queued
 * as one {@code append}, waits for the ack, sends what was queued meanwhile, wakes those who are done and hands on to one
 * who is not. So one caller pays one round trip and no hand-off, and many callers share one. While the leader waits for an
 * answer, a caller may send a second message ({@link #beginIfWorthwhile}, {@code docs/decisions/0013}).
 *
 * <p>Request numbers are given when a message is built, by whoever holds the wire, in queue order: contiguous inside a
 * message, a later message above the former one.
 *
 * <pre>
 * broken before a byte of the message left    connect again, send
 * broken later                                connect again; the welcome's last_request says whether it is in the log:
 *                                             yes: acknowledged, no: send again under the same numbers
 * cannot connect again at once, or no answer  OutcomeUnknown for what was sent, NotAppended for what was not
 * in time
 * refused                                     NotAppended for it; connect again, as for broken, for what was sent behind it
 * void-incarnation: a newer view was claimed  connect again; the welcome says for the session of the older view what counts: it
 *                                             is acknowledged, the rest is sent again in the session of the new view
 * </pre>
 */
final class AgentLink {
    private static final int MAX_MESSAGE_BYTES = 8 << 20;
    private static final int MAX_MESSAGE_ENTRIES = 4096;
    private static final int KEPT_BUFFER_BYTES = 1 << 20;
    /** What a socket to a local agent takes at once. */
    private static final int QUICK_BYTES = 64 * 1024;
    private static final long MIN_PAUSE_MS = 50;
    private static final long MAX_PAUSE_MS = 1000;
    private static final long GOODBYE_MS = 500;
    private static final long LOOK_NANOS = 200_000;

    private final AgentSettings settings;
    private final AgentConnection.Identity identity;
    private final OrderGuard guard;
    private final SchemaLog.Logged logged;
    private final Reconciler reconciler;
    private final ILogger logger;
    private final String member;
    /** Called when the agent says that this member may not write. */
    private final Runnable refused;

    private final Object lock = new Object();
    private final Deque<PendingAppend> queue = new ArrayDeque<>();
    private long queuedBytes;
    private int queuedChanges;
    /** What is being sent, was sent or failed to be, and has not its outcome yet; the oldest first, at most two. */
    private final Deque<InFlightAppend> underWay = new ArrayDeque<>(2);
    private boolean led;
    private boolean closed;
    /** When the agent could begin with the oldest message under way, and how long it usually takes from there. */
    private long begunNanos;
    private long usualNanos;

    /** Held by whoever writes to the connection, or changes it. Only the leader reads from it, and only the leader changes it. */
    private final ReentrantLock wire = new ReentrantLock();
    private AgentConnection connection;
    private MsgpackWriter payload = new MsgpackWriter(64 * 1024);
    private long lastRequest;
    private long pauseMs = MIN_PAUSE_MS;
    private long pausedUntilNanos = System.nanoTime();
    private IOException lastFailure;

    /** For each partition, how many changes have a caller that was not told the outcome yet. */
    private final AtomicIntegerArray pending;
    private volatile SessionInfo session;
    private volatile boolean learned;
    private volatile boolean recheck;
    /** How many connections were greeted; a key whose outcome is unknown waits for one more. */
    private volatile long welcomes;

    AgentLink(AgentSettings settings, AgentConnection.Identity identity, OrderGuard guard, SchemaLog schemas, Reconciler reconciler,
              ILogger logger, String member, Runnable refused) {
        this.settings = settings;
        this.identity = identity;
        this.guard = guard;
        this.logged = schemas.new Logged();
        this.reconciler = reconciler;
        this.logger = logger;
        this.member = member;
        this.refused = refused;
        this.pending = new AtomicIntegerArray(guard.partitionCount());
    }

    /** The newest welcome, or null before the first one. */
    SessionInfo session() {
        return session;
    }

    long welcomes() {
        return welcomes;
    }

    /** The newest view of the log that this member's cluster is known to be in; 0: none. */
    long knownView() {
        return identity.view().of(guard.clusterId(), guard.member());
    }

    /** @param view what another member of the cluster knows; 0: nothing */
    void learn(long view) {
        UUID clusterId = guard.clusterId();
        if (clusterId != null && view > knownView()) {
            identity.view().learn(clusterId, guard.member(), view);
            // What the agent said to an older view does not count.
            learned = true;
        }
    }

    /** The next use of a connection says hello again: this member may have been left out since the last hello. */
    void recheck() {
        recheck = true;
    }

    /** From now on the maps of this link are not available, until this member has joined a cluster again. */
    void leaveOut(UUID out, String why) {
        identity.view().bar(out, why);
    }

    boolean isLeftOut() {
        return identity.view().barred(guard.member()) != null;
    }

    AgentSettings settings() {
        return settings;
    }

    /** Who is at the other end, for messages. */
    String agent() {
        SessionInfo known = session;
        return "agent " + settings.agent() + (known == null ? "" : " (node " + known.node() + ")") + " of member " + member;
    }

    /**
     * Returns when all changes are as durable as the agent makes them.
     *
     * @throws NotAppended    none of them happened
     * @throws OutcomeUnknown some may have happened; the reconciler has their keys
     * @throws RetryableHazelcastException a partition changed hands while its change was queued
     */
    void append(List<Change> changes) {
        if (changes.isEmpty()) {
            return;
        }
        // Before they are in the queue: if a partition has begun to migrate, they are refused
        // there.
        changes.forEach(change -> pending.incrementAndGet(change.stamp.partition()));
        try {
            appendPending(changes);
        } finally {
            changes.forEach(change -> pending.decrementAndGet(change.stamp.partition()));
        }
    }

    private void appendPending(List<Change> changes) {
        PendingAppend ticket = new PendingAppend(changes, false);
        run(ticket);
        RuntimeException failure = ticket.failure();
        if (failure == null) {
            for (Change change : changes) {
                if (!guard.holds(change.stamp)) {
                    // The partition moved away during the append, and may have returned: Hazelcast would
                    // accept the change, but in the log it has a former owner's stamp, and a rewrite may
                    // void it. Hazelcast repeats the change, which gets a new stamp.
                    changes.forEach(each -> reconciler.add(this, each, -1, 0));
                    if (displaced(change.stamp)) {
                        // This member leaves its cluster: repeated, the change would be refused as if
                        // it had never been made.
                        throw new OutcomeUnknown(map(change) + "the change is in the log, but this member is leaving its cluster; " + settling(), null);
                    }
                    throw OrderGuard.movedMeanwhile(change.stamp.partition());
                }
            }
            return;
        }
        if (ticket.appended() > 0) {
            // Part of a batch is in the log, and Hazelcast will change nothing in memory.
            changes.forEach(change -> reconciler.add(this, change, -1, 0));
            if (failure instanceof RetryableHazelcastException) {
                // Hazelcast repeats the whole batch at the new owner.
                throw failure;
            }
            throw new OutcomeUnknown("map \"" + changes.get(0).map + "\": " + ticket.appended() + " of " + changes.size()
                    + " changes are in the log and the rest failed; " + settling() + ": " + failure.getMessage(), failure);
        }
        throw refused(changes, failure);
    }

    private RuntimeException refused(List<Change> changes, RuntimeException failure) {
        if (failure instanceof NotAppended || failure instanceof LogUnavailable) {
            for (Change change : changes) {
                if (change.key != null && reconciler.isAhead(change.map, change.key)) {
                    return new OutcomeUnknown(map(change) + "an earlier attempt of the change may be in the log; " + settling() + ": "
                            + failure.getMessage(), failure);
                }
            }
        }
        return failure;
    }

    /** How many changes of a partition have a caller that was not told the outcome yet. */
    int pending(int partition) {
        return pending.get(partition);
    }

    /**
     * Waits until the outcome of all changes of a partition is known, and the reconciler has the keys
     * that its next owner has to compare with the log. The partition is migrating, so no more come.
     *
     * @return false: it takes too long
     */
    boolean awaitOutcomes(int partition) {
        long until = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(MAX_PAUSE_MS);
        while (pending(partition) > 0) {
            if (System.nanoTime() - until > 0) {
                return false;
            }
            LockSupport.parkNanos(LOOK_NANOS);
        }
        return true;
    }

    /**
     * Appends the changes of a transaction in one message; the owners of their partitions gave them
     * their places. The agent writes a message in one frame, which is in the log whole or not at
     * all.
     *
     * @throws NotAppended    none of them happened
     * @throws OutcomeUnknown all may have happened, or none; the reconciler has their keys
     */
    void appendWhole(List<Change> changes) {
        PendingAppend ticket = new PendingAppend(changes, true);
        run(ticket);
        if (ticket.failure() != null) {
            throw ticket.failure();
        }
    }

    /** Whether this member was left out of a view since, or has joined another cluster. */
    private boolean displaced(PartitionStamp stamp) {
        return isLeftOut() || !stamp.member().equals(guard.member()) || !stamp.clusterId().equals(guard.clusterId());
    }

    /** Returns when a connection is greeted under the present cluster id. @throws LogUnavailable when there is none */
    SessionInfo connect() {
        PendingAppend ticket = new PendingAppend(List.of(), false);
        run(ticket);
        if (ticket.failure() != null) {
            throw ticket.failure();
        }
        return session;
    }

    /**
     * Returns when this member is greeted in a view without the lost members. Waits for the agent: never on a partition's thread.
     *
     * @throws LogUnavailable there is no agent, or this member itself was left out of a view
     */
    SessionInfo view(Set<UUID> lost) {
        long number;
        // A separate connection: a claim may take long, and appends of the present view may still count.
        try (AgentConnection asking = AgentConnection.open(settings, identity, "read")) {
            number = asking.view(guard.members(), lost, System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(settings.restoreTimeoutMs()));
            identity.view().learn(asking.session().clusterId(), asking.session().member(), number);
        } catch (IOException e) {
            if (isRefusal(e)) {
                refused.run();
            }
            throw unreachable(e);
        }
        SessionInfo now = connect();
        if (now.incarnation() < number) {
            throw unreachable(new IOException("it is in view " + now.incarnation() + ", this member's cluster in " + number));
        }
        return now;
    }

    /**
     * As {@link #view}, unless a view without them is known already. Whoever loads a map needs it: two
     * halves of a split network must not both load it and then both write.
     */
    void viewWithout(Set<UUID> lost) {
        UUID clusterId = guard.clusterId();
        UUID member = guard.member();
        if (lost.isEmpty() || identity.view().without(clusterId, member, lost)) {
            return;
        }
        Set<UUID> members = guard.members();
        for (UUID each : lost) {
            if (members.contains(each)) {
                throw unreachable(new IOException("member " + each + " is replaced as an owner and has not left the cluster yet"));
            }
        }
        view(lost);
        identity.view().learnWithout(clusterId, member, lost);
    }

    void close() {
        synchronized (lock) {
            closed = true;
        }
        // A leader in mid-message keeps its connection and drops it when it looks at the flag.
        boolean mine;
        synchronized (lock) {
            mine = !led;
            led |= mine;
        }
        if (mine) {
            sayGoodbye();
            disconnect();
            handOn(new ArrayList<>());
        }
    }

    /** Tells the agent that this member stops. No request is unanswered. */
    private void sayGoodbye() {
        if (connection == null) {
            return;
        }
        try {
            connection.start("bye", 0);
            connection.ask("bye", payload.clear(), System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(GOODBYE_MS));
        } catch (IOException | RuntimeException e) {
            logger.fine("imap-wal: no goodbye to " + agent(), e);
        }
    }

    private void run(PendingAppend ticket) {
        // An interrupt would close the channel under the feet of everybody in the message.
        boolean interrupted = Thread.interrupted();
        boolean lead;
        synchronized (lock) {
            queue.add(ticket);
            queuedBytes += ticket.queuedBytes();
            queuedChanges += ticket.changes.size();
            lead = !led;
            led = true;
        }
        try {
            if (!lead) {
                try {
                    sendIfWorthwhile();
                } catch (Throwable e) {  // the message says so to all who are in it, and this caller may be told to lead
                    logger.severe("imap-wal: sending changes failed", e);
                }
            }
            while (!lead && !ticket.leads() && !ticket.done()) {
                LockSupport.park(this);
                interrupted |= Thread.interrupted();
            }
            if (lead || ticket.leads()) {
                interrupted |= Thread.interrupted();
                lead(ticket);
            }
        } finally {
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    private void lead(PendingAppend own) {
        List<PendingAppend> finished = new ArrayList<>();
        boolean whole = false;
        try {
            while (!own.done()) {
                collect(oldest(), finished);
            }
            // The agent works on the next message while those of this one wake up.
            sendIfWorthwhile();
            whole = true;
        } finally {
            try {
                if (!whole) {
                    abandon(own, finished);
                }
            } finally {
                try {
                    handOn(finished);
                } finally {
                    for (PendingAppend ticket : finished) {
                        if (ticket != own) {
                            ticket.unpark();
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

    /** The message whose answer comes next; where there is none, what is queued becomes one. */
    private InFlightAppend oldest() {
        InFlightAppend message;
        synchronized (lock) {
            message = underWay.peek();
            if (message != null) {
                return message;
            }
            wire.lock();  // free, or about to be: who writes has a message under way until it is done with writing
            message = begin();
        }
        send(message, true);
        return message;
    }

    /**
     * With {@link #lock} held: a message of what is queued, to be sent by this thread, if that can be done without waiting and there is a point in it; or null.
     *
     * <p>The point of a second message is that the agent finds it when it is done with the first, and need not wait until we have heard of that. Sent too early it
     * holds few changes, and few changes share a sync: so not before it has as many as the first, and not in the first half of the time that the first usually
     * takes. Where the storage is slow, everybody has queued long before that, and all goes as with one message at a time.
     */
    private InFlightAppend beginIfWorthwhile() {
        InFlightAppend ahead = underWay.peek();
        if (queuedChanges == 0 || closed || underWay.size() > 1
                || queuedBytes + (ahead == null ? 0 : ahead.bytes) > QUICK_BYTES
                || (ahead != null && (queuedChanges < ahead.changes.size() || System.nanoTime() - begunNanos < usualNanos / 2))
                || !wire.tryLock()) {
            return null;
        }
        boolean sound = false;
        try {
            // Behind one that could not be sent nothing may go: it has the lower numbers.
            sound = connection != null && connection.current(identity) && logged.missing().isEmpty()
                    && (ahead == null || ahead.failure == null);
        } finally {
            if (!sound) {
                wire.unlock();
            }
        }
        return sound ? begin() : null;
    }

    /** With both locks held. {@link #send} lets the wire go. */
    private InFlightAppend begin() {
        InFlightAppend message = null;
        boolean whole = false;
        try {
            message = new InFlightAppend();
            if (underWay.isEmpty()) {
                begunNanos = System.nanoTime();
            }
            underWay.add(message);
            take(message);
            whole = true;
            return message;
        } finally {
            if (!whole) {
                if (message != null) {
                    spoil(message);
                }
                wire.unlock();
            }
        }
    }

    /** An Error while it was made: those in it are told when its turn comes. */
    private static void spoil(InFlightAppend message) {
        message.numbered = message.changes;
        message.failure = new IllegalStateException("the sending thread failed");
        message.posted = true;
    }

    /** Sends a message that was begun. {@code alone}: no answer is outstanding, so that a connection may be opened and schemas be logged for it. */
    private void send(InFlightAppend message, boolean alone) {
        boolean whole = false;
        try {
            number(message, alone);
            message.deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(settings.timeoutMs());
            if (!message.numbered.isEmpty()) {
                try {
                    if (alone) {
                        message.session = connection.session();
                        logSchemas(message.session, message.deadline);
                    }
                    sendOnce(message);
                } catch (IOException | RuntimeException e) {
                    message.failure = e;
                }
            }
            whole = true;
        } finally {
            if (!whole) {
                spoil(message);
            }
            message.posted = true;
            wire.unlock();
        }
    }

    /** An Error on the way (memory): nobody may wait for ever. */
    private void abandon(PendingAppend own, List<PendingAppend> finished) {
        IOException cause = new IOException("the sending thread failed");
        wire.lock();
        try {
            synchronized (lock) {
                if (queue.remove(own)) {
                    queuedBytes -= own.queuedBytes();
                    queuedChanges -= own.changes.size() - own.taken;
                }
                while (!underWay.isEmpty()) {
                    InFlightAppend message = underWay.poll();
                    message.numbered = message.changes;
                    fail(message, true, cause);
                    message.greetings.forEach(greeting -> greeting.finish(unreachable(cause)));
                    wake(message, finished);
                }
            }
            disconnect();
        } finally {
            wire.unlock();
        }
    }

    /** Returns when the oldest message under way has its outcome; adds whom to wake. */
    private void collect(InFlightAppend message, List<PendingAppend> finished) {
        awaitPosted(message);
        while (!message.over()) {
            settle(message);
        }
        synchronized (lock) {
            underWay.remove();
            long now = System.nanoTime();
            usualNanos += (now - begunNanos - usualNanos) / 8;
            begunNanos = now;
        }
        wake(message, finished);
    }

    private void awaitPosted(InFlightAppend message) {
        if (!message.posted) {
            wire.lock();
            wire.unlock();
        }
    }

    /** Takes from the queue what fits in one message; a ticket leaves the queue with its last change. */
    private void take(InFlightAppend message) {
        PendingAppend ticket;
        while ((ticket = queue.peek()) != null) {
            if (ticket.changes.isEmpty()) {
                message.greetings = message.greetings.isEmpty() ? new ArrayList<>() : message.greetings;
                message.greetings.add(ticket);
                queue.poll();
                continue;
            }
            if (ticket.whole && !message.changes.isEmpty()
                    && (message.changes.size() + ticket.changes.size() > MAX_MESSAGE_ENTRIES
                        || message.bytes + ticket.queuedBytes() > MAX_MESSAGE_BYTES)) {
                return;
            }
            while (ticket.taken < ticket.changes.size()) {
                Change change = ticket.changes.get(ticket.taken);
                if (!ticket.whole && !message.changes.isEmpty()
                        && (message.changes.size() == MAX_MESSAGE_ENTRIES || message.bytes + change.head.length > MAX_MESSAGE_BYTES)) {
                    return;
                }
                message.changes.add(change);
                ticket.taken++;
                queuedBytes -= change.head.length;
                queuedChanges--;
                message.bytes += change.head.length;
            }
            queue.poll();
        }
    }

    /** Gives a number to each change that may be sent, an outcome to the others and to greetings. */
    private void number(InFlightAppend message, boolean alone) {
        IOException failure = null;
        if (alone) {
            try {
                greet();
            } catch (IOException e) {
                failure = e;
            }
        }
        for (PendingAppend greeting : message.greetings) {
            greeting.finish(failure == null ? null : unreachable(failure));
            greeting.unpark();
        }
        List<Change> numbered = new ArrayList<>(message.changes.size());
        PendingAppend looked = null;
        boolean holds = false;
        for (Change change : message.changes) {
            if (failure == null && (change.pending != looked || !change.pending.whole)) {
                looked = change.pending;
                List<Change> together = looked.whole ? looked.changes : List.of(change);
                SessionInfo now = connection.session();
                holds = together.stream()
                        .allMatch(each -> guard.holds(each.stamp) && ours(each, now));
            }
            if (failure != null) {
                change.pending.fail(change, notAppended(map(change), failure));
            } else if (!holds) {
                change.pending.fail(change, OrderGuard.moved(change.stamp.partition()));
            } else {
                change.request = ++lastRequest;
                numbered.add(change);
                continue;
            }
            if (change.pending.done()) {
                change.pending.unpark();
            }
        }
        message.numbered = numbered;
    }

    private void sendOnce(InFlightAppend message) throws IOException {
        message.session = connection.session();
        message.before = connection.written();
        message.sending = true;
        encode(message.numbered, message.session);
        MsgpackWriter header = connection.start("append", 3);
        header.integer(message.session.session()).integer(message.numbered.get(0).request).integer(message.numbered.size());
        message.number = connection.number();
        try {
            connection.send(payload, message.deadline);
        } finally {
            if (payload.array().length > KEPT_BUFFER_BYTES) {
                payload = new MsgpackWriter(64 * 1024);
            }
        }
    }

    /** Waits for the answer; when none comes, does what the table above says. */
    private void settle(InFlightAppend message) {
        try {
            Exception failure = message.failure;
            if (failure instanceof IOException io) {
                throw io;
            } else if (failure != null) {
                throw (RuntimeException) failure;
            }
            connection.answer("ack", message.number, message.deadline);
            message.succeed();
        } catch (AgentError e) {
            wire.lock();
            try {
                if (isRefusal(e)) {
                    // Not appended, as there is a newer view. A request that was in doubt before is still in doubt.
                    message.sending = false;
                    again(e, System.nanoTime() < message.deadline);
                    return;
                } else if (e.code().equals("outcome-unknown")) {
                    // A newer view may be the reason; then the next welcome gives the outcome.
                    message.unknown = true;
                    again(e, true);
                    return;
                }
                // A request that was in doubt before and is refused now is still in doubt.
                fail(message, message.sent || (message.sending && !e.certain()), e);
                // The agent refuses what comes behind a refused append, until the next hello.
                // Superseded, by whom? What that one appended must not be taken for ours.
                again(new IOException("what was sent before it was refused: " + reason(e)), !e.code().equals("superseded"));
            } finally {
                wire.unlock();
            }
        } catch (IOException | RuntimeException e) {
            IOException cause = e instanceof IOException io ? io : new IOException(e);
            boolean retry = !(e instanceof RuntimeException || cause instanceof ProtocolException || cause instanceof SocketTimeoutException);
            wire.lock();
            try {
                lastFailure = cause;
                again(cause, retry && System.nanoTime() < message.deadline);
            } finally {
                wire.unlock();
            }
        }
    }

    /** With the wire held: leaves the connection, and settles what is under way by what the next welcome tells, if there is one; the rest is sent again. */
    private void again(IOException cause, boolean retry) {
        List<InFlightAppend> open = new ArrayList<>();
        synchronized (lock) {
            for (InFlightAppend message : underWay) {
                if (!message.over()) {
                    message.sent |= message.sending && (connection == null || connection.written() > message.before);
                    open.add(message);
                }
            }
        }
        disconnect();
        for (InFlightAppend message : open) {
            if (message.broken()) {
                fail(message, message.sent, new IOException(message.failure));
            }
        }
        open.removeIf(InFlightAppend::over);
        if (open.isEmpty()) {
            return;
        }
        long heard = welcomes;
        IOException why = cause;
        if (retry) {
            try {
                greet();
            } catch (IOException e) {
                why = e;
            }
        }
        if (connection == null) {
            for (InFlightAppend message : open) {
                fail(message, message.sent, message.unknown ? cause : why);
            }
            return;
        }
        for (InFlightAppend message : open) {
            look(message, connection.session(), heard, cause);
        }
        open.removeIf(InFlightAppend::over);
        if (open.isEmpty()) {
            return;
        }
        Exception failure = null;
        try {
            logSchemas(connection.session(), open.get(0).deadline);
        } catch (IOException | RuntimeException e) {
            failure = e;
        }
        for (InFlightAppend message : open) {
            message.failure = failure;
            if (failure == null) {
                try {
                    sendOnce(message);
                } catch (IOException | RuntimeException e) {
                    failure = message.failure = e;
                }
            }
        }
    }

    /** Completes the requests that a new welcome decides. The rest of the message is certainly not in the log, and may be sent again. */
    private void look(InFlightAppend message, SessionInfo now, long heard, IOException cause) {
        boolean anew = message.session.session() != now.session();
        long counted = now.counted(message.session);
        if (message.sent && (counted < 0 || (message.unknown && !anew))) {
            // Another session, whose agent does not know ours; or the log failed, and may show the request later.
            doubt(message, heard, cause);
            return;
        }
        List<Change> left = new ArrayList<>(message.numbered.size());
        for (Change change : message.numbered) {
            if (message.sent && change.request <= counted) {
                change.pending.succeed(change);
            } else if (!ours(change, now)) {
                change.pending.fail(change, notAppended(map(change), cause));
            } else if (anew && !guard.holds(change.stamp)) {
                // In a newer view it would be newer than the changes of the partition's next owner.
                change.pending.fail(change, OrderGuard.moved(change.stamp.partition()));
            } else {
                left.add(change);
            }
        }
        // The numbers of a message have no gaps.
        for (int i = 1; i < left.size(); i++) {
            left.get(i).request = left.get(0).request + i;
        }
        message.numbered = left;
        message.sending = message.sent = message.unknown = false;
    }

    private static boolean ours(Change change, SessionInfo now) {
        PartitionStamp stamp = change.stamp;
        return stamp.clusterId().equals(now.clusterId()) && stamp.member().equals(now.member())
                && (stamp.incarnation() == 0 || stamp.incarnation() == now.incarnation());
    }

    private void encode(List<Change> message, SessionInfo session) {
        payload.clear();
        for (Change change : message) {
            change.write(payload, session.incarnation(), session.session());
        }
    }

    private void logSchemas(SessionInfo session, long deadline) throws IOException {
        List<Schema> missing = logged.missing();
        if (missing.isEmpty()) {
            return;
        }
        int refused = 0;
        try {
            logSchemas(session, missing, deadline);
        } catch (AgentError e) {
            if (!e.code().equals(AgentError.SCHEMA_REFUSED)) {
                throw e;
            }
            // The agent refuses all of them because of one. Sent one by one, the others are logged.
            for (Schema schema : missing) {
                refused += logSchema(session, schema, deadline) ? 0 : 1;
            }
        }
        logger.info("imap-wal: " + (missing.size() - refused) + " Compact schema(s) logged by " + agent());
    }

    private boolean logSchema(SessionInfo session, Schema schema, long deadline) throws IOException {
        try {
            logSchemas(session, List.of(schema), deadline);
            return true;
        } catch (AgentError e) {
            if (!e.code().equals(AgentError.SCHEMA_REFUSED)) {
                throw e;
            }
            logged.refuse(schema);
            logger.severe("imap-wal: Compact schema " + schema.getSchemaId() + " of type \"" + schema.getTypeName() + "\" is not in the log: "
                    + e.getMessage() + "; values that need it cannot be read after a restart of the cluster");
            return false;
        }
    }

    private void logSchemas(SessionInfo session, List<Schema> some, long deadline) throws IOException {
        payload.clear();
        some.forEach(schema -> SchemaLog.write(payload, schema));
        connection.start("metadata", 2).integer(session.session()).integer(some.size());
        connection.ask("ack", payload, deadline);
        logged.add(some);
    }

    /** Sees to a connection that was greeted under the present cluster id. */
    private void greet() throws IOException {
        synchronized (lock) {
            if (closed) {
                throw new IOException("the member is shutting down");
            }
        }
        boolean sure = !recheck;
        recheck = false;
        if (sure && !isLeftOut() && connection != null && connection.current(identity)) {
            return;
        }
        disconnect();
        boolean anew = learned;
        learned = false;
        if (!anew && lastFailure != null && System.nanoTime() - pausedUntilNanos < 0) {
            throw lastFailure;
        }
        long from = System.nanoTime();
        try {
            connection = AgentConnection.open(settings, identity, "write");
            if (!connection.current(identity)) {
                long view = connection.session().incarnation();
                disconnect();
                throw new IOException("it is in view " + view + ", and there is a newer one; it may not see that yet");
            }
        } catch (IOException e) {
            if (isRefusal(e)) {
                refused.run();
            }
            // A connect that hangs holds up callers: at most half of their time.
            pauseMs = Math.min(MAX_PAUSE_MS, pauseMs * 2);
            long spent = System.nanoTime() - from;
            pausedUntilNanos = System.nanoTime() + Math.max(TimeUnit.MILLISECONDS.toNanos(pauseMs), spent);
            if (lastFailure == null || !String.valueOf(lastFailure.getMessage()).equals(e.getMessage())) {
                logger.warning("imap-wal: no " + agent() + ", changes are refused until it is there: " + reason(e));
            }
            lastFailure = e;
            throw e;
        }
        SessionInfo now = connection.session();
        SessionInfo former = session;
        if (former == null || former.session() != now.session() || !former.node().equals(now.node())) {
            logged.clear();
        }
        lastFailure = null;
        pauseMs = MIN_PAUSE_MS;
        lastRequest = Math.max(lastRequest, now.lastRequest());
        session = now;
        welcomes++;
        logger.info("imap-wal: " + agent() + " is there: session " + now.session() + ", incarnation " + now.incarnation());
    }

    private void disconnect() {
        if (connection != null) {
            connection.close();
            connection = null;
        }
    }

    private void fail(InFlightAppend message, boolean sent, IOException cause) {
        if (sent) {
            doubt(message, welcomes, cause);
            // A new welcome will say whether the agent has appended it.
            disconnect();
            return;
        }
        for (Change change : message.numbered) {
            change.pending.fail(change, notAppended(map(change), cause));
        }
        message.numbered = List.of();
    }

    /** @param heard how many welcomes there were when it was sent */
    private void doubt(InFlightAppend message, long heard, IOException cause) {
        for (Change change : message.numbered) {
            if (!change.over) {
                reconciler.add(this, change, heard, message.session == null ? 0 : message.session.session());
                change.pending.fail(change, new OutcomeUnknown(map(change) + "no acknowledgement by " + agent() + ": " + reason(cause)
                        + ". The change may be in the log; " + settling(), cause));
            }
        }
        message.numbered = List.of();
    }

    private static boolean isRefusal(IOException e) {
        return e instanceof AgentError error && error.code().equals(AgentError.VOID);
    }

    private NotAppended notAppended(String map, IOException cause) {
        return new NotAppended(map + "not appended by " + agent() + ": " + reason(cause)
                + ". Nothing was changed; the operation may be repeated as it is", cause);
    }

    private LogUnavailable unreachable(IOException cause) {
        return new LogUnavailable(cause instanceof AgentError || cause instanceof ProtocolException
                ? agent() + " refuses: " + reason(cause)
                : agent() + " cannot be reached: " + reason(cause) + " (is \"imap-wal agent\" running there?)", cause);
    }

    private static String map(Change change) {
        return "map \"" + change.map + "\": ";
    }

    private static String settling() {
        return "memory keeps the former value until the agent answers and the plug-in settles the key from the log";
    }

    static String reason(Throwable cause) {
        String text = cause.getMessage();
        return text == null || text.isBlank() ? cause.getClass().getSimpleName() : text;
    }

    private static void wake(InFlightAppend message, List<PendingAppend> finished) {
        finished.addAll(message.greetings);
        PendingAppend last = null;
        for (Change change : message.changes) {
            if (change.pending != last && change.pending.done()) {
                last = change.pending;
                finished.add(last);
            }
        }
    }

    /** Makes one of those who wait the leader: of the oldest message under way, or else of the queue. */
    private void handOn(List<PendingAppend> finished) {
        PendingAppend next;
        while (true) {
            InFlightAppend message;
            synchronized (lock) {
                message = underWay.peek();
                if (message == null || (message.posted && !message.over())) {
                    next = message == null ? queue.peek() : message.numbered.stream().filter(change -> !change.over).findFirst().orElseThrow().pending;
                    led = next != null;
                    if (next != null) {
                        next.lead();
                    } else if (closed) {
                        disconnect();
                    }
                    break;
                }
            }
            awaitPosted(message);
            if (message.over()) {
                collect(message, finished);
            }
        }
        if (next != null) {
            next.unpark();
        }
    }
}
