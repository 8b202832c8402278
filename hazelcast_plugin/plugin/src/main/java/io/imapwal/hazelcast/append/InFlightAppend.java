package io.imapwal.hazelcast.append;

import io.imapwal.wire.SessionInfo;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;

/**
 * One append: the changes that were taken from the queue for it, and its state.
 *
 * <pre>
 * state     event            cause of the event                                  next state
 * UNSENT    GIVEN            the writer begins to pass it to the connection      SENT
 *           NEWER_VIEW       the agent refused the schemas that it needs         UNSENT
 *           OUTCOME_UNKNOWN  likewise                                            UNSENT
 *           CLOSED_BEFORE    the connection was closed                           UNSENT
 *           CLOSED_AFTER     likewise                                            UNSENT
 *           NOT_IN_LOG       a new welcome                                       UNSENT
 * SENT      NEWER_VIEW       void-incarnation: the agent did not append it       UNSENT
 *           OUTCOME_UNKNOWN  the agent does not know whether it is in the log    UNKNOWN
 *           CLOSED_BEFORE    closed, and no byte of it was sent                  UNSENT
 *           CLOSED_AFTER     closed, and a part of it was sent                   IN_DOUBT
 * IN_DOUBT  NOT_IN_LOG       a new welcome: some changes are not in the log      UNSENT
 * UNKNOWN   CLOSED_BEFORE    the connection was closed                           UNKNOWN
 *           CLOSED_AFTER     likewise                                            UNKNOWN
 *           NOT_IN_LOG       a welcome of a newer view: some are not in the log  UNSENT
 * each      ENDED            each of its changes has an outcome                  OVER
 * </pre>
 *
 * Any other event in a state is an error of this plug-in ({@link IllegalStateException}).
 *
 * <p>The thread that holds the wire changes an append. Other threads read it after {@link #posted}.
 */
final class InFlightAppend {
    enum Event {
        GIVEN, NEWER_VIEW, OUTCOME_UNKNOWN, CLOSED_BEFORE, CLOSED_AFTER, NOT_IN_LOG, ENDED
    }

    enum State {
        /** It is certainly not in the log. */
        UNSENT,
        /** It, or a part of it, was given to the present connection. */
        SENT,
        /** It, or a part of it, was sent on a connection that is closed: it may be in the log. */
        IN_DOUBT,
        /** As IN_DOUBT, and no welcome of the same session gives the outcome. */
        UNKNOWN,
        /** Each of its changes has an outcome. */
        OVER;

        /** @throws IllegalStateException the event is not possible in this state */
        State on(Event event) {
            if (event == Event.ENDED) {
                return OVER;
            }
            State next = switch (this) {
                case UNSENT -> event == Event.GIVEN ? SENT : UNSENT;
                case SENT -> switch (event) {
                    case NEWER_VIEW, CLOSED_BEFORE -> UNSENT;
                    case OUTCOME_UNKNOWN -> UNKNOWN;
                    case CLOSED_AFTER -> IN_DOUBT;
                    default -> null;
                };
                case IN_DOUBT -> event == Event.NOT_IN_LOG ? UNSENT : null;
                case UNKNOWN -> switch (event) {
                    case CLOSED_BEFORE, CLOSED_AFTER -> UNKNOWN;
                    case NOT_IN_LOG -> UNSENT;
                    default -> null;
                };
                case OVER -> null;
            };
            if (next == null) {
                throw new IllegalStateException("an append in state " + this + " cannot be "
                        + event);
            }
            return next;
        }
    }

    /** All changes that were taken from the queue for it. */
    final List<Change> changes = new ArrayList<>();
    /** Size of the changes in bytes, without their order. */
    long bytes;
    /** Callers without changes, which wait for a connection. */
    List<PendingAppend> greetings = List.of();
    /** The changes that are sent, with request numbers. The others have an outcome. */
    private List<Change> numbered = List.of();
    private State state = State.UNSENT;
    /** It was sent before to several agents, one of which may have it. Once true, it stays true. */
    private boolean exposed;
    /** When the callers stop waiting, as {@link System#nanoTime()}. */
    long deadlineNanos;
    /** The session that it is sent in; null: it has no numbers yet. */
    private SessionInfo session;
    /** Number of the request on its connection. */
    long number;
    /** Bytes that the connection had written before it. */
    private long writtenBefore;
    /** Why it could not be sent; null: it was sent. */
    Exception failure;
    /** The thread that sends it has finished, with or without success. */
    volatile boolean posted;

    State state() {
        return state;
    }

    List<Change> numbered() {
        return numbered;
    }

    /** Number of its session; 0: none. */
    long sessionNumber() {
        return session == null ? 0 : session.session();
    }

    SessionInfo session() {
        return session;
    }

    /** Sets the changes that are to be sent, in that session. The others have an outcome. */
    void number(List<Change> changesToSend, SessionInfo sendIn) {
        session = sendIn;
        numbered = changesToSend;
        if (changesToSend.isEmpty()) {
            state = state.on(Event.ENDED);
        }
    }

    /** The writer is about to give it to a connection, which has written this many bytes. */
    void give(SessionInfo sentIn, long written) {
        session = sentIn;
        writtenBefore = written;
        state = state.on(Event.GIVEN);
    }

    /** The agent has answered. */
    void answered(Event answer) {
        state = state.on(answer);
    }

    /** Its connection is about to be closed, and has written this many bytes. */
    void closing(long written) {
        state = state.on(written > writtenBefore ? Event.CLOSED_AFTER : Event.CLOSED_BEFORE);
    }

    /** Keeps these changes, which are certainly not in the log. The others have an outcome. */
    void rest(List<Change> notInLog) {
        // The numbers of one append are contiguous.
        for (int i = 1; i < notInLog.size(); i++) {
            notInLog.get(i).request = notInLog.get(0).request + i;
        }
        numbered = notInLog;
        state = state.on(notInLog.isEmpty() ? Event.ENDED : Event.NOT_IN_LOG);
    }

    boolean mayBeInLog() {
        return exposed || state == State.IN_DOUBT || state == State.UNKNOWN;
    }

    /**
     * Keeps the changes, some of which may be in the log of an agent that is not asked now. In the
     * same session they keep their numbers, so that no two changes have the same number.
     */
    void expose(List<Change> notKnown, boolean sameSession) {
        exposed = true;
        if (sameSession) {
            state = state.on(Event.NOT_IN_LOG);
        } else {
            rest(notKnown);
        }
    }

    /** Whether it did not get all of its numbers, so that it cannot be sent again. */
    boolean broken() {
        return failure != null && !(failure instanceof IOException);
    }

    void succeed() {
        for (Change change : numbered) {
            change.pending.succeed(change);
        }
        end();
    }

    /** Each of its changes has an outcome. */
    void end() {
        numbered = List.of();
        state = state.on(Event.ENDED);
    }

    boolean over() {
        return state == State.OVER;
    }

    /** An Error (OutOfMemoryError) stopped the sending thread. */
    void spoil() {
        number(changes, session);
        failure = new IllegalStateException("the sending thread failed");
        posted = true;
    }
}
