package io.imapwal.hazelcast.transactions;

import com.hazelcast.cluster.Member;
import com.hazelcast.map.impl.MapService;
import io.imapwal.hazelcast.append.Placements;
import io.imapwal.hazelcast.engine.ThisMember;
import io.imapwal.hazelcast.settle.MemberMaps;

import java.util.Collection;
import java.util.List;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;

/**
 * Ends the wait of keys whose transaction has ended without this member's knowledge: the message
 * with its outcome was lost, or the key got its place after the message.
 *
 * <pre>
 * owner        a key has a place for some seconds ──▶ which of these transactions have ended?
 * coordinator  those that it does not commit now, and of which it has no key in doubt
 * owner        settles the keys of these from the log, and their places end
 * </pre>
 *
 * The coordinator logs nothing more of a transaction that has ended. So the log has all of it or
 * nothing, and this does not change any more.
 */
public final class TransactionInquiry {
    /** Longer than nearly all commits, and short for a caller that waits for the key. */
    private static final long PAUSE_MS = 5000;

    /** Changed by tests only. */
    public volatile long pauseMs = PAUSE_MS;
    private final MemberMaps maps;
    private final ThisMember member;
    private final Set<UUID> underWay = ConcurrentHashMap.newKeySet();
    private final AtomicBoolean planned = new AtomicBoolean();

    public TransactionInquiry(MemberMaps maps) {
        this.maps = maps;
        this.member = maps.member();
    }

    /** This member begins to commit it, and has asked for no place yet. */
    public void begin(UUID transaction) {
        underWay.add(transaction);
    }

    /** Its outcome is known, or the reconciler has its keys. This member sends nothing more. */
    public void end(UUID transaction) {
        underWay.remove(transaction);
    }

    /** Those that this member, which coordinated them, neither commits now nor has in doubt. */
    public List<UUID> ended(Collection<UUID> transactions) {
        if (member.merging()) {
            // Its doubts are forgotten, and its agent may still log. The owners see it leave.
            return List.of();
        }
        // In this order: the reconciler has the keys before the commit ends.
        List<UUID> over = transactions.stream().filter(each -> !underWay.contains(each)).toList();
        Set<UUID> doubted = maps.reconciler().transactions();
        return over.stream().filter(each -> !doubted.contains(each)).toList();
    }

    /** A key of this member got a place. Does not wait. */
    public void watch() {
        if (!planned.get() && planned.compareAndSet(false, true)) {
            member.nodeEngine().getExecutionService()
                    .schedule(this::ask, pauseMs, TimeUnit.MILLISECONDS);
        }
    }

    private void ask() {
        planned.set(false);
        if (member.closed() || maps.placements().none()) {
            return;
        }
        watch();
        maps.placements().olderThan(TimeUnit.MILLISECONDS.toNanos(pauseMs)).forEach(this::ask);
    }

    private void ask(UUID coordinator, Set<UUID> transactions) {
        Member asked = member.nodeEngine().getClusterService().getMember(coordinator);
        if (asked == null) {
            // Its transactions are settled in the next view.
            return;
        }
        member.nodeEngine().getOperationService().<List<UUID>>invokeOnTarget(
                MapService.SERVICE_NAME, new InquiryOperation(transactions), asked.getAddress())
                .whenCompleteAsync((ended, failure) -> {
                    if (failure == null) {
                        settle(ended);
                    } else {
                        member.logger().fine("imap-wal: a member did not say which transactions"
                                + " have ended; it is asked again", failure);
                    }
                });
    }

    private void settle(Collection<UUID> ended) {
        for (Placements.Left left : maps.placements().of(ended)) {
            if (maps.ownership().isOwner(left.partition())) {
                maps.settle(left.map(), left.key(), left.transaction());
            } else {
                // The next owner has settled the partition.
                maps.placements().remove(left.map(), left.key(), left.transaction());
            }
        }
    }
}
