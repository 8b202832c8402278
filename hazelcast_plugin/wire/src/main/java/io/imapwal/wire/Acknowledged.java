package io.imapwal.wire;

import java.io.IOException;

/**
 * The last change that a node's agent acknowledged to this member. A welcome of that node without
 * it comes from an older copy of the log.
 *
 * <p>It counts only if no crash can lose it, which the welcome of its session says, and not in a
 * shared session, whose changes are in other logs too.
 */
final class Acknowledged {
    static final Acknowledged NOTHING = new Acknowledged(null, 0);

    private final SessionInfo session;
    private final long request;

    private Acknowledged(SessionInfo session, long request) {
        this.session = session;
        this.request = request;
    }

    /** What is known after the changes of a session up to this request were acknowledged. */
    Acknowledged with(SessionInfo acknowledging, long upTo) {
        return acknowledging.durable() && !acknowledging.shared()
                ? new Acknowledged(acknowledging, upTo) : this;
    }

    /**
     * @param welcome the answer to a hello that was sent after this acknowledgement: the agent may
     *                have counted before a later one
     * @throws IOException an older copy has replaced the log
     */
    void require(SessionInfo welcome) throws IOException {
        if (session == null || !welcome.node().equals(session.node())
                || !welcome.clusterId().equals(session.clusterId())) {
            return;
        }
        long counted = welcome.counted(session);
        if (counted >= 0 && counted < request) {
            throw older("ends at request " + counted + " of this member, and its agent has"
                    + " acknowledged request " + request);
        } else if (counted < 0 && welcome.incarnation() < session.incarnation()) {
            // The log may also have forgotten the session, but no log returns to an earlier view.
            throw older("is in view " + welcome.incarnation() + ", and its agent has acknowledged"
                    + " changes of this member in view " + session.incarnation());
        }
    }

    private IOException older(String what) {
        return new IOException("the log of node " + session.node() + " " + what + ": an older copy"
                + " replaced the node's folder. Stop the agent, bring the folder back, and start"
                + " the agent; or stop all members: when they start, they load what the copy has,"
                + " and what was changed since is lost");
    }
}
