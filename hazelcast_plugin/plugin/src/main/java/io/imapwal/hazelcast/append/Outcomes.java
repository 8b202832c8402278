package io.imapwal.hazelcast.append;

import com.hazelcast.internal.serialization.Data;
import com.hazelcast.spi.exception.RetryableHazelcastException;
import io.imapwal.hazelcast.LogUnavailable;
import io.imapwal.hazelcast.NotAppended;
import io.imapwal.hazelcast.OutcomeUnknown;
import io.imapwal.wire.AgentError;
import io.imapwal.wire.ProtocolException;
import io.imapwal.wire.SessionInfo;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Predicate;
import java.util.function.Supplier;

/**
 * Decides the results of the callers of appends: success for a change that is in the log,
 * {@link NotAppended} for one that certainly is not, {@link OutcomeUnknown} for one that may be.
 * The {@code Reconciler} gets the keys of the last kind.
 */
final class Outcomes {
    /** The keys for which the log may be newer than memory. */
    interface Doubts {
        /**
         * @param welcomes how many welcomes there had been when the change was sent; -1: the log
         *         has it
         * @param session  number of the session that the change was sent in
         */
        void add(Change change, long welcomes, long session);

        /** Whether the log has a change of the key that memory lacks. */
        boolean isAhead(String map, Data key);
    }

    private static final String SETTLING =
            "memory keeps the former value until the agent answers and the plug-in settles the key"
            + " from the log";
    /** A newer cluster or view has the log: this member does not settle the key. */
    private static final String LOST =
            "this member may not write the log any more; when it has joined again or was restarted,"
            + " read the key: the log decides";

    private final Doubts doubts;
    private final Repeats repeats;
    private final Predicate<PartitionStamp> valid;
    private final Supplier<String> agent;

    /**
     * @param valid whether this member has owned the partition since the stamp was made
     * @param agent name of the agent, for messages
     */
    Outcomes(Doubts doubts, Repeats repeats, Predicate<PartitionStamp> valid,
             Supplier<String> agent) {
        this.doubts = doubts;
        this.repeats = repeats;
        this.valid = valid;
        this.agent = agent;
    }

    /**
     * Ends an append without an answer. Its changes get {@link OutcomeUnknown} if it may be in the
     * log, else {@link NotAppended}.
     *
     * @param welcomes how many welcomes there had been when it was sent
     */
    void fail(InFlightAppend append, boolean mayBeInLog, long welcomes, IOException cause) {
        if (mayBeInLog) {
            doubt(append, welcomes, cause);
            return;
        }
        for (Change change : append.numbered()) {
            change.pending.fail(change, notAppended(change, cause));
        }
        append.end();
    }

    private void doubt(InFlightAppend append, long welcomes, IOException cause) {
        for (Change change : append.numbered()) {
            if (!change.over) {
                doubt(change, append, welcomes, cause);
            }
        }
        append.end();
    }

    private void doubt(Change change, InFlightAppend append, long welcomes, IOException cause) {
        doubts.add(change, welcomes, append.sessionNumber());
        change.pending.fail(change, new OutcomeUnknown(map(change) + "no acknowledgement by "
                + agent.get() + ": " + AgentError.reason(cause) + ". The change may be in the log; "
                + (AgentError.isVoid(cause) ? LOST : SETTLING), cause));
    }

    /**
     * Ends the changes of an append that a new welcome decides. The rest is certainly not in the
     * log, and may be sent again.
     *
     * @param welcomes how many welcomes there had been when the append was sent
     * @param cause    why it has no answer
     */
    void decide(InFlightAppend append, SessionInfo now, long welcomes, IOException cause) {
        boolean sent = append.mayBeInLog();
        boolean newSession = append.sessionNumber() != now.session();
        long counted = sent ? now.counted(append.session()) : -1;
        boolean unknown = append.state() == InFlightAppend.State.UNKNOWN;
        if (sent && now.shared()) {
            decideShared(append, now, welcomes, cause);
            return;
        }
        if (sent && (counted < 0 || unknown && !newSession)) {
            // Either this agent does not know the session, or the log failed and may still get the
            // request.
            doubt(append, welcomes, cause);
            return;
        }
        List<Change> rest = new ArrayList<>(append.numbered().size());
        for (Change change : append.numbered()) {
            if (sent && change.request <= counted) {
                change.pending.succeed(change);
            } else if (!belongs(change, now)) {
                change.pending.fail(change, notAppended(change, cause));
            } else if (newSession && !valid.test(change.stamp)) {
                // In a newer view it would be newer than the changes of the partition's next owner.
                change.pending.fail(change, OrderGuard.moved(change.stamp.partition()));
            } else {
                rest.add(change);
            }
        }
        append.rest(rest);
    }

    /**
     * As {@link #decide}, if several agents were sent the append. Those that are asked now may not
     * be those that have it. So a change that too few of them have is sent again, even if it is in
     * a log already: in the same session the logs have it once, and in a later session it is the
     * same change with a later order. A change that cannot be sent again is in doubt.
     */
    private void decideShared(InFlightAppend append, SessionInfo now, long welcomes,
                              IOException cause) {
        boolean sameSession = append.sessionNumber() == now.session();
        long counted = now.counted(append.session());
        List<Change> rest = new ArrayList<>(append.numbered().size());
        for (Change change : append.numbered()) {
            if (change.request <= counted) {
                change.pending.succeed(change);
            } else if (sameSession || belongs(change, now) && valid.test(change.stamp)) {
                rest.add(change);
            } else if (!change.over) {
                doubt(change, append, welcomes, cause);
            }
        }
        if (rest.isEmpty()) {
            append.end();
        } else {
            append.expose(rest, sameSession);
        }
    }

    /** Whether the changes may be sent in the session now: all of them or none. */
    boolean maySend(List<Change> together, SessionInfo now) {
        return together.stream().allMatch(each -> valid.test(each.stamp) && belongs(each, now));
    }

    /** Whether the change was made by the member, and in the view, of the session. */
    private static boolean belongs(Change change, SessionInfo now) {
        PartitionStamp stamp = change.stamp;
        return stamp.clusterId().equals(now.clusterId()) && stamp.member().equals(now.member())
                && (stamp.incarnation() == 0 || stamp.incarnation() == now.incarnation());
    }

    /**
     * Returns if all changes of a caller are in the log, and Hazelcast may change memory.
     *
     * @param displaced whether this member has left the cluster of the stamp, or was left out
     * @throws NotAppended    none of the changes happened
     * @throws OutcomeUnknown some may have happened
     * @throws RetryableHazelcastException a partition got another owner; Hazelcast repeats the
     *         changes
     */
    void conclude(PendingAppend pending, Predicate<PartitionStamp> displaced) {
        List<Change> changes = pending.changes;
        RuntimeException failure = pending.failure();
        if (failure == null) {
            for (Change change : changes) {
                if (!valid.test(change.stamp)) {
                    throw movedMeanwhile(changes, change, displaced);
                }
            }
        } else if (pending.appended() > 0) {
            throw partial(pending);
        } else {
            throw refused(pending, failure);
        }
    }

    /**
     * The partition migrated during the append, and may have returned. Hazelcast would accept the
     * change. But in the log it has the stamp of a former owner, and a rewrite may void it. So
     * Hazelcast repeats the change, which gets a new stamp.
     */
    private RuntimeException movedMeanwhile(List<Change> changes, Change moved,
                                            Predicate<PartitionStamp> displaced) {
        inLog(changes);
        if (displaced.test(moved.stamp)) {
            // This member leaves its cluster. A repeated change would be refused as if it had never
            // been made.
            return new OutcomeUnknown(map(moved) + "the change is in the log, but this member is"
                    + " leaving its cluster; " + SETTLING, null);
        }
        return OrderGuard.movedMeanwhile(moved.stamp.partition());
    }

    /** A part of a batch is in the log, and Hazelcast will change nothing in memory. */
    private RuntimeException partial(PendingAppend pending) {
        List<Change> changes = pending.changes;
        RuntimeException failure = pending.failure();
        inLog(changes);
        if (failure instanceof RetryableHazelcastException) {
            // Hazelcast repeats the whole batch at the new owner.
            return failure;
        }
        return new OutcomeUnknown("map \"" + changes.get(0).map + "\": " + pending.appended()
                + " of " + changes.size() + " changes are in the log and the rest failed; "
                + SETTLING + ": " + failure.getMessage(), failure);
    }

    private RuntimeException refused(PendingAppend pending, RuntimeException failure) {
        List<Change> changes = pending.changes;
        if (failure instanceof NotAppended || failure instanceof LogUnavailable) {
            for (Change change : changes) {
                if (change.key != null && doubts.isAhead(change.map, change.key)) {
                    return new OutcomeUnknown(map(change) + "an earlier attempt of the change may"
                            + " be in the log; " + SETTLING + ": " + failure.getMessage(), failure);
                }
            }
        }
        // Hazelcast does not repeat the commit of a transaction.
        return changes.isEmpty() || pending.whole ? failure
                : repeats.outcome(changes.get(0).map, failure);
    }

    private void inLog(List<Change> changes) {
        changes.forEach(each -> doubts.add(each, -1, 0));
    }

    NotAppended notAppended(Change change, IOException cause) {
        return new NotAppended(map(change) + "not appended by " + agent.get() + ": "
                + AgentError.reason(cause)
                        + ". Nothing was changed; the operation may be repeated as it is", cause);
    }

    LogUnavailable unreachable(IOException cause) {
        return new LogUnavailable(cause instanceof AgentError || cause instanceof ProtocolException
                ? agent.get() + " refuses: " + AgentError.reason(cause)
                : agent.get() + " cannot be reached: " + AgentError.reason(cause)
                    + " (is \"imap-wal agent\" running there?)", cause);
    }

    private static String map(Change change) {
        return "map \"" + change.map + "\": ";
    }
}
