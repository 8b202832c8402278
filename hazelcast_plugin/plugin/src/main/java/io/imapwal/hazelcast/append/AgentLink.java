package io.imapwal.hazelcast.append;

import com.hazelcast.internal.serialization.Data;
import com.hazelcast.logging.ILogger;
import com.hazelcast.spi.exception.RetryableHazelcastException;
import io.imapwal.hazelcast.LogUnavailable;
import io.imapwal.hazelcast.NotAppended;
import io.imapwal.hazelcast.OutcomeUnknown;
import io.imapwal.hazelcast.engine.CheckLoop;
import io.imapwal.hazelcast.engine.CurrentCluster;
import io.imapwal.hazelcast.engine.JmxBeans;
import io.imapwal.hazelcast.engine.ThisMember;
import io.imapwal.wire.AgentConnection;
import io.imapwal.wire.AgentError;
import io.imapwal.wire.AgentSettings;
import io.imapwal.wire.Candidates;
import io.imapwal.wire.SessionInfo;

import java.io.IOException;
import java.util.List;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.concurrent.locks.LockSupport;
import java.util.concurrent.locks.ReentrantLock;

/**
 * Sends the changes of a member to its agent. All of its maps share it.
 *
 * <pre>
 * AppendQueue      callers whose changes are not in an append yet
 * InFlightWindow   the appends without an outcome, and the caller that leads
 * AgentWriter      sends an append, and handles a missing answer
 * WriteConnection  the connection: hello, schemas, pauses after a failure
 * Outcomes         the results for callers
 * </pre>
 */
public final class AgentLink {
    private static final long MAX_WAIT_MS = 1000;
    private static final long LOOK_NANOS = 200_000;
    private static final long COPIES_PAUSE_MS = 500;

    private final Candidates agents;
    private final AgentSettings settings;
    private final AgentConnection.Identity identity;
    private final CurrentCluster cluster;
    private final ThisMember member;
    private final Runnable refused;
    private final Outcomes outcomes;
    private final AppendConnection connection;
    private final InFlightWindow window;
    /** Makes a connection to agents that have returned, without a change that needs it. */
    private final CheckLoop copying;
    /** For each partition, how many changes have a caller that does not have the outcome yet. */
    private final AtomicIntegerArray pending;
    private final AppendCounts counts = new AppendCounts();

    /** The keys for which the log may be newer than memory, of all links. */
    public interface Doubts {
        /** As {@link Outcomes.Doubts#add}, of a change that this link has sent. */
        void add(AgentLink link, Change change, long welcomes, long session);

        /** Whether the log has a change of the key that memory lacks. */
        boolean isAhead(String map, Data key);
    }

    /** @param refused is called when the agent refuses this member because of a newer view */
    public AgentLink(ThisMember member, Candidates agents, OrderGuard guard, SchemaLog schemas,
              Doubts reconciler, Repeats repeats, Runnable refused) {
        this.agents = agents;
        this.settings = agents.own().settings();
        this.identity = agents.own().identity();
        this.cluster = member.cluster();
        this.member = member;
        this.refused = refused;
        this.pending = new AtomicIntegerArray(identity.partitionCount());
        ILogger logger = member.logger();
        ReentrantLock wire = new ReentrantLock();
        outcomes = new Outcomes(doubts(reconciler), repeats, guard::isValid, this::agent);
        List<WriteConnection> each = agents.all().stream().map(one -> new WriteConnection(
                one.settings(), one.identity(), schemas.new Logged(),
                () -> agent(one.settings()), refused, logger)).toList();
        copying = new CheckLoop("copies", COPIES_PAUSE_MS, logger);
        connection = settings.copies().shared()
                ? new Ensemble(settings.copies(), agents, each, copying::request, logger)
                : each.get(0);
        AgentWriter writer = new AgentWriter(connection, outcomes, wire, System::nanoTime,
                settings.timeoutMs());
        window = new InFlightWindow(writer, wire, System::nanoTime, logger);
        copying.of(this::copyAgain);
    }

    private Outcomes.Doubts doubts(Doubts reconciler) {
        return new Outcomes.Doubts() {
            @Override
            public void add(Change change, long welcomes, long session) {
                reconciler.add(AgentLink.this, change, welcomes, session);
            }

            @Override
            public boolean isAhead(String map, Data key) {
                return reconciler.isAhead(map, key);
            }
        };
    }

    /** The newest session, or null before the first welcome. */
    public SessionInfo session() {
        return connection.newest();
    }

    /** The number of connections that were greeted. A key in doubt waits for another one. */
    public long welcomes() {
        return connection.welcomes();
    }

    /** The newest view of the log that this member's cluster is known to be in; 0: none. */
    public long knownView() {
        return identity.view().of(cluster.clusterId(), cluster.member());
    }

    /** @param view the newest view that another member of the cluster knows; 0: none */
    public void learn(long view) {
        UUID clusterId = cluster.clusterId();
        if (clusterId != null && view > knownView()) {
            identity.view().learn(clusterId, cluster.member(), view);
            connection.learned();
        }
    }

    /** The next use of a connection says hello again, because a view may leave this member out. */
    public void recheck() {
        connection.recheck();
    }

    /** Makes the maps of this link unavailable, until this member has joined a cluster again. */
    public void leaveOut(UUID out, String why) {
        identity.view().bar(out, why);
    }

    /** A newer view of the log may have left this member out. Returns at once. */
    public void suspect() {
        refused.run();
    }

    public boolean isLeftOut() {
        return identity.view().barred(cluster.member()) != null;
    }

    public AgentSettings settings() {
        return settings;
    }

    /** The name of the agent, for messages. */
    public String agent() {
        SessionInfo known = session();
        return "agent " + settings.agent()
                + (known == null ? "" : " (node " + known.node() + ")") + " of member "
                + member.name();
    }

    private String agent(AgentSettings one) {
        return one == settings ? agent() : "agent " + one.agent() + ", for copies, of member "
                + member.name();
    }

    /** As {@link Candidates#readNanos}. */
    public long readNanos() {
        return agents.readNanos();
    }

    /** As {@link Candidates#claim}. */
    public AgentConnection.Claim claim() throws IOException {
        return agents.claim();
    }

    /** @throws NotAppended the agent would refuse the message with this key and value */
    public void requireSize(String map, byte[] key, byte[] value) {
        SessionInfo session = session();
        if (value != null && session != null && session.maxValueBytes() > 0 && key.length
                + (long) value.length > session.maxValueBytes()) {
            throw new NotAppended("map \"" + map + "\": a key of " + key.length + " and a value of "
                    + value.length + " bytes are more than the " + session.maxValueBytes()
                    + " that " + agent() + " accepts. Nothing was changed", null);
        }
    }

    /**
     * Returns when all changes are acknowledged.
     *
     * @throws NotAppended    none of them happened
     * @throws OutcomeUnknown some may have happened; the reconciler has their keys
     * @throws RetryableHazelcastException a partition got another owner while its change was queued
     */
    public void append(List<Change> changes) {
        if (changes.isEmpty()) {
            return;
        }
        // Counted before they are queued: if a partition has begun to migrate, the queue refuses
        // them.
        changes.forEach(change -> pending.incrementAndGet(change.stamp.partition()));
        try {
            PendingAppend append = new PendingAppend(changes, false);
            window.run(append);
            outcomes.conclude(append, this::isDisplaced);
            counts.appended(changes.size());
        } catch (RuntimeException e) {
            counts.failed(changes.size(), e);
            throw e;
        } finally {
            changes.forEach(change -> pending.decrementAndGet(change.stamp.partition()));
        }
    }

    /** Whether this member was left out of a view since then, or has joined another cluster. */
    private boolean isDisplaced(PartitionStamp stamp) {
        return isLeftOut() || !stamp.member().equals(cluster.member())
                || !stamp.clusterId().equals(cluster.clusterId());
    }

    /** How many changes of a partition have a caller that does not have the outcome yet. */
    public int pending(int partition) {
        return pending.get(partition);
    }

    /**
     * Waits until the outcome of all changes of a partition is known, and the reconciler has the
     * keys that its next owner has to compare with the log. The partition is migrating, so there
     * are no new changes.
     *
     * @return false: it takes too long
     */
    public boolean awaitOutcomes(int partition) {
        long until = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(MAX_WAIT_MS);
        while (pending(partition) > 0) {
            if (System.nanoTime() - until > 0) {
                return false;
            }
            LockSupport.parkNanos(LOOK_NANOS);
        }
        return true;
    }

    /**
     * Appends the changes of a transaction in one message. The owners of their partitions gave them
     * their places. The agent writes a message in one frame, and the log has all of the frame or
     * nothing.
     *
     * @throws NotAppended    none of them happened
     * @throws OutcomeUnknown all may have happened, or none; the reconciler has their keys
     */
    public void appendWhole(List<Change> changes) {
        try {
            run(new PendingAppend(changes, true));
            counts.appended(changes.size());
        } catch (RuntimeException e) {
            counts.failed(changes.size(), e);
            throw e;
        }
    }

    /** What JMX shows of this link. */
    public JmxBeans.Agent bean() {
        return new LinkBean();
    }

    private final class LinkBean implements JmxBeans.Agent {
        @Override
        public String getNode() {
            SessionInfo known = session();
            return known == null ? "" : known.node();
        }

        @Override
        public long getIncarnation() {
            SessionInfo known = session();
            return known == null ? 0 : known.incarnation();
        }

        @Override
        public long getConnections() {
            return welcomes();
        }

        @Override
        public boolean isConnected() {
            return session() != null && connection.failure() == null;
        }

        @Override
        public String getFailure() {
            IOException failure = connection.failure();
            return failure == null ? "" : AgentError.reason(failure);
        }

        @Override
        public boolean isLeftOut() {
            return AgentLink.this.isLeftOut();
        }

        @Override
        public long getAppended() {
            return counts.appended();
        }

        @Override
        public long getRefused() {
            return counts.refused();
        }

        @Override
        public long getUnknown() {
            return counts.unknown();
        }

        @Override
        public int getUsableAgents() {
            return connection.usable();
        }

        @Override
        public long getUnderCopied() {
            return connection.counts().underCopied();
        }

        @Override
        public long getCopiedAgain() {
            return connection.counts().copiedAgain();
        }

        @Override
        public long getWaitingForCopies() {
            return connection.counts().waiting();
        }

        @Override
        public int getWaiting() {
            int waiting = 0;
            for (int partition = 0; partition < pending.length(); partition++) {
                waiting += pending.get(partition);
            }
            return waiting;
        }
    }

    /**
     * Returns when a connection is greeted under the present cluster id.
     *
     * @throws LogUnavailable there is no connection
     */
    public SessionInfo connect() {
        run(new PendingAppend(List.of(), false));
        return session();
    }

    private void run(PendingAppend append) {
        window.run(append);
        if (append.failure() != null) {
            throw append.failure();
        }
    }

    /**
     * Returns when this member is greeted in a view without the lost members. Waits for the agent:
     * do not call it on a partition's thread.
     *
     * @throws LogUnavailable there is no agent, or this member itself was left out of a view, or is
     *                        about to leave its cluster
     */
    public SessionInfo view(Set<UUID> lost) {
        long number;
        long until = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(settings.restoreTimeoutMs());
        // A separate connection: a claim may take long, and appends of the present view may still
        // count.
        try (AgentConnection asking = agents.open("read", true).connection()) {
            SessionInfo asked = asking.session();
            number = asking.view(member.fellows(asked.membership()), lost, until);
            identity.view().learn(asked.clusterId(), asked.member(), number);
        } catch (IOException e) {
            if (AgentError.isVoid(e)) {
                refused.run();
            }
            throw outcomes.unreachable(e);
        }
        SessionInfo now = connect();
        if (now.incarnation() < number) {
            throw outcomes.unreachable(new IOException("it is in view " + now.incarnation()
                    + ", this member's cluster in " + number));
        }
        return now;
    }

    /**
     * As {@link #view}, unless a view without them is known already. A member that loads a map
     * needs it: two halves of a split network must not both load it and then both write.
     */
    public void viewWithout(Set<UUID> lost) {
        UUID clusterId = cluster.clusterId();
        UUID self = cluster.member();
        if (lost.isEmpty() || identity.view().without(clusterId, self, lost)) {
            return;
        }
        Set<UUID> members = cluster.members();
        for (UUID each : lost) {
            if (members.contains(each)) {
                throw outcomes.unreachable(new IOException("member " + each
                        + " is replaced as an owner and has not left the cluster yet"));
            }
        }
        view(lost);
        identity.view().learnWithout(clusterId, self, lost);
    }

    /** Returns whether to look again later. */
    private boolean copyAgain() {
        if (connection.isIncomplete()) {
            try {
                connect();
            } catch (LogUnavailable e) {
                // Too few agents answer. The connections have logged the reason.
            }
        }
        return connection.isIncomplete();
    }

    public void close() {
        copying.close();
        connection.stop();
        window.close();
    }
}
