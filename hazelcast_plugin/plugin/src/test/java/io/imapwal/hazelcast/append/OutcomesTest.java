package io.imapwal.hazelcast.append;

import com.hazelcast.spi.exception.RetryableHazelcastException;
import io.imapwal.hazelcast.NotAppended;
import io.imapwal.hazelcast.OutcomeUnknown;
import io.imapwal.wire.Membership;
import io.imapwal.wire.SessionInfo;
import org.junit.jupiter.api.Test;

import java.io.IOException;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;

import static org.junit.jupiter.api.Assertions.assertDoesNotThrow;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

class OutcomesTest {
    private static final IOException BROKEN = new IOException("broken");
    private final Appends.Doubts doubts = new Appends.Doubts();
    private final Set<Integer> moved = new HashSet<>();
    private final Repeats repeats = new Repeats(1, Set::of, () -> 0);
    private final Outcomes outcomes =
            new Outcomes(
                    doubts,
                    repeats,
                    stamp -> !moved.contains(stamp.partition()),
                    () -> "agent a:1");
    private final SessionInfo session = Appends.session(1, 0);
    private final Change first = Appends.change(0);
    private final Change second = Appends.change(1);

    /** An append of both changes, which was sent on a connection that is closed. */
    private InFlightAppend inDoubt() {
        InFlightAppend append = Appends.numbered(session, first, second);
        append.give(session, 0);
        append.closing(1);
        return append;
    }

    @Test
    void appendNotInLogFailsWithNotAppended() {
        PendingAppend pending = Appends.pending(first, second);
        outcomes.fail(Appends.numbered(session, first, second), false, 1, BROKEN);
        assertInstanceOf(NotAppended.class, pending.failure());
        assertTrue(pending.failure().getMessage().startsWith(
                "map \"orders\": not appended by agent a:1: broken. Nothing was changed"));
        assertEquals(List.of(), doubts.added);
    }

    @Test
    void appendThatMayBeInLogIsInDoubt() {
        PendingAppend pending = Appends.pending(first, second);
        outcomes.fail(inDoubt(), true, 1, BROKEN);
        assertInstanceOf(OutcomeUnknown.class, pending.failure());
        assertEquals(List.of(first, second), doubts.added);
    }

    @Test
    void welcomeAcknowledgesChangesInLog() {
        PendingAppend one = Appends.pending(first);
        PendingAppend two = Appends.pending(second);
        InFlightAppend append = inDoubt();
        outcomes.decide(append, Appends.session(1, 1), 1, BROKEN);
        assertTrue(one.done());
        assertNull(one.failure());
        assertTrue(!two.done());
        assertEquals(List.of(second), append.numbered());
        assertEquals(InFlightAppend.State.UNSENT, append.state());
    }

    @Test
    void welcomeOfNewerViewDecidesOlderSession() {
        PendingAppend one = Appends.pending(first);
        PendingAppend two = Appends.pending(second);
        moved.add(1);
        outcomes.decide(inDoubt(), Appends.session(2, 0, Map.of(1L, 1L)), 1, BROKEN);
        assertNull(one.failure());
        assertInstanceOf(RetryableHazelcastException.class, two.failure());
    }

    @Test
    void welcomeWithoutTheSessionDecidesNothing() {
        PendingAppend pending = Appends.pending(first, second);
        outcomes.decide(inDoubt(), Appends.session(2, 7), 1, BROKEN);
        assertInstanceOf(OutcomeUnknown.class, pending.failure());
    }

    @Test
    void unknownOutcomeStaysUnknownInSameSession() {
        for (long number : new long[] {1, 2}) {
            Change change = Appends.change(0);
            PendingAppend pending = Appends.pending(change);
            InFlightAppend append = Appends.numbered(session, change);
            append.give(session, 0);
            append.answered(InFlightAppend.Event.OUTCOME_UNKNOWN);
            append.closing(1);
            outcomes.decide(append, Appends.session(number, 1, Map.of(1L, 1L)), 1, BROKEN);
            assertTrue(append.over());
            assertEquals(number == 1, pending.failure() instanceof OutcomeUnknown);
        }
    }

    @Test
    void changeOfOtherClusterIsNotSentAgain() {
        PendingAppend pending = Appends.pending(first, second);
        SessionInfo other = new SessionInfo(new Membership(new UUID(9, 9), Appends.MEMBER),
                "node", 1, 1, 0, Map.of(), 0, 0, true);
        InFlightAppend append = Appends.numbered(session, first, second);
        outcomes.decide(append, other, 1, BROKEN);
        assertInstanceOf(NotAppended.class, pending.failure());
        assertTrue(!outcomes.maySend(List.of(first), other));
        assertTrue(outcomes.maySend(List.of(first), session));
    }

    @Test
    void callerReturnsWhenAllChangesAreInLog() {
        PendingAppend pending = acknowledged();
        assertDoesNotThrow(() -> outcomes.conclude(pending, stamp -> false));
        assertEquals(List.of(), doubts.added);
    }

    @Test
    void changeOfMigratedPartitionIsRepeated() {
        PendingAppend pending = acknowledged();
        moved.add(1);
        assertThrows(RetryableHazelcastException.class,
                () -> outcomes.conclude(pending, stamp -> false));
        assertEquals(List.of(first, second), doubts.added);
    }

    @Test
    void leavingMemberRepeatsNoChange() {
        PendingAppend pending = acknowledged();
        moved.add(1);
        assertThrows(OutcomeUnknown.class, () -> outcomes.conclude(pending, stamp -> true));
    }

    @Test
    void batchPartlyInLogHasUnknownOutcome() {
        PendingAppend pending = Appends.pending(first, second);
        pending.succeed(first);
        pending.fail(second, outcomes.notAppended(second, BROKEN));
        String text = assertThrows(OutcomeUnknown.class,
                () -> outcomes.conclude(pending, stamp -> false)).getMessage();
        assertTrue(text.contains("1 of 2 changes are in the log"), text);
        assertEquals(List.of(first, second), doubts.added);
    }

    @Test
    void refusalAfterLoggedAttemptIsUnknownOutcome() {
        PendingAppend pending = Appends.pending(first);
        NotAppended refusal = outcomes.notAppended(first, BROKEN);
        pending.fail(first, refusal);
        assertSame(refusal, assertThrows(NotAppended.class,
                () -> outcomes.conclude(pending, stamp -> false)));
        doubts.ahead = true;
        assertThrows(OutcomeUnknown.class, () -> outcomes.conclude(pending, stamp -> false));
    }

    @Test
    void refusalOfRepeatedChangeIsUnknownOutcome() {
        PendingAppend pending = Appends.pending(first);
        pending.fail(first, outcomes.notAppended(first, BROKEN));
        repeats.begin();
        assertThrows(OutcomeUnknown.class, () -> outcomes.conclude(pending, stamp -> false));
    }

    @Test
    void refusedTransactionIsCertain() {
        PendingAppend pending = new PendingAppend(List.of(first), true);
        pending.fail(first, outcomes.notAppended(first, BROKEN));
        repeats.begin();
        assertThrows(NotAppended.class, () -> outcomes.conclude(pending, stamp -> false));
    }

    private PendingAppend acknowledged() {
        PendingAppend pending = Appends.pending(first, second);
        pending.succeed(first);
        pending.succeed(second);
        return pending;
    }
}
