package io.imapwal.wire;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;

/**
 * The agent's answer to a hello.
 *
 * @param membership    cluster id and member UUID in the hello; changes with others need another
 *                      hello
 * @param node          the agent's node name
 * @param session       from the node's manifest; the same for every hello of one plug-in start in
 *                      one view
 * @param incarnation   of this cluster id: the view
 * @param lastRequest   highest request of this session that is durable
 * @param former        of sessions in earlier views: the last request that counts
 * @param maxValueBytes largest value that the agent accepts; 0: unknown
 * @param maxMessageBytes largest message that it accepts; it disconnects a member that sends a
 *                        larger one. 0: unknown
 */
public record SessionInfo(Membership membership, String node, long session, long incarnation,
        long lastRequest, Map<Long, Long> former, long maxValueBytes, long maxMessageBytes) {

    /** Sessions from this number on are in the logs of several nodes. */
    public static final long SHARED = 1L << 62;

    public UUID clusterId() {
        return membership.clusterId();
    }

    public UUID member() {
        return membership.member();
    }

    /** Whether the session is in several logs, with one number. */
    public boolean shared() {
        return session >= SHARED;
    }

    public static SessionInfo of(Membership membership, Map<?, ?> answer) throws ProtocolException {
        long protocol = number(answer, "protocol");
        if (protocol < AgentConnection.OLDEST_PROTOCOL || protocol > AgentConnection.PROTOCOL) {
            String first = protocol < AgentConnection.OLDEST_PROTOCOL ? "agent" : "plug-in";
            throw new ProtocolException("the agent speaks protocol " + protocol + ", this plug-in "
                    + AgentConnection.OLDEST_PROTOCOL + " to " + AgentConnection.PROTOCOL
                    + ": upgrade the " + first + " first");
        }
        return new SessionInfo(membership, String.valueOf(answer.get("node")),
                number(answer, "session"), number(answer, "incarnation"),
                number(answer, "last_request"), former(answer.get("former")),
                limit(answer, "max_value_bytes"), limit(answer, "max_message_bytes"));
    }

    private static long limit(Map<?, ?> answer, String name) {
        return answer.get(name) instanceof Long value ? value : 0;
    }

    /**
     * The highest request of that session that is in the log and counts; -1: unknown. Of a shared
     * session: that is in as many logs as an acknowledgement needs.
     */
    public long counted(SessionInfo earlier) {
        if (!shared() && !node.equals(earlier.node) || !clusterId().equals(earlier.clusterId())) {
            return -1;
        }
        return session == earlier.session ? lastRequest : former.getOrDefault(earlier.session, -1L);
    }

    private static Map<Long, Long> former(Object list) throws ProtocolException {
        Map<Long, Long> former = new HashMap<>();
        if (list instanceof List<?> pairs) {
            for (Object pair : pairs) {
                if (!(pair instanceof List<?> two && two.size() == 2
                        && two.get(0) instanceof Long session
                        && two.get(1) instanceof Long request)) {
                    throw new ProtocolException("a former session is [session, last_request]");
                }
                former.put(session, request);
            }
        }
        return former;
    }

    private static long number(Map<?, ?> answer, String name) throws ProtocolException {
        if (answer.get(name) instanceof Long value) {
            return value;
        }
        throw new ProtocolException("the agent's welcome has no number \"" + name + "\"");
    }
}
