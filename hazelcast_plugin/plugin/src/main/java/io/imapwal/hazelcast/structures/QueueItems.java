package io.imapwal.hazelcast.structures;

import com.hazelcast.collection.QueueStore;
import com.hazelcast.internal.serialization.Data;
import com.hazelcast.internal.serialization.impl.HeapData;
import io.imapwal.hazelcast.structures.ItemLog.Item;

import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;

/** The queue store of a durable queue. Hazelcast calls it before it changes the queue. */
final class QueueItems implements QueueStore<byte[]> {
    private final LoggedItems items;
    /** The change of this item is in the log already; -1: none. */
    private long logged = -1;

    QueueItems(LoggedItems items) {
        this.items = items;
    }

    LoggedItems items() {
        return items;
    }

    /**
     * Logs an item before Hazelcast stores it, or its deletion: Hazelcast ignores the errors of
     * some of its own calls.
     *
     * @param item null: it is deleted
     */
    void logBefore(long id, Data item) {
        if (item == null) {
            delete(id);
        } else {
            items.change(Map.of(id, new Item(item, 0)), List.of());
        }
        logged = id;
    }

    private boolean isLogged(Long id) {
        boolean already = logged == id;
        logged = -1;
        return already;
    }

    private static Item item(byte[] bytes) {
        return new Item(new HeapData(bytes), 0);
    }

    @Override
    public void store(Long id, byte[] item) {
        if (!isLogged(id)) {
            items.change(Map.of(id, item(item)), List.of());
        }
    }

    @Override
    public void storeAll(Map<Long, byte[]> all) {
        Map<Long, Item> sorted = new TreeMap<>();
        all.forEach((id, item) -> sorted.put(id, item(item)));
        items.change(sorted, List.of());
    }

    @Override
    public void delete(Long id) {
        if (!isLogged(id)) {
            items.change(Map.of(), List.of(id));
        }
    }

    @Override
    public void deleteAll(Collection<Long> ids) {
        items.change(Map.of(), ids);
    }

    @Override
    public byte[] load(Long id) {
        return items.get(id).toByteArray();
    }

    @Override
    public Map<Long, byte[]> loadAll(Collection<Long> ids) {
        Map<Long, byte[]> all = new HashMap<>();
        ids.forEach(id -> all.put(id, load(id)));
        return all;
    }

    /** In the order of the queue. */
    @Override
    public Set<Long> loadAllKeys() {
        return items.load().keySet();
    }
}
