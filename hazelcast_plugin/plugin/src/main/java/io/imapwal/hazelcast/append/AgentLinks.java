package io.imapwal.hazelcast.append;

import io.imapwal.hazelcast.engine.ThisMember;
import io.imapwal.wire.AgentEndpoint;
import io.imapwal.wire.AgentSettings;
import io.imapwal.wire.Copies;

import java.util.Collection;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import java.util.function.Function;
import java.util.function.Predicate;

/** The links of this member to all agents that it uses, and which map has which. */
public final class AgentLinks {
    private final ConcurrentMap<AgentEndpoint, AgentLink> links = new ConcurrentHashMap<>();
    private final ThisMember member;
    private final Predicate<String> durable;
    private final Function<AgentSettings, AgentLink> make;

    /** @param durable whether a map has a log, by this member's configuration */
    public AgentLinks(ThisMember member, Predicate<String> durable,
            Function<AgentSettings, AgentLink> make) {
        this.member = member;
        this.durable = durable;
        this.make = make;
    }

    /**
     * Maps with the same agent share one link, with the timeouts of the first one. A map with
     * other {@code copies} is refused: {@link Copies#require}.
     */
    public AgentLink of(AgentSettings settings) {
        return links.computeIfAbsent(settings.agent(), agent -> make.apply(settings));
    }

    /** The link of a map by this member's configuration; null: the map has no log here. */
    public AgentLink of(String map) {
        return isDurable(map) ? of(settings(map)) : null;
    }

    public boolean isDurable(String map) {
        return durable.test(map);
    }

    public AgentSettings settings(String map) {
        return AgentSettings.of(map, member.nodeEngine().getConfig().findMapConfig(map)
                .getMapStoreConfig().getProperties());
    }

    public Collection<AgentLink> all() {
        return links.values();
    }

    public void close() {
        links.values().forEach(AgentLink::close);
    }
}
