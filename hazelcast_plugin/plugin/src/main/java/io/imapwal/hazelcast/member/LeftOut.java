package io.imapwal.hazelcast.member;

import com.hazelcast.cluster.Address;
import com.hazelcast.cluster.Member;
import com.hazelcast.cluster.MembershipEvent;
import com.hazelcast.cluster.MembershipListener;
import com.hazelcast.instance.EndpointQualifier;
import com.hazelcast.internal.cluster.impl.ClusterServiceImpl;
import com.hazelcast.internal.cluster.impl.operations.MergeClustersOp;
import com.hazelcast.internal.server.ServerConnectionManager;
import com.hazelcast.logging.ILogger;
import com.hazelcast.spi.impl.operationservice.Operation;
import io.imapwal.hazelcast.LogUnavailable;
import io.imapwal.hazelcast.append.AgentLink;
import io.imapwal.hazelcast.engine.CheckLoop;
import io.imapwal.hazelcast.engine.ThisMember;
import io.imapwal.hazelcast.settle.MapState;
import io.imapwal.hazelcast.settle.MemberMaps;
import io.imapwal.wire.AgentConnection;
import io.imapwal.wire.AgentError;

import java.io.IOException;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/**
 * Handles a member that is not in the log's newest view: the other part of a split network claimed
 * the view, or this member was frozen while the others continued without it.
 *
 * <pre>
 * refused ──▶ do others know a newer view? ──yes──▶ name it in the next hello, and write
 *                │ no
 *                ▼
 *             does the newest claim leave this member out? ──no──▶ another cluster has the log:
 *                │                                                 nothing is done here
 *                │ yes
 *                ▼
 *             drop the maps of that log, because they may differ from it: LogUnavailable
 *                │
 *                ▼
 *             the oldest member is in the view:        this member alone joins it again
 *             otherwise the oldest member acts for all, when it can:
 *               a member that was lost can be reached: all merge into its cluster
 *               one of those has joined instead:       all form a new cluster
 *               no agent has contact with a member of the view:   all form a new cluster
 * </pre>
 *
 * In both cases members get new UUIDs and have no entries, as after a restart. Hazelcast's own
 * merge may happen first, also in the other direction. Then the members of the newest view have
 * joined a cluster that is left out, which is the second case.
 */
public final class LeftOut {
    private static final long PAUSE_MS = 300;
    private static final long CONNECT_MS = 500;
    private static final long WAIT_S = 5;
    private static final int LOST_MAX = 100;
    /** The number of consecutive checks with the same result before this class acts. */
    private static final int LOOKS = 3;
    /**
     * The same number, before a new cluster is formed because the view's members are silent. A
     * wrong result is safe: if they are not silent, the new cluster does not get the log.
     */
    private static final int SILENT_LOOKS = 2;

    private final MemberMaps maps;
    private final ThisMember self;
    private final LocalMaps localMaps;
    private final Set<Address> lost = new LinkedHashSet<>();
    private final CheckLoop checks;
    private UUID dropped;
    /** The maps that were dropped since this member has its UUID. */
    private final Set<String> droppedMaps = new HashSet<>();
    /** Checks in a row in which the oldest member was in the view. */
    private int alone;
    /** Checks in a row in which no member of the view was alive. */
    private int silent;

    /** @param checks see {@link #checks} */
    LeftOut(MemberMaps maps, LocalMaps localMaps, CheckLoop checks) {
        this.maps = maps;
        this.self = maps.member();
        this.localMaps = localMaps;
        this.checks = checks.of(this::look);
    }

    /** Links to agents request these checks. */
    static CheckLoop checks(ILogger logger) {
        return new CheckLoop("left-out", PAUSE_MS, logger);
    }

    /** Records the lost members, and checks again when one of them joins. */
    public MembershipListener members() {
        return new MembershipListener() {
            @Override
            public void memberAdded(MembershipEvent event) {
                boolean back;
                synchronized (LeftOut.this) {
                    back = lost.contains(event.getMember().getAddress());
                }
                if (back) {
                    suspect();
                }
            }

            @Override
            public void memberRemoved(MembershipEvent event) {
                synchronized (LeftOut.this) {
                    if (lost.size() < LOST_MAX) {
                        lost.add(event.getMember().getAddress());
                    }
                }
            }
        };
    }

    /** An agent refused this member, or another one of its cluster. Returns at once. */
    public void suspect() {
        checks.request();
    }

    public boolean looks() {
        return checks.isRunning();
    }

    public void close() {
        checks.close();
    }

    /** This member is in another cluster now, or in the same one with another UUID. */
    public synchronized void forget() {
        lost.clear();
        silent = 0;
    }

    /** Returns whether to check again later. */
    private boolean look() throws InterruptedException {
        List<AgentLink> out = new ArrayList<>();
        for (AgentLink link : maps.links().all()) {
            if (isOut(link)) {
                out.add(link);
            }
        }
        ClusterServiceImpl cluster = self.nodeEngine().getNode().getClusterService();
        if (out.isEmpty()) {
            synchronized (this) {
                lost.removeIf(address -> cluster.getMember(address) != null);
            }
            return false;
        }
        UUID member = self.cluster().member();
        if (!member.equals(dropped)) {
            dropped = member;
            droppedMaps.clear();
            self.logger().warning("imap-wal: member " + self.name()
                    + " is not in the newest view of the log of " + out.get(0).agent()
                    + ". Its maps are dropped from memory, and are not available until it has"
                    + " joined the cluster again");
        }
        // Also maps that are open and have nothing in memory.
        localMaps.drop(maps.states().stream()
                .filter(state -> out.contains(maps.links().of(state.map()))
                        && (droppedMaps.add(state.map()) || state.isOpen()))
                .map(MapState::map).toList());
        boolean oldestIsOut = letOthersCheck();
        if (!cluster.isJoined() || !member.equals(self.cluster().member())) {
            return true;
        }
        if (cluster.isMaster()) {
            Address target = target(out);
            if (target != null) {
                merge(cluster, target);
            }
        } else {
            alone = oldestIsOut ? 0 : alone + 1;
            if (alone >= LOOKS) {
                alone = 0;
                cluster.merge(cluster.getMasterAddress());
            }
        }
        return true;
    }

    /** Whether this member was left out of the view of that log, by its agent's answer. */
    private boolean isOut(AgentLink link) {
        if (link.isLeftOut()) {
            return true;
        }
        UUID member = self.cluster().member();
        UUID clusterId = self.cluster().clusterId();
        if (clusterId == null) {
            return false;
        }
        try {
            link.learn(maps.askForView(link));
            link.recheck();
            link.connect();
            return false;
        } catch (LogUnavailable refused) {
            if (!(refused.getCause() instanceof AgentError error)
                    || !error.code().equals(AgentError.VOID)) {
                return false;
            }
            try {
                AgentConnection.Claim claim = link.claim();
                boolean out = claim != null && claim.clusterId().equals(clusterId.toString())
                        && claim.incarnation() > link.knownView();
                if (out) {
                    link.leaveOut(member, error.text());
                }
                return out;
            } catch (IOException e) {
                return false;
            }
        }
    }

    public boolean isOut() {
        return maps.links().all().stream().anyMatch(AgentLink::isLeftOut);
    }

    /**
     * Makes the other members check whether they were left out.
     *
     * @return whether the oldest member is left out too, or does not answer
     */
    private boolean letOthersCheck() throws InterruptedException {
        ClusterServiceImpl cluster = self.nodeEngine().getNode().getClusterService();
        Address oldest = cluster.getMasterAddress();
        boolean oldestIsOut = true;
        List<Member> members = new ArrayList<>();
        List<Future<Boolean>> answers = new ArrayList<>();
        for (Member each : cluster.getMembers()) {
            if (!each.localMember()) {
                members.add(each);
                answers.add(self.ask(new LookOperation(), each.getAddress()));
            }
        }
        for (int i = 0; i < answers.size(); i++) {
            try {
                boolean out = answers.get(i).get(WAIT_S, TimeUnit.SECONDS);
                if (members.get(i).getAddress().equals(oldest)) {
                    oldestIsOut = out;
                }
            } catch (ExecutionException | TimeoutException e) {
                self.logger().fine("imap-wal: a member was not asked to check the view", e);
            }
        }
        return oldestIsOut;
    }

    /**
     * The member to join: a lost one that can be reached, or this one, to form a new cluster. Null:
     * none yet.
     */
    private Address target(List<AgentLink> out) throws InterruptedException {
        List<Address> candidates;
        synchronized (this) {
            candidates = new ArrayList<>(lost);
        }
        ClusterServiceImpl cluster = self.nodeEngine().getNode().getClusterService();
        boolean hasJoined = candidates.removeIf(each -> cluster.getMember(each) != null);
        Address found = reachable(candidates);
        if (found != null) {
            silent = 0;
            return found;
        }
        silent = out.stream().allMatch(this::isSilent) ? silent + 1 : 0;
        return hasJoined || silent >= SILENT_LOOKS ? self.nodeEngine().getThisAddress() : null;
    }

    /** The first one that can be reached; null: none, in {@link #CONNECT_MS} for all together. */
    private Address reachable(List<Address> candidates) throws InterruptedException {
        ServerConnectionManager connections = self.nodeEngine().getNode().getServer()
                .getConnectionManager(EndpointQualifier.MEMBER);
        candidates.forEach(connections::getOrConnect);
        long until = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(CONNECT_MS);
        for (Address each : candidates) {
            long left = TimeUnit.NANOSECONDS.toMillis(until - System.nanoTime());
            if (connections.get(each) == null && left > 0) {
                try {
                    connections.blockOnConnect(each, left, 0);
                } catch (InterruptedException e) {
                    throw e;
                } catch (Exception e) {  // also an undeclared TimeoutException
                    self.logger().fine("imap-wal: no connection to " + each, e);
                }
            }
        }
        return candidates.stream().filter(each -> connections.get(each) != null).findFirst()
                .orElse(null);
    }

    /**
     * Whether no member of the log's newest view shows that it is alive. These members may never
     * return, or return with other addresses, so members that were left out must not wait for them.
     * A new cluster is always safe: it gets the log only if the view's members are silent.
     */
    private boolean isSilent(AgentLink link) {
        try {
            AgentConnection.Claim claim = link.claim();
            return claim != null && !claim.alive();
        } catch (IOException e) {
            return false;
        }
    }

    /** Merges in Hazelcast's order: the other members first. */
    private void merge(ClusterServiceImpl cluster, Address target) throws InterruptedException {
        self.logger().warning(
                "imap-wal: the members of this cluster, which are not in the newest view of the"
                + " log, join "
                + (target.equals(self.nodeEngine().getThisAddress()) ? "a new cluster at "
                    : "the cluster of ") + target);
        List<Future<?>> asked = new ArrayList<>();
        for (Member each : cluster.getMembers()) {
            if (!each.localMember()) {
                Operation merge = new MergeClustersOp(target);
                asked.add(self.nodeEngine().getOperationService()
                        .invokeOnTarget(ClusterServiceImpl.SERVICE_NAME, merge, each.getAddress()));
            }
        }
        for (Future<?> each : asked) {
            try {
                each.get(WAIT_S, TimeUnit.SECONDS);
            } catch (ExecutionException | TimeoutException e) {
                self.logger().fine("imap-wal: a member was not asked to join again", e);
            }
        }
        cluster.merge(target);
    }
}
