package io.imapwal.hazelcast.append;

import io.imapwal.hazelcast.append.InFlightAppend.Event;
import io.imapwal.hazelcast.append.InFlightAppend.State;
import io.imapwal.wire.SessionInfo;
import org.junit.jupiter.api.Test;

import java.util.ArrayList;
import java.util.EnumMap;
import java.util.List;
import java.util.Map;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

class InFlightAppendTest {
    /** The table of the class comment: for each state, the next state of each possible event. */
    private static final Map<State, Map<Event, State>> TABLE = new EnumMap<>(Map.of(
            State.UNSENT, Map.of(
                    Event.GIVEN, State.SENT,
                    Event.NEWER_VIEW, State.UNSENT,
                    Event.OUTCOME_UNKNOWN, State.UNSENT,
                    Event.CLOSED_BEFORE, State.UNSENT,
                    Event.CLOSED_AFTER, State.UNSENT,
                    Event.NOT_IN_LOG, State.UNSENT,
                    Event.ENDED, State.OVER),
            State.SENT, Map.of(
                    Event.NEWER_VIEW, State.UNSENT,
                    Event.OUTCOME_UNKNOWN, State.UNKNOWN,
                    Event.CLOSED_BEFORE, State.UNSENT,
                    Event.CLOSED_AFTER, State.IN_DOUBT,
                    Event.ENDED, State.OVER),
            State.IN_DOUBT, Map.of(
                    Event.NOT_IN_LOG, State.UNSENT,
                    Event.ENDED, State.OVER),
            State.UNKNOWN, Map.of(
                    Event.CLOSED_BEFORE, State.UNKNOWN,
                    Event.CLOSED_AFTER, State.UNKNOWN,
                    Event.NOT_IN_LOG, State.UNSENT,
                    Event.ENDED, State.OVER),
            State.OVER, Map.of(
                    Event.ENDED, State.OVER)));

    @Test
    void statesFollowTableAndRefuseOtherEvents() {
        for (State state : State.values()) {
            for (Event event : Event.values()) {
                State next = TABLE.get(state).get(event);
                if (next == null) {
                    assertThrows(IllegalStateException.class, () -> state.on(event),
                            () -> state + ", " + event);
                } else {
                    assertEquals(next, state.on(event), () -> state + ", " + event);
                }
            }
        }
    }

    @Test
    void onlyAppendWithSentBytesIsInDoubt() {
        SessionInfo session = Appends.session(1, 0);
        InFlightAppend first = Appends.numbered(session, pendingChange(0));
        InFlightAppend second = Appends.numbered(session, pendingChange(1));
        InFlightAppend third = Appends.numbered(session, pendingChange(2));
        first.give(session, 100);
        second.give(session, 150);
        for (InFlightAppend each : List.of(first, second, third)) {
            each.closing(150);
        }
        assertTrue(first.mayBeInLog());
        assertFalse(second.mayBeInLog());
        assertFalse(third.mayBeInLog());
    }

    @Test
    void restOfAppendHasContiguousNumbers() {
        SessionInfo session = Appends.session(1, 0);
        Change[] changes = {pendingChange(0), pendingChange(1), pendingChange(2)};
        InFlightAppend append = Appends.numbered(session, changes);
        append.rest(new ArrayList<>(List.of(changes[0], changes[2])));
        assertEquals(1, changes[0].request);
        assertEquals(2, changes[2].request);
        assertEquals(State.UNSENT, append.state());
        append.rest(new ArrayList<>());
        assertTrue(append.over());
    }

    @Test
    void errorInSendingThreadLeavesOutNoChange() {
        InFlightAppend append = Appends.unsent(List.of(pendingChange(0), pendingChange(1)));
        append.spoil();
        assertEquals(append.changes, append.numbered());
        assertTrue(append.posted && append.broken());
    }

    private static Change pendingChange(int partition) {
        return Appends.pending(Appends.change(partition)).changes.get(0);
    }
}
