package io.imapwal.hazelcast.member;

import com.hazelcast.config.Config;
import com.hazelcast.config.MapConfig;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.map.EntryProcessor;
import com.hazelcast.map.ExtendedMapEntry;
import com.hazelcast.map.IMap;
import com.hazelcast.transaction.TransactionContext;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Consumer;

import static java.util.concurrent.TimeUnit.HOURS;
import static java.util.concurrent.TimeUnit.MINUTES;
import static java.util.concurrent.TimeUnit.SECONDS;
import static org.junit.jupiter.api.Assertions.assertEquals;

/** After each kind of change, the log has the expiry that memory has. */
class ExpiryTest {
    private static final int KEY = 1;
    /** Hazelcast stores the expiry in whole seconds. */
    private static final long ROUNDED_MS = 1500;

    private final TestCluster cluster = new TestCluster("expiry");
    private final Map<String, Consumer<IMap<Integer, Integer>>> changes = new LinkedHashMap<>();

    @AfterEach
    void stop() throws Exception {
        cluster.stop();
    }

    private static EntryProcessor<Integer, Integer, Object> keepingExpiry() {
        return entry -> ((ExtendedMapEntry<Integer, Integer>) entry)
                .setValueWithoutChangingExpiryTime(3);
    }

    private static EntryProcessor<Integer, Integer, Object> expiring(long minutes) {
        return entry -> ((ExtendedMapEntry<Integer, Integer>) entry)
                .setValue(4, minutes, MINUTES);
    }

    private void puts() {
        changes.put("set", map -> map.set(KEY, 9));
        changes.put("set 2 h", map -> map.set(KEY, 9, 2, HOURS));
        changes.put("set without expiry", map -> map.set(KEY, 9, 0, HOURS));
        changes.put("set with the usual expiry", map -> map.set(KEY, 9, -1, HOURS));
        changes.put("put", map -> map.put(KEY, 9));
        changes.put("tryPut", map -> map.tryPut(KEY, 9, 1, SECONDS));
        changes.put("putAll", map -> map.putAll(Map.of(KEY, 10)));
        changes.put("setAll", map -> map.setAll(Map.of(KEY, 11)));
        changes.put("replace", map -> map.replace(KEY, 4));
        changes.put("replace if same", map -> map.replace(KEY, map.get(KEY), 5));
        changes.put("compute", map -> map.compute(KEY, (key, former) -> 6));
        changes.put("merge", map -> map.merge(KEY, 8, Integer::sum));
        changes.put("setTtl", map -> map.setTtl(KEY, 2, HOURS));
        changes.put("setTtl without expiry", map -> map.setTtl(KEY, 0, HOURS));
        changes.put("setTtl as usual", map -> map.setTtl(KEY, -1, HOURS));
    }

    private void processors() {
        changes.put("executeOnKey", map -> map.executeOnKey(KEY, entry -> entry.setValue(2)));
        changes.put("executeOnKeys", map -> map.executeOnKeys(Set.of(KEY),
                entry -> entry.setValue(2)));
        changes.put("executeOnEntries", map -> map.executeOnEntries(entry -> entry.setValue(2)));
        changes.put("executeOnKey 50 min", map -> map.executeOnKey(KEY, expiring(50)));
        changes.put("executeOnKey without expiry", map -> map.executeOnKey(KEY, expiring(0)));
        changes.put("executeOnKey, kept", map -> map.executeOnKey(KEY, keepingExpiry()));
        changes.put("executeOnKeys, kept",
                map -> map.executeOnKeys(Set.of(KEY), keepingExpiry()));
        changes.put("executeOnEntries, kept", map -> map.executeOnEntries(keepingExpiry()));
        changes.put("evict, executeOnKey, kept", map -> {
            map.evict(KEY);
            map.executeOnKey(KEY, keepingExpiry());
        });
        changes.put("remove, executeOnKey, kept", map -> {
            map.delete(KEY);
            map.executeOnKey(KEY, keepingExpiry());
        });
        changes.put("evict, replace", map -> {
            map.evict(KEY);
            map.replace(KEY, 12);
        });
        changes.put("evict, setTtl", map -> {
            map.evict(KEY);
            map.setTtl(KEY, 5, HOURS);
        });
    }

    private void transactions(HazelcastInstance member) {
        for (int count : new int[]{1, 2}) {
            changes.put("transaction of " + count, map -> commit(member, count, -1));
            changes.put("transaction of " + count + ", 4 h", map -> commit(member, count, 4));
        }
    }

    private static void commit(HazelcastInstance member, int count, long hours) {
        TransactionContext transaction = member.newTransactionContext();
        transaction.beginTransaction();
        for (int key = KEY; key < KEY + count; key++) {
            if (hours < 0) {
                transaction.getMap("orders").set(key, 5);
            } else {
                transaction.getMap("orders").put(key, 5, hours, HOURS);
            }
        }
        transaction.commitTransaction();
    }

    private static void reset(IMap<Integer, Integer> map, int minutes) {
        map.delete(KEY);
        if (minutes < 0) {
            map.set(KEY, 1);
        } else {
            map.set(KEY, 1, minutes, MINUTES);
        }
    }

    @ParameterizedTest
    @CsvSource({"false, 0", "true, 0", "false, 3600", "true, 3600"})
    void expiryInLogIsThatInMemory(boolean offload, int usualSeconds) throws Exception {
        FakeAgent agent = cluster.startAgent();
        Config config = cluster.config(0, agent);
        MapConfig orders = Members.map("orders", agent.endpoint());
        orders.getMapStoreConfig().setOffload(offload);
        config.addMapConfig(orders.setTimeToLiveSeconds(usualSeconds));
        HazelcastInstance member = cluster.start(config);
        IMap<Integer, Integer> map = member.getMap("orders");
        byte[] key = WalPlugin.of(member).member().nodeEngine().toData(KEY).toByteArray();
        puts();
        processors();
        transactions(member);
        List<String> wrong = new ArrayList<>();
        for (int minutes : new int[]{-1, 0, 10}) {
            changes.forEach((name, change) -> {
                reset(map, minutes);
                change.accept(map);
                long memory = map.getEntryView(KEY).getExpirationTime();
                long logged = cluster.log.newest("orders", key).expiresAtMs();
                if (Math.abs((memory == Long.MAX_VALUE ? 0 : memory) - logged) > ROUNDED_MS) {
                    wrong.add(name + " after " + minutes + " min: " + memory + ", log " + logged);
                }
            });
        }
        assertEquals(List.of(), wrong);
    }
}
