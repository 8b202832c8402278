package io.imapwal.seatunnel;

import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.map.EntryStore;
import com.hazelcast.map.MapLoaderLifecycleSupport;

import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;

/**
 * The map store of one map. Hazelcast 5.1 calls it on the thread of the key's partition, and
 * changes memory after it has returned.
 */
final class ImapWalMapStore implements EntryStore<Object, Object>, MapLoaderLifecycleSupport {
    private LogMap map;

    @Override
    public void init(HazelcastInstance instance, Properties properties, String mapName) {
        map = LogMap.of(instance, mapName, LogClient.settings(mapName, properties));
    }

    @Override
    public void destroy() {
        // Also called when a member shuts down, so nothing is deleted. The client of the log
        // closes with the member.
    }

    @Override
    public void store(Object key, MetadataAwareValue<Object> value) {
        map.store(Collections.singletonMap(key, entry(value)));
    }

    @Override
    public void storeAll(Map<Object, MetadataAwareValue<Object>> entries) {
        Map<Object, LogReader.Entry> all = new HashMap<>();
        entries.forEach((key, value) -> all.put(key, entry(value)));
        map.store(all);
    }

    @Override
    public void delete(Object key) {
        map.delete(Collections.singletonList(key));
    }

    @Override
    public void deleteAll(Collection<Object> keys) {
        map.delete(keys);
    }

    @Override
    public MetadataAwareValue<Object> load(Object key) {
        LogReader.Entry entry = map.load(key);
        return entry == null ? null : value(entry);
    }

    @Override
    public Map<Object, MetadataAwareValue<Object>> loadAll(Collection<Object> keys) {
        Map<Object, MetadataAwareValue<Object>> all = new HashMap<>();
        map.loadAll(keys).forEach((key, entry) -> all.put(key, value(entry)));
        return all;
    }

    @Override
    public Iterable<Object> loadAllKeys() {
        return map.keys();
    }

    private static LogReader.Entry entry(MetadataAwareValue<Object> value) {
        long expiresAtMs = value.getExpirationTime();
        return new LogReader.Entry(value.getValue(),
                expiresAtMs == MetadataAwareValue.NO_TIME_SET ? 0 : expiresAtMs);
    }

    private static MetadataAwareValue<Object> value(LogReader.Entry entry) {
        return new MetadataAwareValue<>(entry.value,
                entry.expiresAtMs == 0 ? MetadataAwareValue.NO_TIME_SET : entry.expiresAtMs);
    }
}
