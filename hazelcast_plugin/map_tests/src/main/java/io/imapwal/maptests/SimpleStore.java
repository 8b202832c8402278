package io.imapwal.maptests;

import com.hazelcast.internal.serialization.Data;
import com.hazelcast.internal.serialization.SerializationService;
import com.hazelcast.map.EntryLoader;
import com.hazelcast.map.EntryStore;

import java.util.Collection;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/**
 * A map store that only does what its interface says. Members of one cluster share its entries. A
 * test that fails with it fails because the map has any map store.
 */
final class SimpleStore implements EntryStore<Object, Object> {
    private static final Map<String, Map<Data, Stored>> ALL = new ConcurrentHashMap<>();

    private final SerializationService serialization;
    private final Map<Data, Stored> entries;

    private record Stored(Data value, long expiresAtMs) {
    }

    SimpleStore(String name, SerializationService serialization) {
        this.serialization = serialization;
        this.entries = ALL.computeIfAbsent(name, each -> new ConcurrentHashMap<>());
    }

    @Override
    public MetadataAwareValue<Object> load(Object key) {
        Stored found = entries.get(serialization.<Data>toData(key));
        if (found == null || found.expiresAtMs <= System.currentTimeMillis()) {
            return null;
        }
        return new EntryLoader.MetadataAwareValue<>(serialization.toObject(found.value),
                found.expiresAtMs);
    }

    @Override
    public Map<Object, MetadataAwareValue<Object>> loadAll(Collection<Object> keys) {
        Map<Object, MetadataAwareValue<Object>> found = new HashMap<>();
        for (Object key : keys) {
            MetadataAwareValue<Object> value = load(key);
            if (value != null) {
                found.put(key, value);
            }
        }
        return found;
    }

    @Override
    public Iterable<Object> loadAllKeys() {
        return entries.keySet().stream().map(key -> serialization.toObject(key)).toList();
    }

    @Override
    public void store(Object key, MetadataAwareValue<Object> value) {
        entries.put(serialization.toData(key), new Stored(serialization.toData(value.getValue()),
                value.getExpirationTime()));
    }

    @Override
    public void storeAll(Map<Object, MetadataAwareValue<Object>> all) {
        all.forEach(this::store);
    }

    @Override
    public void delete(Object key) {
        entries.remove(serialization.<Data>toData(key));
    }

    @Override
    public void deleteAll(Collection<Object> keys) {
        keys.forEach(this::delete);
    }
}
