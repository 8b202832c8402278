package io.imapwal.hazelcast.settle;

import com.hazelcast.cluster.Address;
import com.hazelcast.cluster.MembershipEvent;
import com.hazelcast.cluster.impl.MemberImpl;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.internal.cluster.impl.ClusterServiceImpl;
import com.hazelcast.internal.serialization.Data;
import com.hazelcast.map.IMap;
import com.hazelcast.map.impl.MapService;
import com.hazelcast.spi.exception.RetryableHazelcastException;
import com.hazelcast.transaction.TransactionException;
import io.imapwal.hazelcast.LogUnavailable;
import io.imapwal.hazelcast.NotAppended;
import io.imapwal.hazelcast.OutcomeUnknown;
import io.imapwal.hazelcast.append.AgentLink;
import io.imapwal.hazelcast.append.Change;
import io.imapwal.hazelcast.append.PartitionStamp;
import io.imapwal.hazelcast.engine.ClassNames;
import io.imapwal.hazelcast.member.FakeAgent;
import io.imapwal.hazelcast.member.FakeLog;
import io.imapwal.hazelcast.member.Members;
import io.imapwal.hazelcast.member.OnAppend;
import io.imapwal.hazelcast.member.WalPlugin;
import io.imapwal.hazelcast.transactions.PlaceOperation;
import io.imapwal.wire.AgentSettings;
import io.imapwal.wire.SessionInfo;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.SocketTimeoutException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;

import static io.imapwal.hazelcast.member.Members.eventually;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

/**
 * The log's views: a member of the newest view continues without errors. Other members acknowledge
 * nothing.
 */
class ViewTest {
    private final FakeLog log = new FakeLog();
    private FakeAgent agent;
    private HazelcastInstance member;
    private IMap<String, Integer> map;
    private AgentLink link;

    @BeforeEach
    void start() throws Exception {
        agent = new FakeAgent(log).start();
        member = Members.start(Members.config("view", Members.port(), agent.endpoint()));
        map = member.getMap("orders");
        map.set("before", 1);
        link = WalPlugin.of(member).maps().links().of(AgentSettings.of("orders",
                member.getConfig().findMapConfig("orders").getMapStoreConfig().getProperties()));
    }

    @AfterEach
    void stop() throws Exception {
        member.shutdown();
        agent.close();
        assertEquals(List.of(), agent.violations);
    }

    private String uuid() {
        return member.getCluster().getLocalMember().getUuid().toString();
    }

    private List<FakeLog.Record> appended(String key) {
        byte[] bytes = WalPlugin.of(member).member().nodeEngine().toData(key).toByteArray();
        return log.appended().stream()
                .filter(record -> Arrays.equals(record.key(), bytes)).toList();
    }

    @Test
    void viewWithoutLostMembersIsClaimedOnce() {
        UUID lost = UUID.randomUUID();
        assertEquals(2, link.view(Set.of(lost)).incarnation());
        assertEquals(Set.of(uuid()), log.viewMembers);
        assertEquals(2, link.view(Set.of(lost)).incarnation());
        assertEquals(2, log.newestView);
        map.set("after", 2);
        assertEquals(2, appended("after").get(0).order().get(0));
    }

    @Test
    void survivorsChangesAreAcknowledgedInNextView() {
        log.claimView(Set.of(uuid()));
        map.set("after", 2);
        assertEquals(2, appended("after").get(0).order().get(0));
        assertEquals(2, link.session().incarnation());
    }

    @ParameterizedTest
    @EnumSource(value = OnAppend.class, names = {"VIEW_BEFORE", "VIEW_AFTER"})
    void inFlightChangeIsAppendedOnceAcrossViews(OnAppend fault) {
        agent.faults.onAppend = fault;
        map.set("meanwhile", 2);
        assertEquals(2, map.get("meanwhile"));
        assertEquals(List.of(fault == OnAppend.VIEW_BEFORE ? 2L : 1L),
                appended("meanwhile").stream().map(record -> record.order().get(0)).toList());
        assertTrue(WalPlugin.of(member).maps().reconciler().idle(), "a new view causes no doubt");
    }

    @ParameterizedTest
    @EnumSource(value = OnAppend.class, names = {"VIEW_BEFORE", "VIEW_AFTER"})
    void twoInFlightMessagesAreAppendedOnceAcrossViews(OnAppend fault) throws Exception {
        agent.faults.delayMs = 200;
        agent.faults.onAppend = fault;
        int before = agent.appends;
        CompletableFuture<Void> first = CompletableFuture.runAsync(() -> map.set("first", 1));
        eventually(() -> agent.appends == before + 1);
        CompletableFuture<Void> second = CompletableFuture.runAsync(() -> map.set("second", 2));
        first.join();
        second.join();
        assertEquals(1, appended("first").size());
        assertEquals(1, appended("second").size());
        assertEquals(2, appended("second").get(0).order().get(0));
    }

    /** The places of a transaction count in one view only. The rest is sent without a gap. */
    @Test
    void nextViewHasChangesWithoutTheTransaction() {
        SessionInfo session = link.connect();
        Change first = change("first", null);
        Change placed = change("placed", session);
        Change second = change("second", null);
        agent.faults.onAppend = OnAppend.VIEW_BEFORE;
        assertThrows(OutcomeUnknown.class, () -> link.append(List.of(first, placed, second)),
                "a part is in the log");
        // The reconciler sets memory from the log, which appends the value once more, perhaps
        // before this thread continues.
        assertEquals(2, appended("first").get(0).order().get(0));
        assertEquals(2, appended("second").get(0).order().get(0));
        assertEquals(1, appended("second").get(0).order().get(3) - appended("first").get(0).order()
                .get(3), "numbers without a gap");
        assertEquals(List.of(), appended("placed"));
    }

    /** It may have been left out of the view, and the key may have another owner. */
    @Test
    void ownerOfAnOlderViewGivesNoPlace() throws Exception {
        assertThrows(RetryableHazelcastException.class, () -> place("first", 2));
        log.claimView(Set.of(uuid()));
        eventually(() -> {
            // As the coordinator does: the member may have asked before there was a view.
            try {
                place("first", 2);
            } catch (RetryableHazelcastException | TransactionException e) {
                return link.session() != null && link.session().incarnation() == 2;
            }
            return false;
        });
        assertThrows(TransactionException.class, () -> place("first", 2), "it knows the view; the"
                + " key has no lock");
    }

    private void place(String key, long view) {
        WalPlugin plugin = WalPlugin.of(member);
        Data data = plugin.member().nodeEngine().toData(key);
        UUID coordinator = member.getCluster().getLocalMember().getUuid();
        PlaceOperation operation = new PlaceOperation(UUID.randomUUID(), coordinator, coordinator,
                List.of(new PlaceOperation.Item("orders", data, 1, 0)), view);
        plugin.member().nodeEngine().getOperationService()
                .createInvocationBuilder(MapService.SERVICE_NAME,
                operation, plugin.member().nodeEngine().getPartitionService().getPartitionId(data))
                .setTryCount(1).invoke().joinInternal();
    }

    /**
     * @param placed the view in which the owner of its partition gave its place; null: this member
     *         is the owner
     */
    private Change change(String key, SessionInfo placed) {
        WalPlugin plugin = WalPlugin.of(member);
        Data data = plugin.member().nodeEngine().toData(key);
        int partition = plugin.member().nodeEngine().getPartitionService().getPartitionId(data);
        byte[] value = plugin.member().nodeEngine().toData(1).toByteArray();
        byte[] head = Change.head("orders".getBytes(StandardCharsets.UTF_8), data.toByteArray(),
                ClassNames.NONE, value,
                ClassNames.NONE, System.currentTimeMillis(), 0, partition);
        PartitionStamp own = plugin.maps().guard().take(partition);
        PartitionStamp stamp = placed == null ? own
                : new PartitionStamp(placed.clusterId(), placed.member(), partition, 0,
                plugin.maps().guard().place(partition).order(), placed.incarnation());
        return new Change("orders", data, head, stamp, placed == null ? null : UUID.randomUUID());
    }

    @Test
    void leftOutMemberAcknowledgesNothing() {
        log.claimView(Set.of(UUID.randomUUID().toString()));
        NotAppended refused = assertThrows(NotAppended.class, () -> map.set("after", 2));
        assertTrue(refused.getMessage().contains("left out of view 2"), refused.getMessage());
        assertEquals(List.of(), appended("after"));
        LogUnavailable left = assertThrows(LogUnavailable.class, () ->
                link.view(Set.of(UUID.randomUUID())));
        assertTrue(left.getMessage().contains("left out of view 2"), left.getMessage());
        assertEquals(2, log.newestView);
    }

    @Test
    void readsOnLeftOutMemberFail() throws Exception {
        log.claimView(Set.of(UUID.randomUUID().toString()));
        assertThrows(NotAppended.class, () -> map.set("after", 2));
        eventually(() -> {
            try {
                return map.get("before") == null;
            } catch (LogUnavailable e) {
                return e.getMessage().contains("orders")
                        && e.getMessage().contains("left out of view 2");
            }
        });
        // Its maps are dropped. It joins again as a new member, and restores them from the log.
        log.viewMembers = Set.of(uuid());
        assertThrows(LogUnavailable.class, () -> map.get("before"));
        String former = uuid();
        ClusterServiceImpl cluster = WalPlugin.of(member).member().nodeEngine().getNode()
                .getClusterService();
        cluster.merge(cluster.getThisAddress());
        eventually(() -> map.get("before") == 1);
        assertNotEquals(former, uuid());
        map.set("after", 3);
        assertEquals(3, map.get("after"));
    }

    /**
     * The address of a lost member does not answer, not even with a refusal: the queue of
     * connections to this socket is full.
     */
    @Test
    void unreachableAddressDoesNotKeepMembersFromANewCluster() throws Exception {
        InetAddress loopback = InetAddress.getLoopbackAddress();
        List<Socket> waiting = new ArrayList<>();
        try (ServerSocket unanswered = new ServerSocket(0, 1, loopback)) {
            InetSocketAddress socket = new InetSocketAddress(loopback, unanswered.getLocalPort());
            assertThrows(SocketTimeoutException.class, () -> {
                for (int number = 0; number < 10; number++) {
                    waiting.add(new Socket());
                    waiting.get(number).connect(socket, 500);
                }
            });
            WalPlugin plugin = WalPlugin.of(member);
            MemberImpl lost = new MemberImpl.Builder(new Address(socket))
                    .version(member.getCluster().getLocalMember().getVersion())
                    .uuid(UUID.randomUUID()).build();
            plugin.leftOut().members().memberRemoved(new MembershipEvent(member.getCluster(), lost,
                    MembershipEvent.MEMBER_REMOVED, member.getCluster().getMembers()));
            String former = uuid();
            log.claimView(Set.of(lost.getUuid().toString()));
            log.silent = true;
            assertThrows(NotAppended.class, () -> map.set("after", 2));
            eventually(() -> !uuid().equals(former) && map.get("before") == 1);
        } finally {
            for (Socket each : waiting) {
                each.close();
            }
        }
    }

    @Test
    void followedClusterKeepsItsMemory() throws Exception {
        UUID before = member.getCluster().getLocalMember().getUuid();
        log.followed = true;
        log.claimCluster(UUID.randomUUID().toString());
        assertThrows(NotAppended.class, () -> map.set("after", 2));
        WalPlugin.of(member).leftOut().suspect();
        eventually(() -> !WalPlugin.of(member).leftOut().looks());
        assertEquals(1, map.get("before"));
        assertEquals(before, member.getCluster().getLocalMember().getUuid());
    }

    @Test
    void joiningMemberAsksOthersForView() throws Exception {
        log.claimView(Set.of(uuid()));
        map.set("after", 2);
        FakeAgent second = new FakeAgent(log).start();
        int port = member.getCluster().getLocalMember().getAddress().getPort();
        HazelcastInstance joining = Members.start(
                Members.config("view", port % 10 == 9 ? port - 1 : port + 1, second.endpoint()));
        try {
            eventually(() -> joining.<String, Integer>getMap("orders").get("after") == 2);
            eventually(() -> {
                for (int number = 0; number < 50; number++) {
                    joining.<String, Integer>getMap("orders").set("k" + number, number);
                }
                return second.appends > 0;  // It owns a partition now.
            });
        } finally {
            joining.shutdown();
            second.close();
        }
    }

    /** Its last changes were acknowledged in a view that the copy does not have. */
    @Test
    void olderCopyFromBeforeAViewIsRefused() throws Exception {
        link.view(Set.of(UUID.randomUUID()));
        map.set("after", 2);
        agent.stop();
        log.loseView();
        agent.start();
        NotAppended refused = assertThrows(NotAppended.class, () -> map.set("later", 3));
        assertTrue(refused.getMessage().contains("is in view 1, and its agent has acknowledged"
                + " changes of this member in view 2: an older copy replaced the node's folder"),
                refused.getMessage());
        map.evict("before");
        LogUnavailable unread = assertThrows(LogUnavailable.class, () -> map.get("before"));
        assertTrue(unread.getMessage().contains("an older copy"), unread.getMessage());
        assertEquals(2, map.get("after"));
    }

    /** No change was acknowledged in the newest view. */
    @Test
    void logWithoutTheKnownViewIsNotUsed() throws Exception {
        link.view(Set.of(UUID.randomUUID()));
        agent.stop();
        log.loseView();
        agent.start();
        NotAppended refused = assertThrows(NotAppended.class, () -> map.set("later", 3));
        assertTrue(refused.getMessage().contains("it is in view 1, and this member's cluster in"
                + " view 2"), refused.getMessage());
    }

    @Test
    void memberThatKnowsViewMayWrite() throws Exception {
        link.view(Set.of(UUID.randomUUID()));
        log.viewMembers = Set.of(UUID.randomUUID().toString());
        agent.stop();
        agent.start();
        map.set("after", 2);
        assertEquals(2, appended("after").get(0).order().get(0));
    }
}
