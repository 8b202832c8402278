package io.imapwal.seatunnel;

import com.hazelcast.core.LifecycleEvent.LifecycleState;
import io.imapwal.wire.AgentEndpoint;
import io.imapwal.wire.AgentSettings;
import io.imapwal.wire.Candidates;
import io.imapwal.wire.Pulse;

import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;

/** What all maps of a member share of one agent. */
final class LogClient {
    private static final String CONTEXT = LogClient.class.getName();
    /** Settings of the plug-in for Hazelcast members, for what is not done here. */
    private static final List<String> NOT_HERE = Arrays.asList("copies", "acks", "copy-agents",
            "copy-timeout-ms", "copy-again-bytes", "read-through", "settle-timeout-ms");

    final ThisMember member;
    final AgentEndpoint agent;
    final Appender appender;
    /** For the entries of a whole map. */
    final LogReader whole;
    /** For single keys. Operations wait for it. */
    final LogReader single;
    private final Candidates agents;
    private final Doubts doubts;

    private LogClient(ThisMember member, AgentSettings settings) {
        this.member = member;
        this.agent = settings.agent();
        agents = new Candidates(settings, member::membership, version(), 0,
                () -> Pulse.State.NONE);
        whole = new LogReader(agents.own(), true);
        single = new LogReader(agents.own(), false);
        doubts = new Doubts(member, single);
        appender = new Appender(agents.own(), "agent " + agent + " of member " + member.name(),
                doubts);
        member.instance().getLifecycleService().addLifecycleListener(event -> {
            if (event.getState() == LifecycleState.SHUTDOWN) {
                close();
            }
        });
    }

    private static String version() {
        String version = LogClient.class.getPackage().getImplementationVersion();
        return version == null ? "unknown" : version;
    }

    /** @throws IllegalArgumentException naming the property and the map */
    static AgentSettings settings(String map, Properties properties) {
        for (String name : NOT_HERE) {
            if (properties.containsKey(name)) {
                throw new IllegalArgumentException("property \"" + name + "\" of map \"" + map
                        + "\" is for the plug-in of Hazelcast members; imap-wal-seatunnel does not"
                        + " have it: remove it");
            }
        }
        return AgentSettings.of(map, properties);
    }

    @SuppressWarnings("unchecked")
    /** The client for the agent that a map's settings name. */
    static LogClient of(ThisMember member, AgentSettings settings) {
        Map<AgentEndpoint, LogClient> clients = (Map<AgentEndpoint, LogClient>)
                member.instance().getUserContext()
                        .computeIfAbsent(CONTEXT, name -> new ConcurrentHashMap<>());
        return clients.computeIfAbsent(settings.agent(), agent -> new LogClient(member, settings));
    }

    private void close() {
        doubts.close();
        appender.close();
        whole.close();
        single.close();
        agents.close();
    }
}
