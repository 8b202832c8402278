package io.imapwal.hazelcast.append;

import com.hazelcast.logging.Logger;
import io.imapwal.hazelcast.OutcomeUnknown;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Supplier;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

/** Which caller sends, and which one leads. The test decides when the agent answers. */
@Timeout(30)
class InFlightWindowTest {
    private static final long MILLISECOND = 1_000_000;
    private final AtomicLong clock = new AtomicLong();
    private final ReentrantLock wire = new ReentrantLock();
    private final Agent agent = new Agent();
    /** The times that the window has read. */
    private final BlockingQueue<Long> reads = new LinkedBlockingQueue<>();
    private final InFlightWindow window = new InFlightWindow(agent, wire, this::readClock,
            Logger.getLogger(InFlightWindowTest.class));
    private final ExecutorService callers = Executors.newCachedThreadPool();

    private final class Agent implements InFlightWindow.Sender {
        final BlockingQueue<InFlightAppend> sent = new LinkedBlockingQueue<>();
        /** Appends whose leader waits for the answer, so that no thread holds the wire. */
        final BlockingQueue<InFlightAppend> awaited = new LinkedBlockingQueue<>();
        final BlockingQueue<Runnable> answers = new LinkedBlockingQueue<>();
        final List<String> end = new ArrayList<>();
        volatile boolean ready = true;

        @Override
        public boolean isReady() {
            assertTrue(wire.isHeldByCurrentThread());
            return ready;
        }

        @Override
        public void send(InFlightAppend append, boolean alone) {
            assertTrue(wire.isHeldByCurrentThread());
            append.greetings.forEach(each -> {
                each.finish(null);
                each.unpark();
            });
            append.number(new ArrayList<>(append.changes), null);
            sent.add(append);
        }

        @Override
        public void settle(InFlightAppend append, Supplier<List<InFlightAppend>> open) {
            awaited.add(append);
            try {
                answers.take().run();
            } catch (InterruptedException e) {
                throw new IllegalStateException(e);
            }
            append.succeed();
        }

        @Override
        public void abandon(InFlightAppend append, IOException cause) {
            append.numbered().forEach(change -> change.pending.fail(change,
                    new OutcomeUnknown("abandoned", cause)));
            append.end();
        }

        @Override
        public void sayGoodbye() {
            end.add("goodbye");
        }

        @Override
        public void disconnect() {
            end.add("disconnect");
        }
    }

    @AfterEach
    void stop() {
        callers.shutdownNow();
    }

    private long readClock() {
        long now = clock.get();
        reads.add(now);
        return now;
    }

    /** A caller on its own thread. */
    private CompletableFuture<PendingAppend> call(int... partitions) {
        return CompletableFuture.supplyAsync(() -> {
            Change[] changes = new Change[partitions.length];
            for (int i = 0; i < changes.length; i++) {
                changes[i] = Appends.change(partitions[i]);
            }
            PendingAppend pending = Appends.pending(changes);
            window.run(pending);
            return pending;
        }, callers);
    }

    /** The append that a leader has just sent, and now waits for. */
    private InFlightAppend ledAppend() throws InterruptedException {
        InFlightAppend append = agent.sent.take();
        while (agent.awaited.take() != append) {
            Thread.onSpinWait();
        }
        return append;
    }

    private void answer() {
        agent.answers.add(() -> { });
    }

    /** One append of this duration. The usual time, which was 0, becomes an eighth of it. */
    private void oneAppend(long milliseconds) throws Exception {
        CompletableFuture<PendingAppend> only = call(0);
        ledAppend();
        clock.addAndGet(milliseconds * MILLISECOND);
        answer();
        only.get();
    }

    @Test
    void singleCallerLeadsAndSendsOneAppend() throws Exception {
        CompletableFuture<PendingAppend> only = call(1, 2);
        assertEquals(2, agent.sent.take().changes.size());
        answer();
        assertNull(only.get().failure());
        assertTrue(agent.sent.isEmpty());
    }

    @Test
    void atMostTwoAppendsAreInFlight() throws Exception {
        CompletableFuture<PendingAppend> first = call(0);
        InFlightAppend oldest = ledAppend();
        CompletableFuture<PendingAppend> second = call(1);
        InFlightAppend next = agent.sent.take();
        CompletableFuture<PendingAppend> third = call(2);
        // The answer to the first makes room. The third is sent after that, or after the answer to
        // the second, if the thread that sent the second still holds the wire.
        answer();
        answer();
        answer();
        first.get();
        assertEquals(2, agent.sent.take().changes.get(0).stamp.partition());
        second.get();
        third.get();
        assertTrue(oldest.over() && next.over());
    }

    @Test
    void secondAppendWaitsHalfOfUsualTime() throws Exception {
        oneAppend(80);
        CompletableFuture<PendingAppend> first = call(0);
        ledAppend();
        // The usual time is 10 ms now.
        clock.addAndGet(4 * MILLISECOND);
        reads.clear();
        CompletableFuture<PendingAppend> early = call(1);
        reads.take();
        clock.addAndGet(MILLISECOND);
        CompletableFuture<PendingAppend> late = call(2);
        assertEquals(2, agent.sent.take().changes.size());
        answer();
        answer();
        first.get();
        early.get();
        late.get();
    }

    @Test
    void secondAppendHasAsManyChangesAsFirst() throws Exception {
        CompletableFuture<PendingAppend> first = call(0, 1, 2);
        ledAppend();
        CompletableFuture<PendingAppend> second = call(3);
        CompletableFuture<PendingAppend> third = call(4, 5);
        assertEquals(3, agent.sent.take().changes.size());
        answer();
        answer();
        first.get();
        second.get();
        third.get();
    }

    @Test
    void secondAppendNeedsReadyConnection() throws Exception {
        agent.ready = false;
        CompletableFuture<PendingAppend> first = call(0);
        InFlightAppend oldest = ledAppend();
        CompletableFuture<PendingAppend> second = call(1);
        answer();
        first.get();
        assertTrue(oldest.over());
        // The caller of the second leads now.
        agent.sent.take();
        answer();
        assertNull(second.get().failure());
    }

    @Test
    void errorWhileLeaderWaitsEndsAllAppends() throws Exception {
        CompletableFuture<PendingAppend> first = call(0);
        ledAppend();
        CompletableFuture<PendingAppend> second = call(1);
        agent.sent.take();
        agent.answers.add(() -> {
            throw new OutOfMemoryError("of the test");
        });
        assertInstanceOf(OutOfMemoryError.class, failure(first));
        assertInstanceOf(OutcomeUnknown.class, second.get().failure());
        assertTrue(!wire.isLocked());
        // The window continues to work.
        CompletableFuture<PendingAppend> third = call(2);
        agent.sent.take();
        answer();
        assertNull(third.get().failure());
    }

    @Test
    void callerWithoutChangesIsInNoAppend() throws Exception {
        assertTrue(call().get().done());
        assertEquals(0, agent.sent.take().changes.size());
    }

    @Test
    void closeWithoutLeaderSendsBye() {
        window.close();
        assertEquals("goodbye", agent.end.get(0));
        assertEquals("disconnect", agent.end.get(1));
    }

    @Test
    void closeWithLeaderDisconnectsWhenItIsDone() throws Exception {
        CompletableFuture<PendingAppend> first = call(0);
        ledAppend();
        window.close();
        assertEquals(List.of(), agent.end);
        answer();
        first.get();
        assertEquals(List.of("disconnect"), agent.end);
    }

    private static Throwable failure(CompletableFuture<?> call) {
        return assertThrows(ExecutionException.class, call::get).getCause();
    }
}
