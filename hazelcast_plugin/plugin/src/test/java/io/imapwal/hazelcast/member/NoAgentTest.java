package io.imapwal.hazelcast.member;

import com.hazelcast.client.HazelcastClient;
import com.hazelcast.client.config.ClientConfig;
import com.hazelcast.config.Config;
import com.hazelcast.config.IndexConfig;
import com.hazelcast.config.IndexType;
import com.hazelcast.config.MapConfig;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.map.EntryProcessor;
import com.hazelcast.map.IMap;
import com.hazelcast.query.Predicates;
import io.imapwal.hazelcast.LogUnavailable;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.Future;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.logging.Level;

import static io.imapwal.hazelcast.member.Members.eventually;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assertions.fail;

/**
 * A map whose log cannot be read never looks empty, and is available again as soon as its log can
 * be read.
 */
class NoAgentTest {
    private final List<HazelcastInstance> started = new ArrayList<>();
    private final List<FakeAgent> agents = new ArrayList<>();
    private final FakeLog log = new FakeLog();

    @AfterEach
    void stop() throws Exception {
        HazelcastClient.shutdownAll();
        started.forEach(member -> member.getLifecycleService().terminate());
        for (FakeAgent agent : agents) {
            agent.close();
        }
    }

    private FakeAgent agent() throws Exception {
        FakeAgent agent = new FakeAgent(log);
        agents.add(agent);
        return agent;
    }

    private HazelcastInstance start(Config config) {
        HazelcastInstance member = Members.start(config);
        started.add(member);
        return member;
    }

    private static Map<String, Consumer<IMap<Integer, Integer>>> operations() {
        Map<String, Consumer<IMap<Integer, Integer>>> operations = new LinkedHashMap<>();
        operations.put("get", map -> map.get(1));
        operations.put("containsKey", map -> map.containsKey(1));
        operations.put("containsValue", map -> map.containsValue(1));
        operations.put("size", IMap::size);
        operations.put("isEmpty", IMap::isEmpty);
        operations.put("values", IMap::values);
        operations.put("keySet", IMap::keySet);
        operations.put("entrySet", IMap::entrySet);
        operations.put("query", map -> map.values(Predicates.greaterThan("this", 5)));
        operations.put("getAll", map -> map.getAll(Set.of(1, 2, 3)));
        operations.put("put", map -> map.put(1, 1));
        operations.put("set", map -> map.set(1, 1));
        operations.put("putAll", map -> map.putAll(Map.of(1, 1, 2, 2)));
        operations.put("putIfAbsent", map -> map.putIfAbsent(1, 1));
        operations.put("replace", map -> map.replace(1, 1));
        operations.put("remove", map -> map.remove(1));
        operations.put("delete", map -> map.delete(1));
        operations.put("removeAll", map -> map.removeAll(Predicates.alwaysTrue()));
        operations.put("clear", IMap::clear);
        operations.put("setTtl", map -> map.setTtl(1, 5, TimeUnit.SECONDS));
        operations.put("executeOnKey", map -> map.executeOnKey(1, new Nothing()));
        operations.put("executeOnEntries", map -> map.executeOnEntries(new Nothing()));
        operations.put("tryPut", map -> map.tryPut(1, 1, 100, TimeUnit.MILLISECONDS));
        operations.put("iterator", map -> map.iterator().hasNext());
        return operations;
    }

    static final class Nothing implements EntryProcessor<Integer, Integer, Object> {
        @Override
        public Object process(Map.Entry<Integer, Integer> entry) {
            return null;
        }
    }

    private void fill(String name, int count) throws Exception {
        FakeAgent agent = agent().start();
        HazelcastInstance member = start(Members.config("fill", Members.port(), agent.endpoint()));
        IMap<Integer, Integer> map = member.getMap(name);
        for (int i = 0; i < count; i++) {
            map.set(i, i);
        }
        member.getLifecycleService().terminate();
        agent.close();
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void allOperationsFailUntilAgentStarts(boolean viaClient) throws Exception {
        fill("orders", 50);
        FakeAgent agent = agent();
        int port = Members.port();
        Config config = Members.config("absent", port, agent.endpoint());
        MapConfig orders = Members.map("orders", agent.endpoint());
        config.addMapConfig(orders);
        HazelcastInstance access = start(config);
        if (viaClient) {
            ClientConfig client = new ClientConfig().setClusterName("absent");
            client.getNetworkConfig().addAddress("127.0.0.1:" + port);
            client.setProperty("hazelcast.client.invocation.timeout.seconds", "10");
            access = HazelcastClient.newHazelcastClient(client);
        }
        HazelcastInstance through = access;
        operations().forEach((operation, run) -> {
            long from = System.nanoTime();
            Throwable failure = assertThrows(Throwable.class, () ->
                    run.accept(through.getMap("orders")), operation);
            assertTrue(String.valueOf(failure.getMessage()).contains(agent.endpoint()), operation
                    + ": " + failure);
            long ms = (System.nanoTime() - from) / 1_000_000;
            assertTrue(ms < 3000, operation + " took " + ms + " ms to fail");
        });
        agent.start();
        eventually(() -> through.getMap("orders").size() == 50);
        operations().forEach((operation, run) -> run.accept(through.getMap("orders")));
    }

    @Test
    void failedMergeGivesTextOfAgent() throws Exception {
        fill("orders", 50);
        FakeAgent agent = agent().start();
        agent.faults.readError = "the log of node n7 is missing";
        HazelcastInstance member =
                start(Members.config("unmerged", Members.port(), agent.endpoint()));
        operations().forEach((operation, run) -> {
            Throwable failure = assertThrows(Throwable.class, () ->
                    run.accept(member.getMap("orders")), operation);
            assertTrue(String.valueOf(failure.getMessage())
                    .contains("the log of node n7 is missing"), operation + ": " + failure);
        });
        agent.faults.readError = null;
        eventually(() -> member.getMap("orders").size() == 50);
    }

    @Test
    void deathOfAgentDuringRestoreLosesNothing() throws Exception {
        fill("orders", 3000);
        FakeAgent agent = agent().start();
        Config config = Members.config("middle", Members.port(), agent.endpoint());
        config.getMapConfig("*").getMapStoreConfig().setProperty("restore-chunk", "50");
        HazelcastInstance member = start(config);
        List<String> warnings = warnings(member);
        agent.faults.breakAfterLoads = 5;
        Future<Integer> size = later(() -> member.getMap("orders").size());
        eventually(() -> warnings.stream().anyMatch(text -> text.contains("\"orders\"")));
        assertFalse(size.isDone());
        agent.faults.breakAfterLoads = -1;
        agent.start();
        assertEquals(3000, size.get(15, TimeUnit.SECONDS));
    }

    @Test
    void refusedListingIsRestartedAndLosesNothing() throws Exception {
        restoredAlthough(agent -> agent.faults.goneAfterPages = 5, "listing-gone");
    }

    @Test
    void listingWithoutOnePageIsRestarted() throws Exception {
        restoredAlthough(agent -> agent.faults.skipAfterPages = 5, "have arrived");
    }

    private void restoredAlthough(Consumer<FakeAgent> fault, String why)
            throws Exception {
        fill("orders", 3000);
        FakeAgent agent = agent().start();
        Config config = Members.config("listing", Members.port(), agent.endpoint());
        config.getMapConfig("*").getMapStoreConfig().setProperty("restore-chunk", "50");
        HazelcastInstance member = start(config);
        List<String> warnings = warnings(member);
        fault.accept(agent);
        eventually(() -> member.getMap("orders").size() == 3000);
        assertTrue(warnings.stream().anyMatch(text -> text.contains("\"orders\"")
                && text.contains(why)), "warnings: " + warnings);
    }

    private static <T> Future<T> later(Callable<T> task) {
        FutureTask<T> future = new FutureTask<>(task);
        new Thread(future).start();
        return future;
    }

    private static List<String> warnings(HazelcastInstance member) {
        List<String> texts = new CopyOnWriteArrayList<>();
        member.getLoggingService().addLogListener(Level.WARNING, event ->
                texts.add(event.getLogRecord().getMessage()));
        return texts;
    }

    @Test
    void mapNeedsAgentsOfAllMembers() throws Exception {
        fill("orders", 200);
        FakeAgent present = agent().start();
        FakeAgent absent = agent();
        int port = Members.port();
        HazelcastInstance a = start(Members.config("half", port, present.endpoint()));
        HazelcastInstance b = start(Members.config("half", port + 1, absent.endpoint()));
        for (HazelcastInstance member : List.of(a, b)) {
            operations().forEach((operation, run) -> {
                try {
                    run.accept(member.getMap("orders"));
                    fail(operation + " on " + member.getName() + " succeeded");
                } catch (RuntimeException e) {
                    assertTrue(String.valueOf(e.getMessage()).contains("orders"), operation + ": "
                            + e);
                }
            });
        }
        absent.start();
        eventually(() -> a.getMap("orders").size() == 200 && b.getMap("orders").size() == 200);
        for (int i = 0; i < 200; i++) {
            assertEquals(i, b.getMap("orders").get(i));
        }
    }

    @Test
    void joiningMemberWithoutAgentLosesNothing() throws Exception {
        fill("orders", 200);
        FakeAgent present = agent().start();
        FakeAgent absent = agent();
        int port = Members.port();
        HazelcastInstance a = start(Members.config("joiner", port, present.endpoint()));
        assertEquals(200, a.getMap("orders").size());
        HazelcastInstance b = start(Members.config("joiner", port + 1, absent.endpoint()));
        // Nothing shows that no partition will migrate to the member without an agent.
        Thread.sleep(1000);
        IMap<Integer, Integer> map = a.getMap("orders");
        for (int i = 0; i < 200; i++) {
            try {
                Integer value = map.get(i);
                assertEquals(i, value);
            } catch (LogUnavailable e) {
                assertTrue(e.getMessage().contains(absent.endpoint()), e.getMessage());
            }
        }
        absent.start();
        eventually(() -> b.getMap("orders").size() == 200);
        for (int i = 0; i < 200; i++) {
            assertEquals(i, b.<Integer, Integer>getMap("orders").get(i));
        }
        for (int i = 0; i < 200; i++) {
            int key = i;
            eventually(() -> {
                b.<Integer, Integer>getMap("orders").set(key, key + 1);
                return true;
            });
        }
        assertEquals(200, log.size("orders"));
    }

    @Test
    void indexedMapIsRestoredToo() throws Exception {
        fill("orders", 200);
        FakeAgent agent = agent().start();
        Config config = Members.config("index", Members.port(), agent.endpoint());
        MapConfig orders = Members.map("orders", agent.endpoint());
        orders.addIndexConfig(new IndexConfig(IndexType.SORTED, "this"));
        config.addMapConfig(orders);
        HazelcastInstance member = start(config);
        assertEquals(100, member.getMap("orders").values(Predicates.greaterEqual("this", 100))
                .size());
    }
}
