package io.imapwal.hazelcast.append;

import io.imapwal.hazelcast.LogUnavailable;
import io.imapwal.hazelcast.NotAppended;
import io.imapwal.hazelcast.OutcomeUnknown;
import io.imapwal.wire.AgentError;
import io.imapwal.wire.SessionInfo;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

import java.io.IOException;
import java.net.SocketTimeoutException;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.concurrent.locks.ReentrantLock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

/** The table of events of {@link AgentWriter}, with an agent that is a list of answers. */
class AgentWriterTest {
    private final Channel agent = new Channel();
    private final Appends.Doubts doubts = new Appends.Doubts();
    private final ReentrantLock wire = new ReentrantLock();
    private final AgentWriter writer = new AgentWriter(agent,
            new Outcomes(doubts, Appends.NO_REPEATS, stamp -> true,
                    () -> "agent a:1"), wire, () -> 0, 1000);
    private final List<InFlightAppend> open = new ArrayList<>();

    /** An agent that appends what it gets, or fails as the next answer says. */
    private static final class Channel implements AgentWriter.Channel {
        final List<Long> log = new ArrayList<>();
        /** What happens to the next appends; null: they are acknowledged. */
        final Deque<Exception> answers = new ArrayDeque<>();
        /** What happens while the next appends are sent; null: they are sent. */
        final Deque<Exception> sends = new ArrayDeque<>();
        IOException unreachable;
        IOException schemas;
        long session = 1;
        boolean appends = true;
        boolean connected;
        long written;
        long welcomes;

        @Override
        public SessionInfo greet() throws IOException {
            if (!connected) {
                if (unreachable != null) {
                    throw unreachable;
                }
                connected = true;
                welcomes++;
            }
            return session();
        }

        @Override
        public SessionInfo session() {
            long last = log.isEmpty() ? 0 : log.get(log.size() - 1);
            return connected ? Appends.session(session, last) : null;
        }

        @Override
        public boolean isReady() {
            return connected;
        }

        @Override
        public void logSchemas(long deadlineNanos) throws IOException {
            if (schemas != null) {
                throw schemas;
            }
        }

        @Override
        public long written() {
            return connected ? written : Long.MAX_VALUE;
        }

        @Override
        public long send(SessionInfo in, List<Change> changes, long deadline) throws IOException {
            if (sends.poll() instanceof IOException e) {
                throw e;
            }
            written += 100;
            if (appends) {
                changes.forEach(change -> log.add(change.request));
            }
            return written;
        }

        @Override
        public void awaitAck(long number, long deadlineNanos) throws IOException {
            if (answers.poll() instanceof IOException e) {
                throw e;
            }
        }

        @Override
        public void failed(IOException cause) {
        }

        @Override
        public long welcomes() {
            return welcomes;
        }

        @Override
        public void sayGoodbye() {
        }

        @Override
        public void disconnect() {
            connected = false;
            appends = true;
        }
    }

    @BeforeEach
    void connect() {
        agent.connected = true;
    }

    private PendingAppend send(int partition) {
        PendingAppend pending = Appends.pending(Appends.change(partition));
        InFlightAppend append = Appends.unsent(pending.changes);
        writer.send(append, open.isEmpty());
        open.add(append);
        return pending;
    }

    private void settle() {
        while (!open.isEmpty()) {
            InFlightAppend oldest = open.get(0);
            if (oldest.over()) {
                open.remove(0);
            } else {
                writer.settle(oldest, () -> new ArrayList<>(
                        open.stream().filter(append -> !append.over()).toList()));
            }
        }
        assertTrue(!wire.isLocked());
    }

    @Test
    void acknowledgedAppendSucceeds() {
        PendingAppend pending = send(0);
        settle();
        assertTrue(pending.done());
        assertNull(pending.failure());
        assertEquals(List.of(1L), agent.log);
    }

    @Test
    void appendNotSentAtAllIsSentAgain() {
        agent.sends.add(new IOException("broken"));
        PendingAppend pending = send(0);
        settle();
        assertNull(pending.failure());
        assertEquals(List.of(1L), agent.log);
    }

    /** What was appended before the break is not sent again. The rest keeps its numbers. */
    @ParameterizedTest
    @ValueSource(booleans = {true, false})
    void eachChangeIsAppendedOnceAfterBreak(boolean appended) {
        agent.appends = appended;
        agent.answers.add(new IOException("broken"));
        PendingAppend first = send(0);
        PendingAppend second = send(1);
        settle();
        assertNull(first.failure());
        assertNull(second.failure());
        assertEquals(List.of(1L, 2L), agent.log);
    }

    @Test
    void onlySentChangesAreInDoubtWithoutReconnect() {
        agent.answers.add(new IOException("broken"));
        agent.unreachable = new IOException("no agent");
        PendingAppend first = send(0);
        agent.sends.add(new IOException("broken too"));
        PendingAppend second = send(1);
        settle();
        assertInstanceOf(OutcomeUnknown.class, first.failure());
        assertInstanceOf(NotAppended.class, second.failure());
        assertEquals(1, doubts.added.size());
    }

    @Test
    void missingAnswerIsUnknownOutcomeWithoutReconnect() {
        agent.answers.add(new SocketTimeoutException("no answer"));
        PendingAppend pending = send(0);
        settle();
        assertInstanceOf(OutcomeUnknown.class, pending.failure());
        assertEquals(0, agent.welcomes);
    }

    @Test
    void onlyTheRefusedAppendFails() {
        agent.appends = false;
        agent.answers.add(new AgentError("full", "no space"));
        PendingAppend first = send(0);
        PendingAppend second = send(1);
        settle();
        assertInstanceOf(NotAppended.class, first.failure());
        assertNull(second.failure());
        assertEquals(1, agent.log.size());
    }

    @Test
    void appendRefusedForNewerViewIsSentInIt() {
        agent.appends = false;
        agent.answers.add(new AgentError(AgentError.VOID, "view 2"));
        PendingAppend pending = send(0);
        agent.session = 2;
        settle();
        assertNull(pending.failure());
        assertEquals(List.of(1L), agent.log);
    }

    @Test
    void outcomeUnknownToAgentIsUnknown() {
        agent.answers.add(new AgentError("outcome-unknown", "the disk failed"));
        PendingAppend pending = send(0);
        settle();
        assertInstanceOf(OutcomeUnknown.class, pending.failure());
    }

    /** The caller reads what the next hello says, and no promise that the key is settled. */
    @Test
    void callerOfVoidClusterLearnsWhatToDo() {
        agent.answers.add(new AgentError("outcome-unknown", "this log was claimed"));
        agent.unreachable = new AgentError(AgentError.VOID, "restart the members of this cluster");
        PendingAppend pending = send(0);
        settle();
        String text = assertInstanceOf(OutcomeUnknown.class, pending.failure()).getMessage();
        assertTrue(text.contains("restart the members of this cluster"), text);
        assertTrue(text.contains("The change may be in the log"), text);
        assertTrue(text.contains("read the key: the log decides"), text);
        assertTrue(!text.contains("settles the key"), text);
    }

    @Test
    void supersededNodeDoesNotReconnect() {
        agent.answers.add(new AgentError("superseded", "by another"));
        send(0);
        PendingAppend second = send(1);
        settle();
        assertInstanceOf(OutcomeUnknown.class, second.failure());
        assertEquals(0, agent.welcomes);
    }

    @Test
    void appendWithoutItsSchemasIsNotSent() {
        agent.schemas = new AgentError("storage-full", "no space");
        PendingAppend pending = send(0);
        settle();
        assertInstanceOf(NotAppended.class, pending.failure());
        assertEquals(List.of(), agent.log);
    }

    @Test
    void callersWithoutChangesFailWithoutAgent() {
        agent.connected = false;
        agent.unreachable = new IOException("no agent");
        PendingAppend greeting = Appends.pending();
        InFlightAppend append = new InFlightAppend();
        append.greetings = List.of(greeting);
        writer.send(append, true);
        assertInstanceOf(LogUnavailable.class, greeting.failure());
        assertTrue(append.over());
    }

    @Test
    void appendIsInDoubtIfSendingThreadFailedAfterSend() {
        for (boolean sent : new boolean[] {true, false}) {
            agent.connected = true;
            PendingAppend pending = Appends.pending(Appends.change(0));
            InFlightAppend append = Appends.unsent(pending.changes);
            if (sent) {
                writer.send(append, true);
            }
            append.spoil();
            open.add(append);
            settle();
            assertEquals(sent, pending.failure() instanceof OutcomeUnknown);
        }
    }
}
