package io.imapwal.wire;

import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;

/** The agent's answer to a hello. */
public final class SessionInfo {
    /** The lowest and the highest version of the protocol that this plug-in speaks. */
    static final int OLDEST_PROTOCOL = 1;
    static final int PROTOCOL = 1;
    /** Sessions from this number on are in the logs of several nodes. */
    public static final long SHARED = 1L << 62;

    private final Membership membership;
    private final String node;
    private final long session;
    private final long incarnation;
    private final long lastRequest;
    private final Map<Long, Long> former;
    private final long maxValueBytes;
    private final long maxMessageBytes;
    private final boolean durable;

    /** Each parameter is what the method of its name returns. */
    public SessionInfo(Membership membership, String node, long session, long incarnation,
            long lastRequest, Map<Long, Long> former, long maxValueBytes, long maxMessageBytes,
            boolean durable) {
        this.membership = membership;
        this.node = node;
        this.session = session;
        this.incarnation = incarnation;
        this.lastRequest = lastRequest;
        this.former = former;
        this.maxValueBytes = maxValueBytes;
        this.maxMessageBytes = maxMessageBytes;
        this.durable = durable;
    }

    /** Cluster id and member UUID in the hello. Changes with others need another hello. */
    public Membership membership() {
        return membership;
    }

    /** The agent's node name. */
    public String node() {
        return node;
    }

    /** From the node's manifest; the same for every hello of one plug-in start in one view. */
    public long session() {
        return session;
    }

    /** Of this cluster id: the view. */
    public long incarnation() {
        return incarnation;
    }

    /** The highest request of this session that is durable. */
    public long lastRequest() {
        return lastRequest;
    }

    /** Of sessions in earlier views: the last request that counts. */
    public Map<Long, Long> former() {
        return former;
    }

    /** The largest value that the agent accepts; 0: unknown. */
    public long maxValueBytes() {
        return maxValueBytes;
    }

    /**
     * The largest message that the agent accepts; it disconnects a member that sends a larger one.
     * 0: unknown.
     */
    public long maxMessageBytes() {
        return maxMessageBytes;
    }

    /** Whether the agent acknowledges only what is on its storage. */
    public boolean durable() {
        return durable;
    }

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
        if (protocol < OLDEST_PROTOCOL || protocol > PROTOCOL) {
            String first = protocol < OLDEST_PROTOCOL ? "agent" : "plug-in";
            throw new ProtocolException("the agent speaks protocol " + protocol + ", this plug-in "
                    + OLDEST_PROTOCOL + " to " + PROTOCOL
                    + ": upgrade the " + first + " first");
        }
        return new SessionInfo(membership, String.valueOf(answer.get("node")),
                number(answer, "session"), number(answer, "incarnation"),
                number(answer, "last_request"), former(answer.get("former")),
                limit(answer, "max_value_bytes"), limit(answer, "max_message_bytes"),
                Boolean.TRUE.equals(answer.get("durable")));
    }

    private static long limit(Map<?, ?> answer, String name) {
        Object value = answer.get(name);
        return value instanceof Long ? (Long) value : 0;
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
        for (Object pair : list instanceof List ? (List<?>) list : Collections.emptyList()) {
            List<?> two = pair instanceof List ? (List<?>) pair : Collections.emptyList();
            if (two.size() != 2 || !(two.get(0) instanceof Long) || !(two.get(1) instanceof Long)) {
                throw new ProtocolException("a former session is [session, last_request]");
            }
            former.put((Long) two.get(0), (Long) two.get(1));
        }
        return former;
    }

    private static long number(Map<?, ?> answer, String name) throws ProtocolException {
        Object value = answer.get(name);
        if (value instanceof Long) {
            return (Long) value;
        }
        throw new ProtocolException("the agent's welcome has no number \"" + name + "\"");
    }
}
