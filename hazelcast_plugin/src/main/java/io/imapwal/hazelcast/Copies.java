package io.imapwal.hazelcast;

import java.util.List;

/**
 * How many logs get each change of a map.
 *
 * @param count  logs that get a change
 * @param acks   logs that must have it before its caller returns
 * @param slowMs an agent that takes longer for an append, in milliseconds, is left out while others
 *               can replace it
 * @param others the agents besides the member's own, in the order in which they are used
 */
record Copies(int count, int acks, int slowMs, List<Target> others) {
    static final Copies ONE = new Copies(1, 1, 500, List.of());

    /** Another agent, and its secrets: this member's key and token, and that agent's public key. */
    record Target(AgentEndpoint endpoint, AgentSecrets secrets) {
    }

    /** Whether a plug-in has its session in several logs. */
    boolean shared() {
        return count > 1;
    }
}
