package io.imapwal.hazelcast.member;

import com.hazelcast.config.Config;
import com.hazelcast.config.RingbufferConfig;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.ringbuffer.OverflowPolicy;
import com.hazelcast.ringbuffer.ReadResultSet;
import com.hazelcast.ringbuffer.Ringbuffer;
import com.hazelcast.ringbuffer.StaleSequenceException;
import com.hazelcast.topic.ITopic;
import com.hazelcast.topic.Message;
import com.hazelcast.topic.ReliableMessageListener;
import io.imapwal.hazelcast.NotAppended;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.stream.IntStream;
import java.util.stream.LongStream;

import static io.imapwal.hazelcast.member.Members.eventually;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

/** Ringbuffers and reliable topics whose items are in the log. */
class DurableRingbufferTest {
    private static final String MAP = "ringbuffer:events";
    private static final int CAPACITY = 10;

    private final TestCluster cluster = new TestCluster("ringbuffers");
    private int ttlS;
    private int capacity = CAPACITY;

    private HazelcastInstance start(int number) throws Exception {
        FakeAgent agent = cluster.startAgent();
        Config config = cluster.config(number, agent)
                .setProperty("imap-wal.agent", agent.endpoint())
                .setProperty("imap-wal.durable-ringbuffers", "events")
                .setProperty("imap-wal.durable-topics", "news");
        config.addRingBufferConfig(new RingbufferConfig("events").setCapacity(capacity)
                .setTimeToLiveSeconds(ttlS));
        return cluster.start(config);
    }

    private static Ringbuffer<String> events(HazelcastInstance member) {
        return member.getRingbuffer("events");
    }

    private static void add(Ringbuffer<String> events, int from, int to) {
        IntStream.range(from, to).forEach(number -> events.add("event " + number));
    }

    private static List<String> all(Ringbuffer<String> events) {
        return LongStream.rangeClosed(events.headSequence(), events.tailSequence())
                .mapToObj(sequence -> {
                    try {
                        return events.readOne(sequence);
                    } catch (InterruptedException e) {
                        throw new IllegalStateException(e);
                    }
                }).toList();
    }

    private static List<String> events(int from, int to) {
        return IntStream.range(from, to).mapToObj(number -> "event " + number).toList();
    }

    @AfterEach
    void stop() throws Exception {
        cluster.stop();
        cluster.agents.forEach(agent -> assertEquals(List.of(), agent.violations));
    }

    @Test
    void sequencesGoOnAfterARestart() throws Exception {
        add(events(start(0)), 0, 7);
        cluster.terminateAll();
        Ringbuffer<String> restored = events(start(1));
        assertEquals(0, restored.headSequence());
        assertEquals(6, restored.tailSequence());
        assertEquals(events(0, 7), all(restored));
        assertEquals(7, restored.add("event 7"));
        assertEquals(8, restored.size());
    }

    @Test
    void theLogKeepsAsManyItemsAsTheRingbuffer() throws Exception {
        Ringbuffer<String> events = events(start(0));
        add(events, 0, 25);
        assertEquals(CAPACITY, cluster.log.size(MAP));
        events.addAllAsync(events(25, 60), OverflowPolicy.OVERWRITE).toCompletableFuture().join();
        assertEquals(CAPACITY, cluster.log.size(MAP));
        assertEquals(events(50, 60), all(events));
        capacity = 4;
        cluster.terminateAll();
        Ringbuffer<String> restored = events(start(1));
        assertEquals(events(56, 60), all(restored));
        assertThrows(StaleSequenceException.class, () -> restored.readOne(55));
        restored.add("event 60");
        assertEquals(4, cluster.log.size(MAP));
    }

    @Test
    void sequencesGoOnAfterAllItemsHaveExpired() throws Exception {
        ttlS = 1;
        Ringbuffer<String> events = events(start(0));
        add(events, 0, 3);
        eventually(() -> events.size() == 0 && cluster.log.size(MAP) == 1);
        cluster.terminateAll();
        assertEquals(3, events(start(1)).add("event 3"));
    }

    @Test
    void anotherMemberHasTheItemsWhenTheOwnerIsLost() throws Exception {
        HazelcastInstance first = start(0);
        HazelcastInstance second = start(1);
        cluster.awaitSafe();
        boolean owned = first.getCluster().getLocalMember().equals(
                first.getPartitionService().getPartition("events").getOwner());
        Ringbuffer<String> events = events(owned ? second : first);
        add(events, 0, 5);
        (owned ? first : second).getLifecycleService().terminate();
        assertEquals(events(0, 5), all(events));
        assertEquals(5, events.add("event 5"));
        ReadResultSet<String> read = events.readManyAsync(3, 1, 10, null).toCompletableFuture()
                .join();
        assertEquals(3, read.size());
    }

    @Test
    void aRingbufferMovesWithItsPartition() throws Exception {
        HazelcastInstance first = start(0);
        add(events(first), 0, 5);
        HazelcastInstance second = start(1);
        cluster.awaitSafe();
        first.shutdown();
        assertEquals(events(0, 5), all(events(second)));
    }

    @Test
    void anItemNotLoggedIsNotInTheRingbuffer() throws Exception {
        Ringbuffer<String> events = events(start(0));
        add(events, 0, 2);
        cluster.agents.get(0).stop();
        assertThrows(NotAppended.class, () -> events.add("lost"));
        assertEquals(events(0, 2), all(events));
    }

    @Test
    void itemsFromBeforeARingbufferWasDurableAreLogged() throws Exception {
        FakeAgent agent = cluster.startAgent();
        HazelcastInstance before = cluster.start(cluster.config(0, agent));
        add(events(before), 0, 3);
        HazelcastInstance after = start(1);
        cluster.awaitSafe();
        before.shutdown();
        assertEquals(events(0, 3), all(events(after)));
        assertEquals(3, cluster.log.size(MAP));
    }

    @Test
    void aDestroyedRingbufferBeginsAgain() throws Exception {
        Ringbuffer<String> events = events(start(0));
        add(events, 0, 3);
        events.destroy();
        assertEquals(0, cluster.log.size(MAP));
        cluster.terminateAll();
        assertEquals(0, events(start(1)).add("event 0"));
    }

    @Test
    void aTopicHasTheMessagesFromBeforeTheRestart() throws Exception {
        ITopic<String> topic = start(0).getReliableTopic("news");
        topic.publish("a");
        topic.publish("b");
        cluster.terminateAll();
        List<String> received = Collections.synchronizedList(new ArrayList<>());
        ITopic<String> restored = start(1).getReliableTopic("news");
        restored.addMessageListener(new FromTheStart(received));
        restored.publish("c");
        eventually(() -> received.size() == 3);
        assertEquals(List.of("a", "b", "c"), received);
        assertTrue(cluster.log.maps.containsKey("reliable topic:news"));
    }

    private record FromTheStart(List<String> received) implements ReliableMessageListener<String> {
        @Override
        public long retrieveInitialSequence() {
            return 0;
        }

        @Override
        public void storeSequence(long sequence) {
            // The test begins once.
        }

        @Override
        public boolean isLossTolerant() {
            return false;
        }

        @Override
        public boolean isTerminal(Throwable failure) {
            return true;
        }

        @Override
        public void onMessage(Message<String> message) {
            received.add(message.getMessageObject());
        }
    }
}
