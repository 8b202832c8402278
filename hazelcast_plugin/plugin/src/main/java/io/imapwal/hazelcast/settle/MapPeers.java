package io.imapwal.hazelcast.settle;

import com.hazelcast.cluster.Member;
import com.hazelcast.core.OperationTimeoutException;
import com.hazelcast.internal.util.ExceptionUtil;
import com.hazelcast.nio.serialization.HazelcastSerializationException;
import io.imapwal.hazelcast.LogUnavailable;
import io.imapwal.hazelcast.append.AgentLink;
import io.imapwal.hazelcast.engine.Polling;
import io.imapwal.hazelcast.engine.ThisMember;
import io.imapwal.wire.AgentError;
import io.imapwal.wire.Membership;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/**
 * Asks the other members about one map: for its status there ({@link StatusOperation}), and for the
 * newest view of its log ({@link ViewOperation}).
 */
public final class MapPeers {
    /** How long {@code getMap} waits for other members, after this one has loaded its own. */
    private static final long LOADED_NANOS = TimeUnit.SECONDS.toNanos(2);
    private static final long VIEW_NANOS = TimeUnit.SECONDS.toNanos(2);
    private static final long STATUS_S = 60;

    private final ThisMember member;
    private final String map;

    MapPeers(ThisMember member, String map) {
        this.member = member;
        this.map = map;
    }

    /**
     * The combined answer of the other members.
     *
     * @param loaded  a member has the map in use
     * @param missing why a member cannot take entries; null when all can
     */
    public record Status(boolean loaded, String missing) {
    }

    /**
     * Returns when all have answered. The agent of another member may work for long before that
     * member answers, which fails when its agent stops working.
     *
     * @param present as which member this one asks
     * @param mostMs  the longest wait for a member
     */
    Status status(Membership present, int mostMs) {
        long until = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(mostMs);
        boolean loaded = false;
        String missing = null;
        for (Map.Entry<Member, CompletableFuture<String>> each : ask(present, false).entrySet()) {
            String answer;
            try {
                answer = answer(each.getKey(), each.getValue(), present, until);
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
                answer = "interrupted";
            } catch (ExecutionException | TimeoutException e) {
                Throwable cause = ExceptionUtil.peel(e);
                if (cause instanceof HazelcastSerializationException) {
                    member.noteWithoutPlugin(each.getKey().getUuid());
                }
                answer = "member " + each.getKey().getAddress() + whyNoAnswer(cause);
            }
            switch (answer) {
                case StatusOperation.LOADED -> loaded = true;
                case StatusOperation.OPEN, StatusOperation.READY -> { }
                default -> missing = answer;
            }
        }
        return new Status(loaded, missing);
    }

    /** The rest of a sentence about a member that did not answer. */
    static String whyNoAnswer(Throwable cause) {
        String what = cause instanceof HazelcastSerializationException
                ? " cannot read the plug-in's question, so it has no plug-in, or that of another"
                + " release: " : " does not answer: ";
        return what + AgentError.reason(cause);
    }

    /** The member's answer. Hazelcast ends an operation after some time; then this asks again. */
    private String answer(Member other, CompletableFuture<String> first, Membership present,
            long until) throws InterruptedException, ExecutionException, TimeoutException {
        CompletableFuture<String> answer = first;
        while (true) {
            try {
                return answer.get(STATUS_S, TimeUnit.SECONDS);
            } catch (ExecutionException | TimeoutException e) {
                if (System.nanoTime() - until > 0 || e instanceof ExecutionException
                        && !(ExceptionUtil.peel(e) instanceof OperationTimeoutException)) {
                    throw e;
                }
            }
            answer = ask(other, present, false);
        }
    }

    /**
     * Returns when the other members have loaded the map too, or after {@link #LOADED_NANOS}.
     *
     * @param present this member's identity for the question
     */
    public void awaitLoaded(Membership present) throws InterruptedException {
        long deadline = System.nanoTime() + LOADED_NANOS;
        for (CompletableFuture<String> answer : ask(present, true).values()) {
            try {
                answer.get(Math.max(1, deadline - System.nanoTime()), TimeUnit.NANOSECONDS);
            } catch (ExecutionException | TimeoutException e) {
                member.logger().fine("imap-wal: map \"" + map + "\": a member does not report when"
                        + " it has loaded its partitions", e);
            }
        }
    }

    /** Asks each other member for the map's status. */
    private Map<Member, CompletableFuture<String>> ask(Membership present, boolean whenLoaded) {
        Map<Member, CompletableFuture<String>> answers = new HashMap<>();
        member.others().forEach(other -> answers.put(other, ask(other, present, whenLoaded)));
        return answers;
    }

    private CompletableFuture<String> ask(Member other, Membership present, boolean whenLoaded) {
        return member.ask(new StatusOperation(map, present, whenLoaded), other.getAddress());
    }

    /**
     * A member that joins is not in the list of a view that was claimed before, so it asks the
     * others for the view's number. They may know this member before it has joined.
     */
    void learnView(AgentLink link) {
        if (!joined()) {
            throw new LogUnavailable("member " + member.name()
                    + " has not joined its cluster yet", null);
        }
        if (link.knownView() == 0) {
            link.learn(askForView());
        }
    }

    private boolean joined() {
        try {
            return Polling.until(member.nodeEngine().getClusterService()::isJoined, VIEW_NANOS);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            return false;
        }
    }

    /** The newest view of the map's log that another member knows; 0: none. */
    public long askForView() {
        UUID asker = member.cluster().member();
        List<CompletableFuture<Long>> answers = new ArrayList<>();
        for (Member other : member.others()) {
            answers.add(member.ask(new ViewOperation(map, asker), other.getAddress()));
        }
        long deadline = System.nanoTime() + VIEW_NANOS;
        long newest = 0;
        for (CompletableFuture<Long> answer : answers) {
            try {
                newest = Math.max(newest, answer.get(Math.max(1, deadline - System.nanoTime()),
                        TimeUnit.NANOSECONDS));
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
                return newest;
            } catch (ExecutionException | TimeoutException e) {
                member.logger().fine("imap-wal: a member does not report which view it knows", e);
            }
        }
        return newest;
    }
}
