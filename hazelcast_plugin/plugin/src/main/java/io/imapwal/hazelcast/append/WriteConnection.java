package io.imapwal.hazelcast.append;

import com.hazelcast.internal.serialization.impl.compact.Schema;
import com.hazelcast.logging.ILogger;
import io.imapwal.wire.AgentConnection;
import io.imapwal.wire.AgentError;
import io.imapwal.wire.AgentSettings;
import io.imapwal.wire.Membership;
import io.imapwal.wire.MsgpackWriter;
import io.imapwal.wire.SessionInfo;

import java.io.IOException;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;

/**
 * The connection of one member to its agent for changes. It is opened when it is needed, and
 * greeted in the newest known view. Schemas are logged before the changes that need them.
 */
final class WriteConnection implements AppendConnection {
    private static final int BUFFER_BYTES = 64 * 1024;
    private static final int KEPT_BUFFER_BYTES = 1 << 20;
    private static final long MIN_PAUSE_MS = 50;
    private static final long MAX_PAUSE_MS = 1000;
    private static final long GOODBYE_MS = 500;

    private final AgentSettings settings;
    private final AgentConnection.Identity identity;
    private final SchemaLog.Logged logged;
    private final Supplier<String> agent;
    private final Runnable refused;
    private final ILogger logger;

    private AgentConnection connection;
    private MsgpackWriter payload = new MsgpackWriter(BUFFER_BYTES);
    private long pauseMs = MIN_PAUSE_MS;
    private volatile long pausedUntilNanos = System.nanoTime();
    /**
     * This member at the last failure. In another cluster it has another UUID, and then tries again
     * at once.
     */
    private volatile Membership paused;
    /** Why there is no connection; null while there is one. */
    private volatile IOException lastFailure;

    private volatile SessionInfo newest;
    private volatile long welcomes;
    private volatile boolean learned;
    private volatile boolean recheck;
    private volatile boolean closing;

    /**
     * @param agent   name of the agent, for messages
     * @param refused is called when the agent refuses this member because of a newer view
     */
    WriteConnection(AgentSettings settings, AgentConnection.Identity identity,
                    SchemaLog.Logged logged, Supplier<String> agent, Runnable refused,
                    ILogger logger) {
        this.settings = settings;
        this.identity = identity;
        this.logged = logged;
        this.agent = agent;
        this.refused = refused;
        this.logger = logger;
    }

    @Override
    public SessionInfo newest() {
        return newest;
    }

    @Override
    public long welcomes() {
        return welcomes;
    }

    @Override
    public IOException failure() {
        return lastFailure;
    }

    @Override
    public void learned() {
        learned = true;
    }

    @Override
    public void recheck() {
        recheck = true;
    }

    @Override
    public void stop() {
        closing = true;
    }

    @Override
    public SessionInfo session() {
        return connection == null ? null : connection.session();
    }

    @Override
    public boolean isReady() {
        return connection != null && connection.current(identity) && !lacksSchemas();
    }

    @Override
    public long written() {
        return connection == null ? Long.MAX_VALUE : connection.written();
    }

    @Override
    public void failed(IOException cause) {
        lastFailure = cause;
    }

    /** @throws IOException there is no agent, it refuses, or the last attempt was a moment ago */
    @Override
    public SessionInfo greet() throws IOException {
        if (closing) {
            throw new IOException("the member is shutting down");
        }
        boolean checked = !recheck;
        recheck = false;
        if (checked && !isLeftOut() && connection != null && connection.current(identity)) {
            return connection.session();
        }
        disconnect();
        boolean newView = learned;
        learned = false;
        IOException failure = lastFailure;
        if (!newView && failure != null && isPaused()) {
            throw failure;
        }
        long from = System.nanoTime();
        try {
            // Before the first welcome no map is open, so no operation waits for it. The agent may
            // merge all logs, claim the log and admit members at the same time.
            connection = AgentConnection.open(settings, identity, "write", newest == null);
            if (!connection.current(identity)) {
                disconnect();
                throw new IOException("this member learned of a newer view, or joined another"
                        + " cluster, during its hello");
            }
        } catch (IOException e) {
            pause(e, System.nanoTime() - from);
            throw e;
        }
        return greeted(connection.session());
    }

    private boolean isLeftOut() {
        return identity.view().barred(identity.membership().member()) != null;
    }

    private void pause(IOException cause, long spentNanos) {
        if (AgentError.isVoid(cause)) {
            refused.run();
        }
        Membership now = identity.membership();
        pauseMs = now.equals(paused) ? Math.min(MAX_PAUSE_MS, pauseMs * 2) : 2 * MIN_PAUSE_MS;
        paused = now;
        // A connect that hangs delays callers for at most half of their time.
        long pauseNanos = Math.max(TimeUnit.MILLISECONDS.toNanos(pauseMs), spentNanos);
        pausedUntilNanos = System.nanoTime() + pauseNanos;
        IOException known = lastFailure;
        if (known == null || !String.valueOf(known.getMessage()).equals(cause.getMessage())) {
            String until = settings.copies().shared() ? ": "
                    : "; changes are refused until there is one: ";
            logger.warning("imap-wal: no connection to " + agent.get() + until
                    + AgentError.reason(cause));
        }
        lastFailure = cause;
    }

    private SessionInfo greeted(SessionInfo now) {
        SessionInfo former = newest;
        if (former == null || former.session() != now.session()
                || !former.node().equals(now.node())) {
            logged.clear();
        }
        lastFailure = null;
        pauseMs = MIN_PAUSE_MS;
        newest = now;
        welcomes++;
        logger.info("imap-wal: connected to " + agent.get() + ": session " + now.session()
                + ", incarnation " + now.incarnation());
        return now;
    }

    @Override
    public long send(SessionInfo session, List<Change> changes, long deadlineNanos)
            throws IOException {
        payload = emptied(payload);
        write(payload, session, changes);
        return send(session.session(), changes.get(0).request, changes.size(), payload,
                deadlineNanos);
    }

    /** A buffer for the next payload: this one, unless it has become large. */
    static MsgpackWriter emptied(MsgpackWriter payload) {
        return payload.array().length > KEPT_BUFFER_BYTES ? new MsgpackWriter(BUFFER_BYTES)
                : payload.clear();
    }

    /** Writes the payload of an append. */
    static void write(MsgpackWriter payload, SessionInfo session, List<Change> changes) {
        for (Change change : changes) {
            change.write(payload, session.incarnation(), session.session());
        }
    }

    /** As the other one, with the payload of so many changes from that request on. */
    long send(long session, long first, int count, MsgpackWriter written, long deadlineNanos)
            throws IOException {
        connection.start("append", 3).integer(session).integer(first).integer(count);
        long number = connection.number();
        connection.send(written, deadlineNanos);
        return number;
    }

    @Override
    public CopyCounts counts() {
        return CopyCounts.NONE;
    }

    @Override
    public boolean isIncomplete() {
        return false;
    }

    @Override
    public int usable() {
        return lastFailure == null ? 1 : 0;
    }

    /** Whether it does not connect now, because an attempt failed a moment ago. */
    boolean isPaused() {
        return lastFailure != null && System.nanoTime() - pausedUntilNanos < 0
                && identity.membership().equals(paused);
    }

    /** Whether the agent's log lacks schemas. */
    boolean lacksSchemas() {
        return !logged.missing().isEmpty();
    }

    /** The number of the next request. */
    long nextNumber() {
        return connection.number() + 1;
    }

    /** Whether there is a connection, in the newest known view. */
    boolean isCurrent() {
        return connection != null && connection.current(identity);
    }

    @Override
    public void awaitAck(long number, long deadlineNanos) throws IOException {
        connection.awaitAck(number, deadlineNanos);
    }

    @Override
    public void logSchemas(long deadlineNanos) throws IOException {
        List<Schema> missing = logged.missing();
        if (missing.isEmpty()) {
            return;
        }
        int refusals = 0;
        try {
            logSchemas(missing, deadlineNanos);
        } catch (AgentError e) {
            if (!e.code().equals(AgentError.SCHEMA_REFUSED)) {
                throw e;
            }
            // The agent refuses all of them because of one. If they are sent one by one, the others
            // are logged.
            for (Schema schema : missing) {
                refusals += logSchema(schema, deadlineNanos) ? 0 : 1;
            }
        }
        logger.info("imap-wal: " + (missing.size() - refusals) + " Compact schema(s) logged by "
                + agent.get());
    }

    private boolean logSchema(Schema schema, long deadlineNanos) throws IOException {
        try {
            logSchemas(List.of(schema), deadlineNanos);
            return true;
        } catch (AgentError e) {
            if (!e.code().equals(AgentError.SCHEMA_REFUSED)) {
                throw e;
            }
            logged.refuse(schema);
            logger.severe("imap-wal: Compact schema " + schema.getSchemaId() + " of type \""
                    + schema.getTypeName() + "\" is not in the log: " + e.getMessage()
                    + "; values that need it cannot be read after a restart of the cluster");
            return false;
        }
    }

    private void logSchemas(List<Schema> some, long deadlineNanos) throws IOException {
        payload.clear();
        some.forEach(schema -> SchemaLog.write(payload, schema));
        connection.start("metadata", 2).integer(connection.session().session())
                .integer(some.size());
        connection.ask("ack", payload, deadlineNanos);
        logged.add(some);
    }

    /** No request is unanswered. */
    @Override
    public void sayGoodbye() {
        if (connection == null) {
            return;
        }
        long until = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(GOODBYE_MS);
        try {
            connection.start("bye", 0);
            connection.ask("bye", payload.clear(), until);
        } catch (IOException | RuntimeException e) {
            logger.fine("imap-wal: bye was not sent to " + agent.get(), e);
        }
    }

    @Override
    public void disconnect() {
        if (connection != null) {
            connection.close();
            connection = null;
        }
    }
}
