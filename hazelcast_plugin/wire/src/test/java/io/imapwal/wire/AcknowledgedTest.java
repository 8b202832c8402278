package io.imapwal.wire;

import org.junit.jupiter.api.Test;

import java.io.IOException;
import java.util.Map;
import java.util.UUID;

import static org.junit.jupiter.api.Assertions.assertDoesNotThrow;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

/** Which welcomes show that an older copy has replaced the log. */
class AcknowledgedTest {
    private static final Membership MEMBER = new Membership(UUID.randomUUID(), UUID.randomUUID());
    private static final long SHARED = SessionInfo.SHARED + 7;

    private static SessionInfo welcome(long session, long view, long last,
            Map<Long, Long> former) {
        return welcome(MEMBER, "n1", session, view, last, former, true);
    }

    private static SessionInfo welcome(Membership of, String node, long session, long view,
            long last, Map<Long, Long> former, boolean durable) {
        return new SessionInfo(of, node, session, view, last, former, 0, 0, durable);
    }

    /** Request 5 of session 2, in view 2. */
    private static Acknowledged five() {
        return Acknowledged.NOTHING.with(welcome(2, 2, 0, Map.of()), 5);
    }

    private static void assertOlder(Acknowledged known, SessionInfo welcome, String what) {
        String text = assertThrows(IOException.class, () -> known.require(welcome)).getMessage();
        assertTrue(text.contains("an older copy replaced the node's folder"), text);
        assertTrue(text.contains(what), text);
    }

    private static void assertTaken(Acknowledged known, SessionInfo welcome) {
        assertDoesNotThrow(() -> known.require(welcome));
    }

    @Test
    void sameSessionHasWhatWasAcknowledged() {
        assertTaken(five(), welcome(2, 2, 5, Map.of()));
        assertTaken(five(), welcome(2, 2, 6, Map.of()));
        assertOlder(five(), welcome(2, 2, 4, Map.of()), "ends at request 4");
    }

    @Test
    void laterViewHasWhatWasAcknowledgedBefore() {
        assertTaken(five(), welcome(3, 3, 0, Map.of(2L, 5L)));
        assertOlder(five(), welcome(3, 3, 0, Map.of(2L, 4L)), "ends at request 4");
    }

    @Test
    void noLogReturnsToAnEarlierView() {
        assertOlder(five(), welcome(1, 1, 9, Map.of()), "is in view 1");
    }

    /** Its loss was accepted, or too many plug-ins have started since. */
    @Test
    void forgottenSessionIsNoOlderCopy() {
        assertTaken(five(), welcome(3, 2, 0, Map.of()));
        assertTaken(five(), welcome(3, 3, 0, Map.of()));
    }

    @Test
    void otherNodesAndClustersAreNotCompared() {
        assertTaken(five(), welcome(MEMBER, "n2", 2, 1, 0, Map.of(), true));
        assertTaken(five(), welcome(new Membership(UUID.randomUUID(), UUID.randomUUID()), "n1", 1,
                1, 0, Map.of(), true));
    }

    /** The agent had another durability when it acknowledged: a crash may lose the change. */
    @Test
    void onlyDurableAcknowledgementsCount() {
        SessionInfo before = welcome(MEMBER, "n1", 2, 2, 0, Map.of(), false);
        assertTaken(Acknowledged.NOTHING.with(before, 5), welcome(2, 2, 3, Map.of()));
        assertOlder(five().with(before, 9), welcome(2, 2, 4, Map.of()), "ends at request 4");
        assertOlder(five(), welcome(MEMBER, "n1", 2, 2, 4, Map.of(), false), "ends at request 4");
    }

    @Test
    void sharedSessionsAreNotCompared() {
        SessionInfo shared = welcome(SHARED, 2, 0, Map.of());
        assertTaken(Acknowledged.NOTHING.with(shared, 5), shared);
    }
}
