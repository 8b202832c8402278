package io.imapwal.hazelcast.member;

import com.hazelcast.config.Config;
import com.hazelcast.config.InMemoryFormat;
import com.hazelcast.config.MergePolicyConfig;
import com.hazelcast.config.RingbufferConfig;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.ringbuffer.Ringbuffer;
import com.hazelcast.ringbuffer.impl.RingbufferService;
import com.hazelcast.spi.impl.NodeEngineImpl;
import com.hazelcast.spi.impl.operationparker.impl.OperationParkerImpl;
import com.hazelcast.spi.merge.PassThroughMergePolicy;
import com.hazelcast.topic.ITopic;
import io.imapwal.hazelcast.OutcomeUnknown;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

import java.io.IOException;
import java.io.ObjectInputStream;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CompletableFuture;

import static io.imapwal.hazelcast.member.Members.eventually;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

/** Durable ringbuffers and topics when owners, agents or items fail. */
class RingbufferFaultsTest {
    private static final String MAP = "ringbuffer:events";
    private final TestCluster cluster = new TestCluster("hostile-rb");
    private RingbufferConfig ringbuffer = new RingbufferConfig("events").setCapacity(10);
    private String settle = "10000";

    private HazelcastInstance start(int number) throws Exception {
        FakeAgent agent = cluster.startAgent();
        Config config = cluster.config(number, agent)
                .setProperty("imap-wal.agent", agent.endpoint())
                .setProperty("imap-wal.settle-timeout-ms", settle)
                .setProperty("imap-wal.durable-ringbuffers", "events")
                .setProperty("imap-wal.durable-topics", "news");
        config.addRingBufferConfig(new RingbufferConfig(ringbuffer));
        return cluster.start(config);
    }

    @AfterEach
    void stop() throws Exception {
        cluster.stop();
    }

    @Test
    void aWaitingReaderGetsAnItemOfUnknownOutcome() throws Exception {
        HazelcastInstance member = start(0);
        Ringbuffer<String> events = member.getRingbuffer("events");
        events.add("first");
        CompletableFuture<String> read = CompletableFuture.supplyAsync(() -> {
            try {
                return events.readOne(1);
            } catch (InterruptedException e) {
                throw new IllegalStateException(e);
            }
        });
        NodeEngineImpl engine = WalPlugin.of(member).member().nodeEngine();
        OperationParkerImpl parker = (OperationParkerImpl) engine.getOperationParker();
        eventually(() -> parker.getTotalParkedOperationCount() == 1);
        cluster.agents.get(0).faults.onAppend = OnAppend.UNKNOWN_AFTER;
        assertThrows(OutcomeUnknown.class, () -> events.add("perhaps"));
        cluster.agents.get(0).faults.onAppend = OnAppend.ACK;
        eventually(read::isDone);
        assertEquals("perhaps", read.get());
    }

    @Test
    void aMergeDoesNotReplaceItems() throws Exception {
        ringbuffer.setMergePolicyConfig(new MergePolicyConfig().setPolicy(
                PassThroughMergePolicy.class.getName()));
        HazelcastInstance first = start(0);
        first.getRingbuffer("events").add("a");
        first.getRingbuffer("events").add("b");
        HazelcastInstance second = start(1);
        cluster.awaitSafe();
        first.shutdown();
        second.getRingbuffer("other").add("x");
        RingbufferService service = WalPlugin.of(second).member().nodeEngine()
                .getService(RingbufferService.SERVICE_NAME);
        Runnable merge = service.prepareMergeRunnable();
        Ringbuffer<String> events = second.getRingbuffer("events");
        assertEquals(1, events.tailSequence());  // used in the larger part
        merge.run();
        assertEquals(1, events.tailSequence());
        assertEquals(2, events.add("c"));
    }

    public static final class Broken implements Serializable {
        private static final long serialVersionUID = 1L;

        private void readObject(ObjectInputStream in) throws IOException {
            throw new IOException("no such class here");
        }
    }

    @Test
    void anItemThatCannotBeReadIsNotLogged() throws Exception {
        ringbuffer.setInMemoryFormat(InMemoryFormat.OBJECT);
        Ringbuffer<Object> events = start(0).getRingbuffer("events");
        events.add("a");
        assertThrows(RuntimeException.class, () -> events.add(new Broken()));
        int logged = cluster.log.size(MAP);
        cluster.terminateAll();
        Ringbuffer<Object> restored = start(1).getRingbuffer("events");
        String said;
        try {
            said = String.valueOf(restored.readOne(0));
        } catch (RuntimeException e) {
            said = e.toString();
        }
        assertEquals("a", said, "items in the log: " + logged);
    }

    @Test
    void aTopicsListenerSurvivesTheLossOfTheLog() throws Exception {
        settle = "500";
        HazelcastInstance a = start(0);
        HazelcastInstance b = start(1);
        cluster.awaitSafe();
        boolean ownedByA = a.getCluster().getLocalMember().equals(
                a.getPartitionService().getPartition("_hz_rb_news").getOwner());
        HazelcastInstance owner = ownedByA ? a : b;
        HazelcastInstance stays = ownedByA ? b : a;
        List<String> received = Collections.synchronizedList(new ArrayList<>());
        ITopic<String> topic = stays.getReliableTopic("news");
        topic.addMessageListener(message -> received.add(message.getMessageObject()));
        topic.publish("1");
        eventually(() -> received.size() == 1);
        FakeAgent agent = cluster.agents.get(ownedByA ? 1 : 0);
        agent.stop();
        owner.getLifecycleService().terminate();
        // Its partition is overdue when it has waited for longer than settle-timeout-ms.
        assertThrows(RuntimeException.class, () -> topic.publish("lost"));
        agent.start();
        eventually(() -> {
            topic.publish("2");
            return true;
        });
        eventually(() -> received.contains("2"));
    }
}
