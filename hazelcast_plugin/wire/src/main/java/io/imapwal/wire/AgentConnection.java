package io.imapwal.wire;

import java.io.Closeable;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;

/**
 * One connection to an agent, after hello and welcome. One thread may send the next request while
 * another waits for the oldest answer. {@link #ask} is for a connection without unanswered
 * requests.
 */
public final class AgentConnection implements Closeable {
    private static final byte[] NO_PAYLOAD = {};
    /** An answer begins with the size of its header, in this many bytes. */
    private static final int HEADER_SIZE_BYTES = 4;

    private final ZmtpConnection wire;
    private final Pulse pulse;
    private final MsgpackWriter header = new MsgpackWriter(64);
    private Identity identity;
    private SessionInfo session;
    private long number;

    private AgentConnection(ZmtpConnection wire, Pulse pulse) {
        this.wire = wire;
        this.pulse = pulse;
    }

    /**
     * The identity in a hello. It is always the same for one endpoint, except for the UUIDs of
     * member and cluster, which a merge changes.
     */
    public static final class Identity {
        private final Supplier<Membership> present;
        private final UUID pluginUuid;
        private final String pluginVersion;
        private final int partitionCount;
        private final KnownView view;
        private final Pulse pulse;
        private final int acks;
        private volatile Acknowledged acknowledged = Acknowledged.NOTHING;

        /**
         * @param present the cluster that the member is in now
         * @param acks    how many agents acknowledge a change before its caller returns, if the
         *                plug-in appends each change to several; 0: it does not
         */
        Identity(Supplier<Membership> present, UUID pluginUuid, String pluginVersion,
                int partitionCount, KnownView view, Pulse pulse, int acks) {
            this.present = present;
            this.pluginUuid = pluginUuid;
            this.pluginVersion = pluginVersion;
            this.partitionCount = partitionCount;
            this.view = view;
            this.pulse = pulse;
            this.acks = acks;
        }

        public Membership membership() {
            return present.get();
        }

        public int partitionCount() {
            return partitionCount;
        }

        public KnownView view() {
            return view;
        }

        public Pulse pulse() {
            return pulse;
        }
    }

    /** An answer: its header from the read position on, its payload, and the payload's size. */
    public static final class Answer {
        private final MsgpackReader header;
        private final MsgpackReader payload;
        private final int payloadBytes;

        private Answer(MsgpackReader header, MsgpackReader payload, int payloadBytes) {
            this.header = header;
            this.payload = payload;
            this.payloadBytes = payloadBytes;
        }

        public MsgpackReader header() {
            return header;
        }

        public MsgpackReader payload() {
            return payload;
        }

        public int payloadBytes() {
            return payloadBytes;
        }

        /** The answer in a message of these frames. */
        public static Answer of(List<byte[]> frames) throws ProtocolException {
            if (frames.size() != 1) {
                throw new ProtocolException("the agent's answer has " + frames.size()
                        + " frames instead of 1; use plug-in and agent of one release");
            }
            byte[] frame = frames.get(0);
            long size = frame.length < HEADER_SIZE_BYTES ? -1
                    : Integer.toUnsignedLong(ByteBuffer.wrap(frame).getInt());
            if (size < 0 || size > frame.length - HEADER_SIZE_BYTES) {
                throw new ProtocolException("the agent's answer of " + frame.length
                        + " bytes is shorter than its header");
            }
            int end = HEADER_SIZE_BYTES + (int) size;
            int rest = frame.length - end;
            return new Answer(new MsgpackReader(frame, HEADER_SIZE_BYTES, (int) size),
                    new MsgpackReader(frame, end, rest), rest);
        }
    }

    /**
     * Connects and says hello.
     *
     * @param patient whether the welcome may take longer than {@code timeout-ms} while the agent
     *                works; no operation may wait for that
     */
    public static AgentConnection open(AgentSettings settings, Identity identity, String purpose,
            boolean patient) throws IOException {
        Membership membership = identity.membership();
        if (membership.clusterId() == null) {
            throw new IOException("the member has not joined its cluster yet");
        }
        String barred = identity.view.barred(membership.member());
        if (barred != null) {
            throw new AgentError(AgentError.VOID, barred);
        }
        identity.pulse.check();
        long deadline = System.nanoTime()
                + TimeUnit.MILLISECONDS.toNanos(settings.connectTimeoutMs());
        String token = settings.secrets().token();
        // An agent that is busy may take as long as for a change. One that hangs is noticed by the
        // pulse.
        identity.pulse.start(identity);
        int mostMs = patient ? Math.max(settings.timeoutMs(), settings.restoreTimeoutMs())
                : settings.timeoutMs();
        AgentConnection connection = new AgentConnection(
                ZmtpConnection.open(settings.agent(), settings.secrets(), deadline,
                        () -> identity.pulse.whileTurning(settings.timeoutMs(), mostMs)),
                identity.pulse);
        try {
            connection.identity = identity;
            identity.pulse.add(connection);
            long helloDeadline = Math.max(deadline, System.nanoTime()
                    + TimeUnit.MILLISECONDS.toNanos(settings.timeoutMs()));
            // Before the hello is sent: others may be acknowledged, or learned, before its answer.
            Acknowledged acknowledged = identity.acknowledged;
            long view = identity.view.of(membership.clusterId(), membership.member());
            hello(connection.start("hello", 1), identity, membership, purpose, token);
            Object answer = connection.ask("welcome", NO_PAYLOAD, 0, helloDeadline).header.value();
            if (!(answer instanceof Map)) {
                throw new ProtocolException("the agent's welcome is not a map");
            }
            connection.session = SessionInfo.of(membership, (Map<?, ?>) answer);
            acknowledged.require(connection.session);
            if (connection.session.incarnation() < view) {
                throw new IOException("it is in view " + connection.session.incarnation()
                        + ", and this member's cluster in view " + view + ": it does not know that"
                        + " one yet, or an older copy replaced the folder of the log");
            }
            identity.view.learn(membership.clusterId(), membership.member(),
                    connection.session.incarnation());
            connection.patience(ZmtpConnection.Patience.NONE);
            return connection;
        } catch (IOException | RuntimeException e) {
            connection.close();
            throw e;
        }
    }

    /** Writes the fields of a hello, after its kind and number. */
    static void hello(MsgpackWriter hello, Identity identity, Membership membership,
            String purpose, String token) {
        boolean several = SessionInfo.PROTOCOL > SessionInfo.OLDEST_PROTOCOL;
        hello.map(8 + (several ? 1 : 0) + (token.isEmpty() ? 0 : 1) + (identity.acks > 0 ? 2 : 0));
        hello.string("protocol").integer(SessionInfo.OLDEST_PROTOCOL);
        if (several) {
            hello.string("protocol_max").integer(SessionInfo.PROTOCOL);
        }
        hello.string("cluster_id").string(membership.clusterId().toString());
        hello.string("member_uuid").string(membership.member().toString());
        hello.string("plugin_uuid").string(identity.pluginUuid.toString());
        hello.string("plugin_version").string(identity.pluginVersion);
        hello.string("partition_count").integer(identity.partitionCount);
        hello.string("purpose").string(purpose);
        hello.string("view").integer(identity.view.of(membership.clusterId(), membership.member()));
        if (!token.isEmpty()) {
            hello.string("token").string(token);
        }
        if (identity.acks > 0) {
            hello.string("shared").bool(true);
            hello.string("acks").integer(identity.acks);
        }
    }

    /** The cluster that may write. */
    public static final class Claim {
        private final String clusterId;
        private final long incarnation;
        private final boolean alive;

        private Claim(String clusterId, long incarnation, boolean alive) {
            this.clusterId = clusterId;
            this.incarnation = incarnation;
            this.alive = alive;
        }

        public String clusterId() {
            return clusterId;
        }

        /** Its newest view. */
        public long incarnation() {
            return incarnation;
        }

        /** Whether members of that view may be alive. */
        public boolean alive() {
            return alive;
        }
    }

    /**
     * The newest claim that the agent knows; null: it does not send one. It is asked without a
     * hello, because a hello may be refused.
     */
    public static Claim claim(AgentSettings settings) throws IOException {
        long deadline = System.nanoTime()
                + TimeUnit.MILLISECONDS.toNanos(settings.connectTimeoutMs());
        try (AgentConnection connection = new AgentConnection(
                ZmtpConnection.open(settings.agent(), settings.secrets(), deadline), null)) {
            connection.start("stat", 0);
            Object stat = connection.ask("stat", NO_PAYLOAD, 0, deadline).header.value();
            Object claim = stat instanceof Map ? ((Map<?, ?>) stat).get("claim") : null;
            Map<?, ?> fields = claim instanceof Map ? (Map<?, ?>) claim : Collections.emptyMap();
            Object clusterId = fields.get("cluster_id");
            Object incarnation = fields.get("incarnation");
            return clusterId instanceof String && incarnation instanceof Long
                    ? new Claim((String) clusterId, (Long) incarnation,
                            !Boolean.FALSE.equals(fields.get("alive"))) : null;
        }
    }

    /** Sets the patience for the next answers. */
    public void patience(ZmtpConnection.Patience now) {
        wire.patience(now);
    }

    public SessionInfo session() {
        return session;
    }

    /**
     * Whether its welcome was for the present UUIDs of member and cluster, in the newest known
     * view.
     */
    public boolean current(Identity identity) {
        return session.membership().equals(identity.membership())
                && session.incarnation() >= identity.view.of(session.clusterId(), session.member());
    }

    /**
     * Asks for a view of this cluster without the lost members.
     *
     * @return its number, or that of a later one
     */
    public long view(Set<UUID> members, Set<UUID> lost, long deadline) throws IOException {
        MsgpackWriter request = start("view", 1).map(4);
        request.string("cluster_id").string(session.clusterId().toString());
        request.string("member_uuid").string(session.member().toString());
        uuids(request.string("members"), members);
        uuids(request.string("lost"), lost);
        return ask("view", NO_PAYLOAD, 0, deadline).header.integer();
    }

    private static void uuids(MsgpackWriter to, Set<UUID> uuids) {
        to.array(uuids.size());
        uuids.forEach(uuid -> to.string(uuid.toString()));
    }

    /** See {@link ZmtpConnection#written()}. */
    public long written() {
        return wire.written();
    }

    /** Begins a request's header with its kind and number; {@code fields} more follow. */
    public MsgpackWriter start(String kind, int fields) {
        return header.clear().array(2 + fields).string(kind).integer(++number);
    }

    /**
     * Sends the request begun with {@link #start} and waits for its answer.
     *
     * @throws AgentError when the agent answers {@code error}; the connection can still be used
     *                    then
     * @throws IOException when anything else went wrong; the connection must be closed then
     */
    public Answer ask(String wantedKind, byte[] payload, int payloadSize, long deadlineNanos)
            throws IOException {
        send(payload, payloadSize, deadlineNanos);
        return answer(wantedKind, number, deadlineNanos);
    }

    public Answer ask(String wantedKind, MsgpackWriter payload, long deadlineNanos)
            throws IOException {
        return ask(wantedKind, payload.array(), payload.length(), deadlineNanos);
    }

    /** The first half of {@link #ask}. */
    public void send(MsgpackWriter payload, long deadlineNanos) throws IOException {
        send(payload.array(), payload.length(), deadlineNanos);
    }

    private void send(byte[] payload, int payloadSize, long deadlineNanos) throws IOException {
        try {
            wire.send(new byte[][] {header.array(), payload},
                    new int[] {header.length(), payloadSize}, deadlineNanos);
        } catch (IOException | RuntimeException e) {
            throw broken(e);
        }
    }

    /** The number of the request that was begun last. */
    public long number() {
        return number;
    }

    /** Waits for the acknowledgement of an append: of the request of that number. */
    public void awaitAck(long wantedNumber, long deadlineNanos) throws IOException {
        MsgpackReader header = answer("ack", wantedNumber, deadlineNanos).header();
        identity.acknowledged = identity.acknowledged.with(session,
                header.integer() + header.integer() - 1);
    }

    /**
     * The second half of {@link #ask}: the answer to the request of that number, which must be the
     * oldest unanswered one. Another thread may send meanwhile.
     */
    public Answer answer(String wantedKind, long wantedNumber, long deadlineNanos)
            throws IOException {
        List<byte[]> frames;
        try {
            frames = wire.receive(deadlineNanos);
        } catch (IOException | RuntimeException e) {
            throw broken(e);
        }
        Answer whole = Answer.of(frames);
        MsgpackReader answer = whole.header();
        int fields = answer.array();
        String kind = fields < 2 ? "" : answer.string();
        long answered = fields < 2 ? -1 : answer.integer();
        if (answered != wantedNumber) {
            throw new ProtocolException("the agent answered request " + answered + " instead of "
                    + wantedNumber);
        }
        if (kind.equals("error")) {
            throw new AgentError(answer.string(), answer.string());
        }
        if (!kind.equals(wantedKind)) {
            throw new ProtocolException("the agent answered \"" + kind + "\" instead of \""
                    + wantedKind + "\"");
        }
        return whole;
    }

    /** The error of a connection that was closed because the agent hangs. */
    private IOException broken(Exception e) throws IOException {
        if (pulse != null) {
            pulse.check();
        }
        if (e instanceof RuntimeException) {
            throw (RuntimeException) e;
        }
        return (IOException) e;
    }

    @Override
    public void close() {
        if (pulse != null) {
            pulse.remove(this);
        }
        wire.close();
    }
}
