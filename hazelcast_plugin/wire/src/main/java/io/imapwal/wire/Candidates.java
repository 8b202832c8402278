package io.imapwal.wire;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import java.util.function.Supplier;

/**
 * The agents that a member may use for a map: its own, then the others of {@link Copies}. Any of
 * them can answer a read, because each reads all logs.
 */
public final class Candidates {
    /** An agent, and the identity with which this member greets it. */
    public static final class Candidate {
        private final AgentSettings settings;
        private final AgentConnection.Identity identity;

        Candidate(AgentSettings settings, AgentConnection.Identity identity) {
            this.settings = settings;
            this.identity = identity;
        }

        public AgentSettings settings() {
            return settings;
        }

        public AgentConnection.Identity identity() {
            return identity;
        }

        public AgentConnection open(String purpose, boolean patient) throws IOException {
            return AgentConnection.open(settings, identity, purpose, patient);
        }

        /** A greeted connection to it. */
        public Opened opened(String purpose, boolean patient) throws IOException {
            return new Opened(this, open(purpose, patient));
        }
    }

    /** A connection, and whose it is. */
    public static final class Opened {
        private final Candidate candidate;
        private final AgentConnection connection;

        Opened(Candidate candidate, AgentConnection connection) {
            this.candidate = candidate;
            this.connection = connection;
        }

        public Candidate candidate() {
            return candidate;
        }

        public AgentConnection connection() {
            return connection;
        }
    }

    private final List<Candidate> all = new ArrayList<>();

    /**
     * The agents see one plug-in, so they give it one session.
     *
     * @param states what beats say of this member, to its own agent only
     */
    public Candidates(AgentSettings settings, Supplier<Membership> cluster, String version,
            int partitions, Supplier<Pulse.State> states) {
        UUID plugin = UUID.randomUUID();
        KnownView view = new KnownView();
        int acks = settings.copies().shared() ? settings.copies().acks() : 0;
        List<AgentSettings> agents = new ArrayList<>();
        agents.add(settings);
        settings.copies().others().forEach(other -> agents.add(settings.at(other)));
        for (AgentSettings one : agents) {
            Pulse pulse = new Pulse(one, all.isEmpty() ? states : () -> Pulse.State.NONE);
            all.add(new Candidate(one, new AgentConnection.Identity(cluster, plugin, version,
                    partitions, view, pulse, acks)));
        }
    }

    public List<Candidate> all() {
        return all;
    }

    /** The member's own agent. */
    public Candidate own() {
        return all.get(0);
    }

    /**
     * A connection to the first agent that admits this member. While the cluster has no view, only
     * the member's own agent is asked, if it answers: it may have to wait for other nodes.
     */
    public Opened open(String purpose, boolean patient) throws IOException {
        IOException first = null;
        for (Candidate each : all) {
            try {
                return each.opened(purpose, patient);
            } catch (IOException e) {
                if (AgentError.isVoid(e) || e instanceof AgentError && !isGreeted()) {
                    throw e;
                }
                first = first == null ? e : first;
            }
        }
        throw first;
    }

    /** Whether this member was admitted by an agent, in its present cluster. */
    public boolean isGreeted() {
        AgentConnection.Identity own = own().identity();
        return own.view().of(own.membership().clusterId(), own.membership().member()) != 0;
    }

    /** The newest claim by the first agent that answers; see {@link AgentConnection#claim}. */
    public AgentConnection.Claim claim() throws IOException {
        IOException first = null;
        for (Candidate each : all) {
            try {
                return AgentConnection.claim(each.settings());
            } catch (IOException e) {
                first = first == null ? e : first;
            }
        }
        throw first;
    }

    /** When an agent last did a part of a read, as System.nanoTime(). */
    public long readNanos() {
        long newest = own().identity().pulse().readNanos();
        for (Candidate each : all) {
            long one = each.identity().pulse().readNanos();
            newest = one - newest > 0 ? one : newest;
        }
        return newest;
    }

    public void close() {
        all.forEach(each -> each.identity().pulse().close());
    }
}
