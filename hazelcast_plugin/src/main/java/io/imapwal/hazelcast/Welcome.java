package io.imapwal.hazelcast;

import java.util.Map;
import java.util.UUID;

/**
 * What the agent said to a hello.
 *
 * @param clusterId     the cluster id the hello carried; changes made under another one need another hello
 * @param node          the agent's node name
 * @param session       from the node's manifest, the same again for every hello of one plug-in start
 * @param incarnation   of this cluster id
 * @param lastRequest   highest request of this session that is durable
 * @param maxValueBytes largest value the agent takes; 0: it did not say
 */
record Welcome(UUID clusterId, String node, long session, long incarnation, long lastRequest, long maxValueBytes) {

    static Welcome of(UUID clusterId, Map<?, ?> answer) throws ProtocolException {
        long protocol = number(answer, "protocol");
        if (protocol != AgentConnection.PROTOCOL) {
            throw new ProtocolException("the agent speaks protocol " + protocol + ", this plug-in " + AgentConnection.PROTOCOL);
        }
        Object limit = answer.get("max_value_bytes");
        return new Welcome(clusterId, String.valueOf(answer.get("node")), number(answer, "session"), number(answer, "incarnation"),
                number(answer, "last_request"), limit instanceof Long value ? value : 0);
    }

    private static long number(Map<?, ?> answer, String name) throws ProtocolException {
        if (answer.get(name) instanceof Long value) {
            return value;
        }
        throw new ProtocolException("the agent's welcome has no number \"" + name + "\"");
    }
}
