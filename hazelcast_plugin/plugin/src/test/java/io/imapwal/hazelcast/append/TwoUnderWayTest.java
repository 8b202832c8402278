package io.imapwal.hazelcast.append;

import com.hazelcast.config.Config;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.map.IMap;
import io.imapwal.hazelcast.NotAppended;
import io.imapwal.hazelcast.OutcomeUnknown;
import io.imapwal.hazelcast.member.FakeAgent;
import io.imapwal.hazelcast.member.FakeLog;
import io.imapwal.hazelcast.member.Members;
import io.imapwal.hazelcast.member.OnAppend;
import io.imapwal.hazelcast.member.WalPlugin;
import io.imapwal.wire.AgentSettings;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestInfo;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

import static io.imapwal.hazelcast.member.Members.eventually;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

/**
 * A second message is sent before the first is answered: what callers get, and what is in the log,
 * when the first fails.
 */
class TwoUnderWayTest {
    private static FakeLog log;
    private static FakeAgent agent;
    private static HazelcastInstance member;
    private static ExecutorService callers;
    private IMap<String, Integer> map;

    @BeforeAll
    static void start() throws Exception {
        log = new FakeLog();
        agent = new FakeAgent(log).start();
        Config config = Members.config("two", Members.port(), agent.endpoint());
        config.addMapConfig(Members.map("elsewhere",
                agent.endpoint().replace("/agent.sock", "/./agent.sock")));
        member = Members.start(config);
        callers = Executors.newCachedThreadPool();
    }

    @AfterAll
    static void stop() throws Exception {
        callers.shutdownNow();
        member.shutdown();
        agent.close();
    }

    @BeforeEach
    void map(TestInfo info) throws Exception {
        agent.start();
        agent.faults.onAppend = OnAppend.ACK;
        agent.faults.delayMs = 0;
        map = member.getMap(info.getTestMethod().orElseThrow().getName());
        eventually(() -> {
            map.set("probe", 0);
            return true;
        });
        map.remove("probe");
        // Settling the doubts of the test before appends their keys once more.
        eventually(() -> WalPlugin.of(member).maps().reconciler().idle());
    }

    /**
     * Sets "first", and sets "second" while the agent processes the first. They are in different
     * partitions.
     */
    private List<CompletableFuture<Void>> twoUnderWay(OnAppend fault) throws Exception {
        agent.faults.holdsForNext = true;
        agent.faults.onAppend = fault;
        int before = agent.appends;
        int ahead = agent.sentAhead;
        List<CompletableFuture<Void>> calls = new ArrayList<>();
        calls.add(CompletableFuture.runAsync(() -> map.set("first", 1), callers));
        eventually(() -> agent.appends == before + 1);
        agent.faults.onAppend = OnAppend.ACK;
        // The plug-in sends the second message after half of the usual duration of a message, which
        // is some milliseconds. Nothing shows when that time has passed.
        Thread.sleep(110);
        calls.add(CompletableFuture.runAsync(() -> map.set("second", 2), callers));
        eventually(() -> agent.sentAhead > ahead || calls.get(1).isDone());
        assertTrue(agent.sentAhead > ahead, () -> "the second message waited for the first: "
                + calls);
        return calls;
    }

    private static Throwable failure(CompletableFuture<Void> call) {
        return assertThrows(CompletionException.class, call::join).getCause();
    }

    private long appended(String key) {
        byte[] bytes = WalPlugin.of(member).member().nodeEngine().toData(key).toByteArray();
        return log.appended().stream().filter(record -> Arrays.equals(record.key(), bytes)
                && !record.deleted()).count();
    }

    @Test
    void bothChangesAreAcknowledged() throws Exception {
        long first = appended("first");
        long second = appended("second");
        twoUnderWay(OnAppend.ACK).forEach(CompletableFuture::join);
        assertEquals(first + 1, appended("first"));
        assertEquals(second + 1, appended("second"));
        assertEquals(List.of(), agent.violations);
    }

    @Test
    void refusalOfFirstFailsOnlyItsCaller() throws Exception {
        int before = agent.refusedAfterAnother;
        long first = appended("first");
        long second = appended("second");
        List<CompletableFuture<Void>> calls = twoUnderWay(OnAppend.FULL_ONCE);
        assertInstanceOf(NotAppended.class, failure(calls.get(0)));
        calls.get(1).join();
        // The agent may count it after the next connection has appended it.
        eventually(() -> agent.refusedAfterAnother == before + 1);
        assertEquals(first, appended("first"));
        assertEquals(second + 1, appended("second"));
        assertFalse(map.containsKey("first"));
        assertEquals(2, map.get("second"));
    }

    /** Both are sent again if the first was not appended, otherwise only the second. */
    @ParameterizedTest
    @ValueSource(strings = {"BREAK_BEFORE", "BREAK_AFTER"})
    void eachIsAppendedOnceWhenConnectionBreaks(OnAppend fault) throws Exception {
        long first = appended("first");
        long second = appended("second");
        twoUnderWay(fault).forEach(CompletableFuture::join);
        assertEquals(first + 1, appended("first"));
        assertEquals(second + 1, appended("second"));
    }

    @Test
    void bothAreInDoubtWhenAgentDies() throws Exception {
        List<CompletableFuture<Void>> calls = twoUnderWay(OnAppend.DIE_AFTER);
        for (CompletableFuture<Void> call : calls) {
            assertInstanceOf(OutcomeUnknown.class, failure(call));
        }
        agent.faults.delayMs = 0;
        agent.start();
        eventually(() -> Integer.valueOf(1).equals(map.get("first")));
        assertFalse(map.containsKey("second"));
    }

    @Test
    void secondIsSentAgainAfterUnknownOutcomeOfFirst() throws Exception {
        List<CompletableFuture<Void>> calls = twoUnderWay(OnAppend.UNKNOWN_AFTER);
        assertInstanceOf(OutcomeUnknown.class, failure(calls.get(0)));
        calls.get(1).join();
        eventually(() -> Integer.valueOf(1).equals(map.get("first")));
        assertEquals(2, map.get("second"));
    }

    @Test
    void twoAddressesOfOneAgentAreTwoSessions() throws Exception {
        IMap<String, Integer> elsewhere = member.getMap("elsewhere");
        List<CompletableFuture<Void>> calls = new ArrayList<>();
        for (int thread = 0; thread < 16; thread++) {
            IMap<String, Integer> target = thread % 2 == 0 ? map : elsewhere;
            String name = "two" + thread + ".";
            calls.add(CompletableFuture.runAsync(() -> {
                for (int number = 0; number < 100; number++) {
                    target.set(name + number, number);
                    assertEquals(1, appended(name + number));
                }
            }, callers));
        }
        for (CompletableFuture<Void> call : calls) {
            call.get(30, TimeUnit.SECONDS);
        }
    }

    @Test
    void callersWithoutChangesBlockNoOtherUnderLoad() throws Exception {
        // The thread that sends next takes callers without changes from the queue. A caller that
        // has ended must not become the leader.
        List<CompletableFuture<Void>> calls = new ArrayList<>();
        long until = System.nanoTime() + 3_000_000_000L;
        AgentLink link = WalPlugin.of(member).maps().links().of(AgentSettings.of(map.getName(),
                member.getConfig().findMapConfig(map.getName()).getMapStoreConfig()
                .getProperties()));
        for (int thread = 0; thread < 24; thread++) {
            String name = "g" + thread + ".";
            boolean greets = thread % 3 == 0;
            calls.add(CompletableFuture.runAsync(() -> {
                for (int number = 0; System.nanoTime() < until; number++) {
                    if (greets) {
                        link.connect();
                    } else {
                        map.set(name + number % 50, number);
                    }
                }
            }, callers));
        }
        for (CompletableFuture<Void> call : calls) {
            call.get(30, TimeUnit.SECONDS);
        }
    }

    @Test
    void acknowledgedChangesAreInLogOnceUnderFaults() throws Exception {
        long seed = System.nanoTime();
        Random chance = new Random(seed);
        agent.faults.delayMs = 1;
        int ahead = agent.sentAhead;
        int threads = 32;
        int each = 120;
        AtomicInteger acknowledged = new AtomicInteger();
        AtomicInteger refused = new AtomicInteger();
        List<CompletableFuture<Void>> calls = new ArrayList<>();
        for (int thread = 0; thread < threads; thread++) {
            String name = "k" + thread + ".";
            calls.add(CompletableFuture.runAsync(() -> {
                for (int number = 0; number < each; number++) {
                    try {
                        map.set(name + number, number);
                        acknowledged.incrementAndGet();
                        assertEquals(1, appended(name + number), () -> "seed " + seed);
                    } catch (NotAppended e) {
                        refused.incrementAndGet();
                        assertEquals(0, appended(name + number), () -> "seed " + seed);
                    } catch (OutcomeUnknown e) {
                        assertTrue(appended(name + number) <= 1, () -> "seed " + seed);
                    }
                }
            }, callers));
        }
        CompletableFuture<Void> all =
                CompletableFuture.allOf(calls.toArray(CompletableFuture[]::new));
        OnAppend[] faults =
                {OnAppend.FULL_ONCE, OnAppend.BREAK_AFTER, OnAppend.BREAK_BEFORE};
        while (!all.isDone()) {
            // Random times: faults must meet each step of a message.
            Thread.sleep(chance.nextInt(20));
            agent.faults.onAppend = faults[chance.nextInt(faults.length)];
        }
        all.get(60, TimeUnit.SECONDS);
        assertTrue(acknowledged.get() > each && refused.get() > 0, acknowledged + " acknowledged, "
                + refused + " refused");
        assertTrue(agent.sentAhead > ahead, "no message was ever sent ahead");
        assertEquals(List.of(), agent.violations);
    }
}
