package io.imapwal.wire;

import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import java.util.function.Function;

/**
 * The agents that a member uses. There is one identity for all connections to one endpoint: an
 * agent gives each identity a session, and two endpoints may be two addresses of one agent.
 */
public final class Agents {
    private final ConcurrentMap<AgentEndpoint, Candidates> candidates = new ConcurrentHashMap<>();
    private final Function<AgentSettings, Candidates> make;

    public Agents(Function<AgentSettings, Candidates> make) {
        this.make = make;
    }

    /** The member's own agent of these settings, and those for copies. */
    public Candidates of(AgentSettings settings) {
        return candidates.computeIfAbsent(settings.agent(), agent -> make.apply(settings));
    }

    public void close() {
        candidates.values().forEach(Candidates::close);
    }
}
