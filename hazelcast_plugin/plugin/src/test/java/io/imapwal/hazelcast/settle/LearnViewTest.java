package io.imapwal.hazelcast.settle;

import com.hazelcast.core.HazelcastInstance;
import io.imapwal.hazelcast.append.AgentLink;
import io.imapwal.hazelcast.member.TestCluster;
import io.imapwal.hazelcast.member.WalPlugin;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

import java.util.Set;
import java.util.UUID;

import static org.junit.jupiter.api.Assertions.assertEquals;

/**
 * A member that joins after a view was claimed is not in the view's list. It may write because the
 * others tell it the number of the view, and only those whom they see may know that.
 */
class LearnViewTest {
    private final TestCluster cluster = new TestCluster("learn-view");
    private HazelcastInstance first;
    private HazelcastInstance joined;

    @BeforeEach
    void startInView2() throws Exception {
        first = cluster.start(cluster.config(0, cluster.startAgent()));
        first.getMap("orders").set(1, 1);
        assertEquals(2, link(first).view(Set.of(UUID.randomUUID())).incarnation());
        joined = cluster.start(cluster.config(1, cluster.startAgent()));
    }

    @AfterEach
    void stop() throws Exception {
        cluster.stop();
    }

    private static AgentLink link(HazelcastInstance member) {
        return WalPlugin.of(member).maps().links().of("orders");
    }

    private static MapPeers peers(HazelcastInstance member) {
        return new MapPeers(WalPlugin.of(member).member(), "orders");
    }

    /** What the first member answers to a question in the name of that one. */
    private long answer(UUID asker) throws Exception {
        return WalPlugin.of(joined).member().<Long>ask(new ViewOperation("orders", asker),
                first.getCluster().getLocalMember().getAddress()).get();
    }

    @Test
    void memberThatJoinsLearnsViewAndWrites() {
        peers(joined).learnView(link(joined));
        assertEquals(2, link(joined).knownView());
        joined.getMap("orders").set(2, 2);
        assertEquals(2, link(joined).session().incarnation());
        assertEquals(2, first.getMap("orders").get(2));
    }

    /** It was lost, and the view was claimed without it. */
    @Test
    void memberThatOthersDoNotSeeLearnsNoView() throws Exception {
        assertEquals(0, answer(UUID.randomUUID()));
        assertEquals(2, answer(joined.getCluster().getLocalMember().getUuid()));
    }

    @Test
    void olderViewIsNotLearned() {
        link(first).learn(1);
        assertEquals(2, link(first).knownView());
        peers(first).learnView(link(first));
        assertEquals(2, link(first).knownView());
    }

    /** The others are gone, so no answer counts. */
    @Test
    void onlyMemberOfClusterLearnsNothing() {
        joined.getLifecycleService().terminate();
        assertEquals(0, peers(first).askForView());
    }
}
