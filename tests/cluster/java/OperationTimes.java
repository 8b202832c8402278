import com.hazelcast.aggregation.Aggregators;
import com.hazelcast.internal.json.Json;
import com.hazelcast.internal.json.JsonObject;
import com.hazelcast.map.EntryProcessor;
import com.hazelcast.map.IMap;
import com.hazelcast.projection.Projections;
import com.hazelcast.query.Predicates;

import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.TimeUnit;

/** How long each operation of a map takes, on keys that are absent and on keys that are present. */
final class OperationTimes {
    private static final Map<String, Operation> OPERATIONS = new LinkedHashMap<>();
    private static final EntryProcessor<String, Long, Object> ONE = entry -> entry.setValue(1L);
    private static final EntryProcessor<String, Long, Object> NONE = entry -> entry.setValue(null);
    private static final EntryProcessor<String, Long, Object> READS = entry -> null;

    interface Operation {
        Object on(IMap<String, Long> map, String key) throws Exception;
    }

    private interface Change {
        void on(IMap<String, Long> map, String key) throws Exception;
    }

    private OperationTimes() {
    }

    private static void add(String name, Operation operation) {
        OPERATIONS.put(name, operation);
    }

    private static void change(String name, Change change) {
        add(name, (map, key) -> {
            change.on(map, key);
            return null;
        });
    }

    static {
        add("get", IMap::get);
        add("getAll", (map, key) -> map.getAll(Set.of(key)));
        add("getEntryView", IMap::getEntryView);
        add("getAsync", (map, key) -> map.getAsync(key));
        add("getOrDefault", (map, key) -> map.getOrDefault(key, 1L));
        add("containsKey", IMap::containsKey);
        add("containsValue", (map, key) -> map.containsValue(7L));
        add("put", (map, key) -> map.put(key, 1L));
        add("put with ttl", (map, key) -> map.put(key, 1L, 1, TimeUnit.HOURS));
        add("put with ttl and max idle",
                (map, key) -> map.put(key, 1L, 1, TimeUnit.HOURS, 1, TimeUnit.HOURS));
        add("putAsync", (map, key) -> map.putAsync(key, 1L));
        change("putAll", (map, key) -> map.putAll(Map.of(key, 1L)));
        add("putAllAsync", (map, key) -> map.putAllAsync(Map.of(key, 1L)));
        add("putIfAbsent", (map, key) -> map.putIfAbsent(key, 1L));
        add("putIfAbsentAsync",
                (map, key) -> ((com.hazelcast.map.impl.proxy.MapProxyImpl<String, Long>) map)
                    .putIfAbsentAsync(key, 1L));
        change("putTransient", (map, key) -> map.putTransient(key, 1L, 1, TimeUnit.HOURS));
        change("set", (map, key) -> map.set(key, 1L));
        change("set with ttl", (map, key) -> map.set(key, 1L, 1, TimeUnit.HOURS));
        add("setAsync", (map, key) -> map.setAsync(key, 1L));
        change("setAll", (map, key) -> map.setAll(Map.of(key, 1L)));
        add("setAllAsync", (map, key) -> map.setAllAsync(Map.of(key, 1L)));
        add("setTtl", (map, key) -> map.setTtl(key, 1, TimeUnit.HOURS));
        add("tryPut", (map, key) -> map.tryPut(key, 1L, 10, TimeUnit.SECONDS));
        add("replace", (map, key) -> map.replace(key, 1L));
        add("replace if same", (map, key) -> map.replace(key, 7L, 1L));
        change("replaceAll", (map, key) -> map.replaceAll((each, value) -> value));
        add("remove", (map, key) -> map.remove(key));
        add("remove if same", (map, key) -> map.remove(key, 7L));
        add("removeAsync", (map, key) -> map.removeAsync(key));
        change("removeAll", (map, key) -> map.removeAll(Predicates.equal("__key", key)));
        change("delete", IMap::delete);
        add("deleteAsync", (map, key) -> map.deleteAsync(key));
        add("tryRemove", (map, key) -> map.tryRemove(key, 10, TimeUnit.SECONDS));
        add("compute", (map, key) -> map.compute(key, (each, value) -> 1L));
        add("compute to none", (map, key) -> map.compute(key, (each, value) -> null));
        add("computeIfAbsent", (map, key) -> map.computeIfAbsent(key, each -> 1L));
        add("computeIfPresent", (map, key) -> map.computeIfPresent(key, (each, value) -> 1L));
        add("merge", (map, key) -> map.merge(key, 1L, Long::sum));
        add("executeOnKey", (map, key) -> map.executeOnKey(key, ONE));
        add("executeOnKey that removes", (map, key) -> map.executeOnKey(key, NONE));
        add("executeOnKey that reads", (map, key) -> map.executeOnKey(key, READS));
        add("executeOnKeys", (map, key) -> map.executeOnKeys(Set.of(key), ONE));
        add("executeOnEntries",
                (map, key) -> map.executeOnEntries(READS, Predicates.equal("__key", key)));
        add("submitToKey", (map, key) -> map.submitToKey(key, ONE));
        add("submitToKeys", (map, key) -> map.submitToKeys(Set.of(key), ONE));
        add("evict", IMap::evict);
        change("lock and unlock", (map, key) -> {
            map.lock(key);
            map.unlock(key);
        });
        change("tryLock and unlock", (map, key) -> {
            if (map.tryLock(key)) {
                map.unlock(key);
            }
        });
        change("forceUnlock", IMap::forceUnlock);
        add("isLocked", IMap::isLocked);
        change("loadAll", (map, key) -> map.loadAll(Set.of(key), false));
        add("size", (map, key) -> map.size());
        add("isEmpty", (map, key) -> map.isEmpty());
        add("keySet", (map, key) -> map.keySet(Predicates.equal("__key", key)));
        add("localKeySet", (map, key) -> map.localKeySet(Predicates.equal("__key", key)));
        add("values", (map, key) -> map.values(Predicates.equal("__key", key)));
        add("entrySet", (map, key) -> map.entrySet(Predicates.equal("__key", key)));
        add("aggregate", (map, key) -> map.aggregate(Aggregators.count()));
        add("project",
                (map, key) -> map.project(Projections.identity(), Predicates.equal("__key", key)));
        add("iterator", (map, key) -> map.iterator().hasNext());
        change("flush", (map, key) -> map.flush());
    }

    /** Operation → absent or present → milliseconds of each call, sorted. */
    static JsonObject of(IMap<String, Long> map, int repeats) throws Exception {
        JsonObject found = Json.object();
        for (Map.Entry<String, Operation> each : OPERATIONS.entrySet()) {
            JsonObject times = Json.object();
            for (String state : new String[] {"absent", "present"}) {
                double[] took = new double[repeats];
                for (int i = 0; i < repeats; i++) {
                    String key = each.getKey() + " " + i;
                    if (state.equals("present")) {
                        map.set(key, 7L);
                    } else {
                        map.delete(key);
                    }
                    took[i] = timed(each.getValue(), map, key);
                    map.delete(key);
                }
                Arrays.sort(took);
                var all = Json.array();
                for (double one : took) {
                    all.add(one);
                }
                times.add(state, all);
            }
            found.add(each.getKey(), times);
        }
        return found;
    }

    private static double timed(Operation operation, IMap<String, Long> map, String key)
            throws Exception {
        long began = System.nanoTime();
        Object answer = operation.on(map, key);
        if (answer instanceof CompletionStage<?> stage) {
            stage.toCompletableFuture().get();
        }
        return (System.nanoTime() - began) / 1e6;
    }
}
