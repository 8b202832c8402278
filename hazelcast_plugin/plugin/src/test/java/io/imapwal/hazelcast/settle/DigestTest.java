package io.imapwal.hazelcast.settle;

import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.internal.json.Json;
import com.hazelcast.internal.json.JsonObject;
import com.hazelcast.internal.json.JsonValue;
import com.hazelcast.internal.serialization.Data;
import com.hazelcast.map.IMap;
import com.hazelcast.map.impl.MapService;
import com.hazelcast.map.impl.recordstore.RecordStore;
import com.sun.management.ThreadMXBean;
import io.imapwal.hazelcast.engine.PartitionThreads;
import io.imapwal.hazelcast.member.FakeAgent;
import io.imapwal.hazelcast.member.WalPlugin;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.ValueSource;

import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HexFormat;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;

import static io.imapwal.hazelcast.member.Members.eventually;
import static io.imapwal.hazelcast.member.TestCluster.fill;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

/** Of partitions whose memory has the digest of the log, no entries are read. */
class DigestTest extends SettlementFixture {
    /** Python computes the same: tests/unit/test_digest.py. */
    @Test
    void digestIsTheGoldenOne() throws IOException {
        JsonObject golden = Json.parse(Files.readString(Path.of("..", "..", "tests", "golden",
                "digests.json"))).asObject();
        byte[] salt = HexFormat.of().parseHex(golden.get("salt").asString());
        EntriesDigest all = new EntriesDigest(salt);
        for (JsonValue each : golden.get("entries").asArray()) {
            List<byte[]> parts = each.asObject().get("entry").asArray().values().stream()
                    .limit(2).map(hex -> HexFormat.of().parseHex(hex.asString())).toList();
            EntriesDigest one = new EntriesDigest(salt);
            for (EntriesDigest digest : List.of(one, all)) {
                digest.add(parts.get(0), parts.get(1),
                        each.asObject().get("entry").asArray().get(2).asLong());
            }
            assertEquals(each.asObject().get("digest").asString(),
                    HexFormat.of().formatHex(one.bytes()));
            assertEquals(each.asObject().get("of_all_up_to_here").asString(),
                    HexFormat.of().formatHex(all.bytes()));
        }
    }

    @Test
    void largeValueIsNotCopied() {
        byte[] value = new byte[32 << 20];
        EntriesDigest digest = new EntriesDigest(EntriesDigest.salt());
        digest.add(new byte[1], value, 0);
        long before = allocated();
        new EntriesDigest(EntriesDigest.salt()).add(new byte[1], value, 0);
        long bytes = allocated() - before;
        assertTrue(bytes < 1 << 20, bytes + " bytes");
    }

    /** Bytes that this thread has allocated. */
    private static long allocated() {
        return ((ThreadMXBean) ManagementFactory.getThreadMXBean())
                .getCurrentThreadAllocatedBytes();
    }

    @Test
    void digestComparedLateSettlesThePartition() throws Exception {
        HazelcastInstance a = start(0);
        IMap<Integer, Integer> map = a.getMap("orders");
        map.set(1, 1);
        WalPlugin plugin = WalPlugin.of(a);
        MapState state = plugin.maps().state("orders");
        int partition = a.getPartitionService().getPartition(1).getPartitionId();
        Comparison comparison = begun(state, partition);
        MemoryDigests memory = new MemoryDigests(
                new PartitionThreads(plugin.member().nodeEngine()), state.wholeness(),
                state::digest);
        // The thread was busy: the digest is compared when the entries were already sent.
        assertTrue(proves(plugin, comparison, memory, digest(plugin, memory, 1, 1, 0)));
        assertTrue(state.wholeness().whole(partition));
        plugin.member().nodeEngine().getOperationService().createInvocationBuilder(
                MapService.SERVICE_NAME, new SettleOperation(state, comparison, List.of(),
                comparison.send(), true), partition).invoke().get(60, TimeUnit.SECONDS);
        assertEquals(1, map.get(1));
    }

    /** What may happen to a partition while operations on it wait. */
    private enum Meanwhile {
        NOTHING, SET_FROM_THE_LOG, EVICTED, EXPIRED
    }

    @ParameterizedTest
    @EnumSource(Meanwhile.class)
    void digestOfMemoryThatChangedIsNotUsed(Meanwhile what) throws Exception {
        HazelcastInstance a = start(0);
        IMap<Integer, Integer> map = a.getMap("orders");
        int ttl = what == Meanwhile.EXPIRED ? 2 : 1000;
        map.set(1, 1, ttl, TimeUnit.SECONDS);
        long expires = map.getEntryView(1).getExpirationTime();
        WalPlugin plugin = WalPlugin.of(a);
        MapState state = plugin.maps().state("orders");
        int partition = a.getPartitionService().getPartition(1).getPartitionId();
        Comparison comparison = begun(state, partition);
        comparison.reason.quiet = true;
        PartitionThreads threads = new PartitionThreads(plugin.member().nodeEngine());
        MemoryDigests memory = new MemoryDigests(threads, state.wholeness(), state::digest);
        memory.begin(List.of(partition));
        MapService service = plugin.member().nodeEngine().getService(MapService.SERVICE_NAME);
        Data key = plugin.member().nodeEngine().getSerializationService().toData(1);
        assertEquals(0, threads.run(List.of(partition), id -> {
            RecordStore<?> store = service.getMapServiceContext().getExistingRecordStore(id,
                    "orders");
            switch (what) {
                case SET_FROM_THE_LOG -> store.putFromLoad(key,
                        plugin.member().nodeEngine().getSerializationService().toData(2), expires,
                        a.getCluster().getLocalMember().getAddress(), System.currentTimeMillis());
                case EVICTED -> store.evict(key, false);
                default -> { }
            }
        }, 60));
        byte[] digest = digest(plugin, memory, 1, 1, expires);
        if (what == Meanwhile.EXPIRED) {
            eventually(() -> System.currentTimeMillis() > expires);
        }
        assertEquals(what == Meanwhile.NOTHING, proves(plugin, comparison, memory, digest));
        assertEquals(what == Meanwhile.NOTHING, state.wholeness().whole(partition));
    }

    /** A comparison of a partition that waits, and that nothing else settles. */
    private Comparison begun(MapState state, int partition) {
        agents.get(0).faults.readError = NO_DISK;
        state.doubt(partition, null);
        return new Comparison(partition, state.wholeness().unsettled(partition));
    }

    /** The digest that an agent computes of one entry. */
    private static byte[] digest(WalPlugin plugin, MemoryDigests memory, int key, int value,
            long expiresAtMs) {
        EntriesDigest digest = new EntriesDigest(memory.salt());
        digest.add(plugin.member().nodeEngine().getSerializationService().toData(key).toByteArray(),
                plugin.member().nodeEngine().getSerializationService().toData(value).toByteArray(),
                expiresAtMs);
        return digest.bytes();
    }

    private static boolean proves(WalPlugin plugin, Comparison comparison, MemoryDigests memory,
            byte[] digest) throws InterruptedException {
        AtomicBoolean proved = new AtomicBoolean();
        assertEquals(0, new PartitionThreads(plugin.member().nodeEngine()).run(
                List.of(comparison.partition), id -> proved.set(plugin.maps().state("orders")
                        .prove(comparison, memory, digest)), 60));
        return proved.get();
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void onlyPartitionsThatDifferAreRead(boolean offloaded) throws Exception {
        offload = offloaded;
        HazelcastInstance a = start(0);
        HazelcastInstance b = start(1);
        IMap<Integer, Integer> map = b.getMap("orders");
        fill(map, 1000);
        for (int key = 1000; key < 1200; key++) {
            map.set(key, key, 1, TimeUnit.HOURS);
        }
        cluster.awaitSafe();
        FakeAgent agent = agents.get(1);
        agent.faults.loadLimit = 5;  // partitions of one answer
        int listings = agent.listings;
        a.getLifecycleService().terminate();
        // The table of partitions names the new owner before the settlement begins.
        eventually(() -> ownedPartitions(b) == 31 && agent.digests > 1
                && !WalPlugin.of(b).maps().state("orders").wholeness().isAnyUnsettled());
        assertEquals(listings, agent.listings);
        assertEquals(1200, map.size());
        // The log has another value of one key.
        WalPlugin plugin = WalPlugin.of(b);
        cluster.logOnly(b, 7, 1007, 0);
        int lost = b.getPartitionService().getPartition(7).getPartitionId();
        plugin.maps().state("orders").doubt(lost, null);
        plugin.maps().wake();
        eventually(() -> plugin.maps().state("orders").wholeness().whole(lost));
        assertEquals(1007, map.get(7));
        assertEquals(listings + 1, agent.listings);
    }

    @Test
    void changedExpiryIsADifference() throws Exception {
        HazelcastInstance a = start(0);
        IMap<Integer, Integer> map = a.getMap("orders");
        map.set(1, 1, 1, TimeUnit.HOURS);
        long expires = System.currentTimeMillis() + TimeUnit.HOURS.toMillis(2);
        cluster.logOnly(a, 1, 1, expires);
        int partition = a.getPartitionService().getPartition(1).getPartitionId();
        WalPlugin.of(a).maps().state("orders").doubt(partition, null);
        WalPlugin.of(a).maps().wake();
        eventually(() -> Math.abs(map.getEntryView(1).getExpirationTime() - expires) <= 1000);
    }

    @Test
    void agentWithoutDigestsIsAskedForEntries() throws Exception {
        HazelcastInstance a = start(0);
        IMap<Integer, Integer> map = a.getMap("orders");
        fill(map, 10);
        FakeAgent agent = agents.get(0);
        agent.faults.hasNoDigests = true;
        cluster.logOnly(a, 1, 1001, 0);
        WalPlugin.of(a).maps().state("orders").doubt(
                a.getPartitionService().getPartition(1).getPartitionId(), null);
        WalPlugin.of(a).maps().wake();
        eventually(() -> map.get(1) == 1001);
    }
}
