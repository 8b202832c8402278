package io.imapwal.hazelcast.structures;

import com.hazelcast.core.HazelcastException;
import com.hazelcast.internal.serialization.Data;
import com.hazelcast.internal.serialization.InternalSerializationService;
import com.hazelcast.map.impl.MapService;
import com.hazelcast.map.impl.MapServiceContext;
import com.hazelcast.map.impl.record.Record;
import com.hazelcast.map.impl.recordstore.RecordStore;
import com.hazelcast.spi.exception.RetryableHazelcastException;
import com.hazelcast.spi.impl.NodeEngine;
import io.imapwal.hazelcast.LogUnavailable;
import io.imapwal.hazelcast.NotAppended;
import io.imapwal.hazelcast.OutcomeUnknown;
import io.imapwal.hazelcast.engine.Composed;
import io.imapwal.hazelcast.engine.PartitionThreads;
import io.imapwal.hazelcast.settle.MapState;
import io.imapwal.hazelcast.settle.MemberMaps;
import io.imapwal.hazelcast.structures.ItemLog.Item;
import io.imapwal.wire.AgentSettings;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;

/**
 * The items of one structure on the member that owns its partition: entries of a durable map, with
 * the item's number as the key. Used on the partition's thread only.
 */
final class LoggedItems {
    private static final long LOOK_MS = 100;

    private final NodeEngine nodeEngine;
    private final InternalSerializationService serialization;
    private final MapServiceContext maps;
    private final String map;
    private final int partition;
    /** The map has what was loaded, with the changes that were made here since. */
    private boolean loaded;
    private long losses;
    private Runnable refresh = () -> { };
    private MemberMaps logged;

    LoggedItems(NodeEngine nodeEngine, String map, int partition) {
        this.nodeEngine = nodeEngine;
        this.serialization = (InternalSerializationService) nodeEngine.getSerializationService();
        MapService service = nodeEngine.getService(MapService.SERVICE_NAME);
        this.maps = service.getMapServiceContext();
        this.map = map;
        this.partition = partition;
    }

    /** Whether the result of the last {@link #load} is still what the map has. */
    boolean isCurrent() {
        return loaded && losses == state().wholeness().losses(partition)
                && state().wholeness().whole(partition);
    }

    /**
     * All items, by their numbers.
     *
     * @throws RuntimeException as {@link MapState#requireSettled}; retryable, while a change of the
     *         map is in doubt
     */
    TreeMap<Long, Data> load() {
        // The first use of the map here opens it.
        RecordStore<?> records = records();
        loaded = false;
        state().requireSettled(partition);
        losses = state().wholeness().losses(partition);
        if (inDoubt()) {
            throw new RetryableHazelcastException(text()
                    + "the outcome of an earlier change is not known yet");
        }
        TreeMap<Long, Data> items = new TreeMap<>();
        records.forEach((key, record) -> items.put(serialization.toObject(key),
                serialization.toData(record.getValue())), false);
        loaded = true;
        return items;
    }

    /**
     * Whether the log has never had an item. Then the items in memory are from before the structure
     * was durable.
     */
    boolean isNew() {
        AgentSettings settings = state().settings();
        try {
            return !logged().readers().of(settings).known(map);
        } catch (IOException e) {
            throw logged().readers().unavailable(settings, map, e);
        }
    }

    /** Logs a warning: items in memory are dropped, because the log has newer ones. */
    void reportDropped(long count) {
        logged().member().logger().warning("imap-wal: " + text() + count + " items that this member"
                + " has in memory are dropped: they were added before it was durable, and the log"
                + " has had items since");
    }

    private boolean inDoubt() {
        return logged().reconciler().maps(partition).contains(map)
                || logged().reconciler().changed(partition).containsKey(map);
    }

    /** All items that the map has, by their numbers. */
    Map<Long, Data> all() {
        Map<Long, Data> items = new HashMap<>();
        records().forEach((key, record) -> items.put(serialization.toObject(key),
                serialization.toData(record.getValue())), false);
        return items;
    }

    /** @param structure makes Hazelcast's object of the structure equal to its map */
    void refreshLater(Runnable structure) {
        refresh = structure;
    }

    /**
     * Repeats this until the outcome of a change is known: a caller may be waiting for the item,
     * and perhaps no other operation comes that would refresh.
     */
    private void refreshSoon() {
        nodeEngine.getExecutionService().schedule(() -> new PartitionThreads(nodeEngine).begin(
                List.of(partition), id -> refreshNow()), LOOK_MS, TimeUnit.MILLISECONDS);
    }

    private void refreshNow() {
        if (!logged().ownership().isOwner(partition) || isCurrent()) {
            return;
        }
        try {
            refresh.run();
        } catch (RetryableHazelcastException | LogUnavailable | OutcomeUnknown e) {
            // It is tried again.
        }
        if (!isCurrent()) {
            refreshSoon();
        }
    }

    Data get(long number) {
        Record<?> record = records().getRecordOrNull(key(number), false);
        if (record == null) {
            loaded = false;
            throw new HazelcastException(text() + "item " + number + " is not in its map \"" + map
                    + "\", which nothing else may change");
        }
        return serialization.toData(record.getValue());
    }

    /**
     * Logs the changes, and then makes them in the map.
     *
     * @param set by their numbers, in this order
     */
    void change(Map<Long, Item> set, Collection<Long> deleted) {
        RecordStore<?> records = records();
        Map<Data, Item> entries = new LinkedHashMap<>();
        set.forEach((number, item) -> entries.put(key(number), item));
        List<Data> keys = new ArrayList<>(deleted.size());
        deleted.forEach(number -> keys.add(key(number)));
        boolean done = false;
        try {
            log(records).log(entries, keys);
            long now = System.currentTimeMillis();
            entries.forEach((key, item) -> records.putFromLoadBackup(key, item.bytes(),
                    item.expiresAtMs() == 0 ? Long.MAX_VALUE : item.expiresAtMs(), now));
            keys.forEach(key -> records.removeReplicatedRecord(key, false));
            done = true;
        } catch (NotAppended e) {
            done = true;
            throw e;
        } catch (OutcomeUnknown e) {
            // The reconciler sets the entries; then they are loaded again.
            loaded = false;
            done = true;
            refreshSoon();
            throw e;
        } finally {
            if (!done) {
                loaded = false;
                logged().doubt(map, partition);
            }
        }
    }

    int partition() {
        return partition;
    }

    /** What was loaded could not be used: the next operation loads it again. */
    void forget() {
        loaded = false;
    }

    /** What was loaded could be used after all. */
    void keep() {
        loaded = true;
    }

    /** Deletes all items, with one entry in the log. */
    void clear() {
        TreeMap<Long, Data> items = load();
        loaded = false;
        if (!items.isEmpty()) {
            logged().logClear(logged().links().of(map), map, partition);
            items.keySet().forEach(number -> records().removeReplicatedRecord(key(number), false));
        }
    }

    private Data key(long number) {
        return serialization.toData(number, maps.getMapContainer(map).getPartitioningStrategy());
    }

    private RecordStore<?> records() {
        return maps.getRecordStore(partition, map);
    }

    private static ItemLog log(RecordStore<?> records) {
        return (ItemLog) records.getMapContainer().getMapStoreContext().getMapStoreWrapper()
                .getImpl();
    }

    /** They do not exist yet when the first structure of the member is made. */
    private MemberMaps logged() {
        if (logged == null) {
            logged = Composed.of(nodeEngine, MemberMaps.class);
        }
        return logged;
    }

    private MapState state() {
        return logged().state(map);
    }

    private String text() {
        return map.replaceFirst(":", " \"") + "\": ";
    }
}
