package io.imapwal.hazelcast.member;

import com.hazelcast.config.Config;
import com.hazelcast.core.HazelcastInstance;
import io.imapwal.hazelcast.LogUnavailable;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

import java.io.IOException;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;

import static io.imapwal.hazelcast.member.Members.eventually;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

/**
 * A member waits for an agent that works for long, such as one that merges all logs with a small
 * part of a processor. It does not wait for an agent that stops working.
 */
class BusyAgentTest {
    private static final String NEVER = "600000";
    private static final int LONG_MS = 3000;
    /** Longer than a time-out of 3 s, which is longer than a busy machine stops a process. */
    private static final int LONGER_MS = 5000;

    private final FakeLog log = new FakeLog();
    private FakeAgent agent;
    private HazelcastInstance member;

    private void start(String timeoutMs, String restoreTimeoutMs) throws IOException {
        agent = new FakeAgent(log).start();
        Config config = Members.config("busy", Members.port(), agent.endpoint());
        config.getMapConfig("*").getMapStoreConfig()
                .setProperty("agent-timeout-ms", "1000").setProperty("connect-timeout-ms", "500")
                .setProperty("timeout-ms", timeoutMs)
                .setProperty("restore-timeout-ms", restoreTimeoutMs);
        member = Members.start(config);
    }

    @AfterEach
    void stop() throws Exception {
        agent.faults.frozen = false;
        member.shutdown();
        agent.close();
        assertEquals(List.of(), agent.violations);
    }

    private void setAndGet() {
        member.getMap("orders").set(1, 1);
        assertEquals(1, member.getMap("orders").get(1));
    }

    @Test
    void firstHelloIsAwaitedWhileTheLoopAnswers() throws Exception {
        start("3000", NEVER);
        agent.faults.helloDelayMs = LONGER_MS;
        CompletableFuture<?> opened = CompletableFuture.runAsync(() -> member.getMap("orders"));
        eventually(() -> agent.hellos > 0);
        // The hello under way is still delayed, but no later one.
        agent.faults.helloDelayMs = 0;
        opened.join();
        setAndGet();
        assertEquals(1, agent.writers.values().iterator().next(), "connections that write");
    }

    @Test
    void firstHelloOfHungLoopFails() throws Exception {
        start("1000", NEVER);
        agent.faults.loopHangs = true;
        agent.faults.helloDelayMs = Long.MAX_VALUE;
        assertThrows(LogUnavailable.class, () -> member.getMap("orders"));
    }

    @Test
    void slowAdmissionIsNotHungAgent() throws Exception {
        start("10000", NEVER);
        agent.faults.admissionDelayMs = LONG_MS;
        CompletableFuture<?> opened = CompletableFuture.runAsync(() -> member.getMap("orders"));
        eventually(() -> agent.greetings > 1);
        agent.faults.admissionDelayMs = 0;
        opened.join();
        setAndGet();
    }

    @Test
    void mergeIsAwaitedWhileItProgresses() throws Exception {
        start("10000", "3000");
        agent.faults.mergeDelayMs = LONGER_MS;
        setAndGet();
    }

    @Test
    void mergeWithoutProgressFails() throws Exception {
        start("10000", "1000");
        agent.faults.mergeDelayMs = Long.MAX_VALUE;
        agent.faults.mergeHangs = true;
        assertThrows(LogUnavailable.class, () -> member.getMap("orders"));
    }

    @Test
    void stoppedAgentIsNoticedDuringMerge() throws Exception {
        start(NEVER, NEVER);
        agent.faults.mergeDelayMs = Long.MAX_VALUE;
        CompletableFuture<?> opened = CompletableFuture.runAsync(() -> member.getMap("orders"));
        eventually(() -> agent.merges > 0 && agent.beats > 0);
        agent.faults.frozen = true;
        CompletionException e = assertThrows(CompletionException.class, opened::join);
        assertInstanceOf(LogUnavailable.class, e.getCause());
        assertTrue(e.getMessage().contains("has not answered for 1000 ms"), e.getMessage());
    }
}
