package io.imapwal.hazelcast;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;

/** One append of {@link AgentLink}: what was taken from the queue for it, and how far its sending has come. */
final class InFlightAppend {
    final List<Change> changes = new ArrayList<>();
    long bytes;
    List<PendingAppend> greetings = List.of();
    /** Those of the changes that are sent, numbered; the others have their outcome. */
    List<Change> numbered = List.of();
    long deadline;
    SessionInfo session;
    /** Of the request, on its connection. */
    long number;
    /** Bytes the connection had written before; fewer than now: the message, or its front, has left. */
    long before;
    /** The append itself is being sent, or was, on the present connection. */
    boolean sending;
    /** It, or its front, has left on an earlier connection. */
    boolean sent;
    /** The agent answered that it does not know whether the message is in the log. */
    boolean unknown;
    /** Why sending it failed. */
    Exception failure;
    /** Whoever sends it is done with that, well or not. */
    volatile boolean posted;

    /** No number was given, or not all: it cannot be sent again. */
    boolean broken() {
        return failure != null && !(failure instanceof IOException);
    }

    void succeed() {
        for (Change change : numbered) {
            change.pending.succeed(change);
        }
        numbered = List.of();
    }

    /** Every change has its outcome. */
    boolean over() {
        return numbered.isEmpty();
    }
}
