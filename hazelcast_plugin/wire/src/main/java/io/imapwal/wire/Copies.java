package io.imapwal.wire;

import java.util.Collections;
import java.util.List;
import java.util.Set;
import java.util.stream.Collectors;

/** How many logs get each change of a map. */
public final class Copies {
    static final Copies ONE = new Copies(1, 1, 500, 16 << 20, Collections.emptyList());

    private final int count;
    private final int acks;
    private final int slowMs;
    private final int again;
    private final List<Target> others;

    /**
     * @param count  logs that get a change
     * @param acks   logs that must have it before its caller returns
     * @param slowMs an agent that takes longer for an append, in milliseconds, is left out while
     *               others can replace it
     * @param again  how many bytes of changes with fewer copies are kept, to copy them again; 0:
     *               none
     * @param others the agents besides the member's own, in the order in which they are used
     */
    Copies(int count, int acks, int slowMs, int again, List<Target> others) {
        this.count = count;
        this.acks = acks;
        this.slowMs = slowMs;
        this.again = again;
        this.others = others;
    }

    /** Another agent, and its secrets: this member's key and token, and that agent's public key. */
    static final class Target {
        final AgentEndpoint endpoint;
        final AgentSecrets secrets;

        Target(AgentEndpoint endpoint, AgentSecrets secrets) {
            this.endpoint = endpoint;
            this.secrets = secrets;
        }
    }

    public int count() {
        return count;
    }

    public int acks() {
        return acks;
    }

    public int slowMs() {
        return slowMs;
    }

    public int again() {
        return again;
    }

    List<Target> others() {
        return others;
    }

    /**
     * All maps with one agent use one link. So a map with other copies than the first one would get
     * fewer or more than its configuration says.
     *
     * @param used the copies of the link
     * @throws IllegalStateException these copies differ from those
     */
    public void require(Copies used, String map, AgentEndpoint agent) {
        if (count != used.count || acks != used.acks || !agents().equals(used.agents())) {
            throw new IllegalStateException("map \"" + map + "\" has " + text()
                    + ", and this member uses agent " + agent + " with " + used.text()
                    + " for another map. All maps of a member with the same agent need the same"
                    + " copies, acks and copy-agents: change the configuration, and restart the"
                    + " member");
        }
    }

    private Set<AgentEndpoint> agents() {
        return others.stream().map(other -> other.endpoint).collect(Collectors.toSet());
    }

    private String text() {
        return "copies " + count + ", acks " + acks + " and " + (others.isEmpty() ? "no copy-agents"
                : "copy-agents " + others.stream().map(other -> other.endpoint.toString())
                    .collect(Collectors.joining(", ")));
    }

    /** Whether a plug-in has its session in several logs. */
    public boolean shared() {
        return count > 1;
    }
}
