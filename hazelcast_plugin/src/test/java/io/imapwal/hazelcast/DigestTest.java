package io.imapwal.hazelcast;

import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.internal.json.Json;
import com.hazelcast.internal.json.JsonValue;
import com.hazelcast.map.IMap;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HexFormat;
import java.util.List;
import java.util.concurrent.TimeUnit;

import static io.imapwal.hazelcast.Members.eventually;
import static io.imapwal.hazelcast.TestCluster.fill;
import static io.imapwal.hazelcast.TestCluster.owned;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

/** Of partitions whose memory has the digest of the log, no entries are read. */
class DigestTest extends SettlementFixture {
    /** Python computes the same: tests/unit/test_digest.py. */
    @Test
    void digestIsTheGoldenOne() throws IOException {
        EntriesDigest all = new EntriesDigest();
        for (JsonValue each : Json.parse(Files.readString(Path.of("..", "tests", "golden",
                "digests.json"))).asArray()) {
            List<byte[]> parts = each.asObject().get("entry").asArray().values().stream()
                    .limit(2).map(hex -> HexFormat.of().parseHex(hex.asString())).toList();
            EntriesDigest one = new EntriesDigest();
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
        eventually(() -> ownedPartitions(b) == 31 && map.get(owned(b, 1).get(0)) != null
                && !WalPlugin.of(b).state("orders").wholeness().isAnyUnsettled());
        assertEquals(listings, agent.listings);
        assertTrue(agent.digests > 1, agent.digests + " requests");
        assertEquals(1200, map.size());
        // The log has another value of one key.
        WalPlugin plugin = WalPlugin.of(b);
        cluster.logOnly(b, 7, 1007, 0);
        int lost = b.getPartitionService().getPartition(7).getPartitionId();
        plugin.state("orders").doubt(lost, null);
        plugin.settlements().wake();
        eventually(() -> plugin.state("orders").wholeness().whole(lost));
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
        WalPlugin.of(a).state("orders").doubt(partition, null);
        WalPlugin.of(a).settlements().wake();
        eventually(() -> Math.abs(map.getEntryView(1).getExpirationTime() - expires) <= 1000);
    }

    @Test
    void agentOfEarlierReleaseIsAskedForEntries() throws Exception {
        HazelcastInstance a = start(0);
        IMap<Integer, Integer> map = a.getMap("orders");
        fill(map, 10);
        FakeAgent agent = agents.get(0);
        agent.faults.isOfEarlierRelease = true;
        cluster.logOnly(a, 1, 1001, 0);
        WalPlugin.of(a).state("orders").doubt(
                a.getPartitionService().getPartition(1).getPartitionId(), null);
        WalPlugin.of(a).settlements().wake();
        eventually(() -> map.get(1) == 1001);
    }
}
