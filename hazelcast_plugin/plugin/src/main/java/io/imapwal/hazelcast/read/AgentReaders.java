package io.imapwal.hazelcast.read;

import com.hazelcast.internal.serialization.Data;
import io.imapwal.hazelcast.LogUnavailable;
import io.imapwal.wire.AgentEndpoint;
import io.imapwal.wire.AgentError;
import io.imapwal.wire.AgentSettings;
import io.imapwal.wire.Agents;

import java.io.IOException;
import java.util.List;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;

/** The readers of all agents that this member uses. */
public final class AgentReaders {
    private final ConcurrentMap<AgentEndpoint, Readers> readers = new ConcurrentHashMap<>();
    private final Agents agents;
    private final String member;

    /** @param member its name, for messages */
    public AgentReaders(Agents agents, String member) {
        this.agents = agents;
        this.member = member;
    }

    public Readers of(AgentSettings settings) {
        return readers.computeIfAbsent(settings.agent(), agent ->
                new Readers(() -> make(settings)));
    }

    /** A new reader, which the caller closes. */
    public AgentReader make(AgentSettings settings) {
        return new AgentReader(agents.of(settings));
    }

    /**
     * The newest entries of these keys, for an operation that waits for them.
     *
     * @throws LogUnavailable the agent cannot read the log
     */
    public List<LogEntry> newest(AgentSettings settings, String map, List<Data> keys) {
        try {
            return of(settings).shared().load(map, keys, ReadWait.SHORT);
        } catch (IOException e) {
            throw unavailable(settings, map, e);
        }
    }

    public LogUnavailable unavailable(AgentSettings settings, String map, IOException e) {
        return new LogUnavailable("map \"" + map + "\": its log cannot be read from agent "
                + settings.agent() + " of member " + member + ": " + AgentError.reason(e), e);
    }

    public void close() {
        readers.values().forEach(Readers::close);
    }
}
