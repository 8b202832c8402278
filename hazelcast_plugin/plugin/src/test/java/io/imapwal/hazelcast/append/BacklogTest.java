package io.imapwal.hazelcast.append;

import io.imapwal.wire.MsgpackWriter;
import io.imapwal.wire.SessionInfo;
import org.junit.jupiter.api.Test;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

class BacklogTest {
    private static final long SESSION = SessionInfo.SHARED + 7;
    private static final int SIZE = 100;
    private final Backlog backlog = new Backlog(3, 40_000);
    private long request;

    private static SessionInfo welcome(String node, long session, long last, long messageBytes) {
        SessionInfo any = Appends.session(session, last);
        return new SessionInfo(any.membership(), node, session, session - SessionInfo.SHARED, last,
                Map.of(), 0, messageBytes, true);
    }

    private static SessionInfo welcome(String node, long last) {
        return welcome(node, SESSION, last, 0);
    }

    /** An append of so many changes that was sent to these nodes. */
    private Backlog.Append sent(Backlog to, int changes, String... nodes) {
        List<Change> all = new ArrayList<>();
        for (int i = 0; i < changes; i++) {
            Change change = Appends.change(0, SIZE);
            change.request = ++request;
            all.add(change);
        }
        Backlog.Append append = to.sent(welcome("", 0), all);
        List.of(nodes).forEach(each -> to.given(List.of(append), each));
        return append;
    }

    /** An append that these nodes have acknowledged. */
    private Backlog.Append acknowledged(Backlog by, int changes, String... nodes) {
        Backlog.Append append = sent(by, changes, nodes);
        List.of(nodes).forEach(each -> by.answered(List.of(append), each));
        by.acknowledged(append);
        return append;
    }

    private Backlog.Append acknowledged(int changes, String... nodes) {
        return acknowledged(backlog, changes, nodes);
    }

    private List<List<Long>> lackedBy(SessionInfo welcome) {
        return backlog.lackedBy(welcome).stream()
                .map(each -> List.of(each.first(), (long) each.count())).toList();
    }

    private void assertCounts(long underCopied, long copiedAgain, long waiting) {
        assertEquals(new CopyCounts(underCopied, copiedAgain, waiting), backlog.counts());
    }

    @Test
    void appendThatAllNodesHaveIsNotCounted() {
        acknowledged(2, "a", "b", "c");
        backlog.disconnected();
        assertCounts(0, 0, 0);
        assertEquals(List.of(), lackedBy(welcome("d", 0)));
    }

    @Test
    void appendWithFewerNodesWaitsForAnotherOne() {
        Backlog.Append append = acknowledged(2, "a", "b");
        assertCounts(2, 0, 2);
        assertEquals(List.of(), lackedBy(welcome("b", 2)));
        assertEquals(List.of(List.of(1L, 2L)), lackedBy(welcome("c", 0)));
        backlog.given(List.of(append), "c");
        assertEquals(List.of(), lackedBy(welcome("c", 0)));
        backlog.answered(List.of(append), "c");
        assertCounts(2, 2, 0);
    }

    @Test
    void payloadIsThatOfTheFirstSending() {
        Change change = Appends.change(0, SIZE);
        change.request = 9;
        Backlog.Append append = backlog.sent(welcome("", 0), List.of(change));
        backlog.given(List.of(append), "a");
        backlog.acknowledged(append);
        MsgpackWriter wanted = new MsgpackWriter();
        change.write(wanted, 7, SESSION);
        assertArrayEquals(wanted.toByteArray(),
                backlog.payload(backlog.lackedBy(welcome("c", 0)).get(0)).toByteArray());
    }

    @Test
    void lateAnswerIsInTime() {
        Backlog.Append append = sent(backlog, 1, "a", "b", "c");
        backlog.answered(List.of(append), "a");
        backlog.acknowledged(append);
        assertCounts(0, 0, 0);
        backlog.answered(List.of(append), "b");
        backlog.answered(List.of(append), "c");
        backlog.disconnected();
        assertCounts(0, 0, 0);
    }

    @Test
    void welcomeSaysWhatUnansweredNodeHas() {
        for (int i = 0; i < 2; i++) {
            Backlog.Append append = sent(backlog, 1, "a", "b", "c");
            backlog.answered(List.of(append), "a");
            backlog.answered(List.of(append), "b");
            backlog.acknowledged(append);
        }
        backlog.disconnected();
        assertCounts(2, 0, 2);
        backlog.welcomed(welcome("c", 1));
        assertCounts(2, 1, 1);
        assertEquals(List.of(List.of(2L, 1L)), lackedBy(welcome("c", 1)));
    }

    @Test
    void nodeThatLostItsDiskGetsItAgain() {
        acknowledged(1, "a", "b");
        backlog.welcomed(welcome("b", 0));
        assertEquals(List.of(List.of(1L, 1L)), lackedBy(welcome("b", 0)));
    }

    /** It takes the requests of a session in rising order. */
    @Test
    void nodeWithLaterRequestGetsNothingEarlier() {
        acknowledged(3, "a", "b");
        acknowledged(1, "a", "b");
        assertEquals(List.of(List.of(4L, 1L)), lackedBy(welcome("c", 3)));
        backlog.finish(Set.of("a", "b"));
        assertCounts(4, 0, 4);
        backlog.finish(Set.of("a", "b", "c"));
        assertCounts(4, 0, 0);
    }

    @Test
    void whatMembersMayStillAnswerIsKept() {
        Backlog.Append append = acknowledged(1, "a", "b");
        backlog.given(List.of(append), "c");
        backlog.finish(Set.of("a", "b", "c"));
        assertCounts(1, 0, 1);
        backlog.finish(Set.of("a", "b", "d"));
        assertCounts(1, 0, 0);
    }

    @Test
    void consecutiveAppendsAreOneMessage() {
        acknowledged(2, "a");
        acknowledged(1, "a");
        acknowledged(1, "a", "b", "c");
        acknowledged(1, "a");
        assertEquals(List.of(List.of(1L, 3L), List.of(5L, 1L)), lackedBy(welcome("c", 0)));
    }

    /** An append may have a whole transaction, so it is never in two messages. */
    @Test
    void messageHasWholeAppends() {
        Backlog large = new Backlog(3, 10 * Backlog.MESSAGE_BYTES);
        int half = Backlog.MESSAGE_BYTES / SIZE / 2;
        acknowledged(large, half, "a");
        acknowledged(large, half, "a");
        acknowledged(large, 3 * half, "a");
        assertEquals(List.of(half, half, 3 * half), large.lackedBy(welcome("c", 0)).stream()
                .map(Backlog.Message::count).toList());
    }

    @Test
    void oldestAppendsMakeRoomAndStayCounted() {
        for (int i = 0; i < 200; i++) {
            acknowledged(1, "a");
        }
        CopyCounts counts = backlog.counts();
        assertEquals(200, counts.underCopied());
        assertEquals(true, counts.waiting() > 50 && counts.waiting() < 100, counts.toString());
        List<Backlog.Message> kept = backlog.lackedBy(welcome("c", 0));
        assertEquals(201 - counts.waiting(), kept.get(0).first());
    }

    @Test
    void unansweredAppendsTakeSpaceToo() {
        Backlog.Append first = sent(backlog, 250, "a", "b", "c");
        backlog.acknowledged(first);
        acknowledged(250, "a");
        assertCounts(250, 0, 250);
        backlog.disconnected();
        assertCounts(500, 0, 250);
    }

    @Test
    void nothingIsKeptWithoutSpace() {
        Backlog none = new Backlog(3, 0);
        acknowledged(none, 5, "a");
        assertEquals(new CopyCounts(5, 0, 0), none.counts());
    }

    @Test
    void laterSessionVoidsThem() {
        acknowledged(1, "a");
        backlog.decide(welcome("a", SESSION + 1, 0, 0));
        assertCounts(1, 0, 0);
    }

    /** {@link Outcomes} acknowledges it by the same welcomes. */
    @Test
    void changeThatTheWelcomesAcknowledgeIsCounted() {
        sent(backlog, 1, "a", "b", "c");
        sent(backlog, 1, "a", "b", "c");
        backlog.disconnected();
        backlog.welcomed(welcome("a", 1));
        backlog.welcomed(welcome("b", 0));
        backlog.decide(welcome("a", 1));
        assertCounts(1, 0, 1);
        assertEquals(List.of(List.of(1L, 1L)), lackedBy(welcome("b", 0)));
        backlog.finish(Set.of("a", "b"));
        assertCounts(1, 0, 1);
    }

    @Test
    void whatNoEnsembleDecidedIsNotCopied() {
        Backlog.Append first = sent(backlog, 1, "a", "b", "c");
        backlog.disconnected();
        backlog.welcomed(welcome("a", 1));
        backlog.decide(welcome("a", 1));
        backlog.given(List.of(first), "d");
        assertTrue(backlog.mayBeInDoubt(List.of(first)));
        backlog.takeBack();
        assertEquals(List.of(), lackedBy(welcome("d", 0)));
        assertTrue(backlog.mayBeInDoubt(List.of(first)), "until the agent is greeted again");
        assertCounts(1, 0, 0);
    }

    @Test
    void whatEnsembleDecidedIsCertain() {
        Backlog.Append first = sent(backlog, 1, "a", "b", "c");
        backlog.disconnected();
        backlog.welcomed(welcome("a", 1));
        backlog.welcomed(welcome("b", 0));
        backlog.decide(welcome("a", 1));
        backlog.finish(Set.of("a"));
        backlog.takeBack();
        assertFalse(backlog.mayBeInDoubt(List.of(first)));
        assertEquals(List.of(List.of(1L, 1L)), lackedBy(welcome("b", 0)));
    }

    @Test
    void decisionOfFormerRoundIsTakenBack() {
        sent(backlog, 1, "a", "b");
        backlog.welcomed(welcome("a", 1));
        backlog.decide(welcome("a", 1));
        backlog.decide(welcome("b", 0));
        assertEquals(List.of(), lackedBy(welcome("b", 0)));
    }

    @Test
    void repeatedlyRefusedCopyIsGivenUp() {
        Backlog.Append append = acknowledged(1, "a");
        for (int i = 1; i < Backlog.REFUSALS_MAX; i++) {
            backlog.refused(List.of(append));
            assertCounts(1, 0, 1);
        }
        backlog.refused(List.of(append));
        assertCounts(1, 0, 0);
    }

    /** An agent closes the connection of a member that sends a larger message. */
    @Test
    void messageLargerThanNodeAcceptsIsNotSent() {
        acknowledged(5, "a");
        assertEquals(List.of(), lackedBy(welcome("c", SESSION, 0, 500)));
        assertEquals(1, lackedBy(welcome("c", SESSION, 0, 5000)).size());
    }
}
