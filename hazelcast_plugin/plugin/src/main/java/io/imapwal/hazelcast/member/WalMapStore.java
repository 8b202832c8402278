package io.imapwal.hazelcast.member;

import com.hazelcast.config.EvictionPolicy;
import com.hazelcast.config.InvalidConfigurationException;
import com.hazelcast.config.MapConfig;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.internal.serialization.Data;
import com.hazelcast.internal.serialization.InternalSerializationService;
import com.hazelcast.map.EntryStore;
import com.hazelcast.map.MapLoaderLifecycleSupport;
import com.hazelcast.partition.PartitioningStrategy;
import com.hazelcast.spi.exception.RetryableHazelcastException;
import com.hazelcast.spi.impl.NodeEngine;
import io.imapwal.hazelcast.LogUnavailable;
import io.imapwal.hazelcast.NotAppended;
import io.imapwal.hazelcast.OutcomeUnknown;
import io.imapwal.hazelcast.append.AgentLink;
import io.imapwal.hazelcast.append.Change;
import io.imapwal.hazelcast.append.PlacedKeys;
import io.imapwal.hazelcast.engine.ClassNames;
import io.imapwal.hazelcast.engine.Composed;
import io.imapwal.hazelcast.engine.ThisMember;
import io.imapwal.hazelcast.read.KeyPages;
import io.imapwal.hazelcast.read.LogEntry;
import io.imapwal.hazelcast.settle.MapState;
import io.imapwal.hazelcast.settle.MemberMaps;
import io.imapwal.hazelcast.settle.MemoryWatch;
import io.imapwal.hazelcast.structures.ItemLog;
import io.imapwal.wire.AgentSettings;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

/**
 * Logs the changes of one map on one member. A call returns when the change is in the log. Then
 * Hazelcast changes memory.
 *
 * <p>Keys and values are Hazelcast {@link Data} in both directions, so loading needs no class of
 * the user and keeps all bytes.
 */
public final class WalMapStore implements EntryStore<Object, Object>,
        MapLoaderLifecycleSupport, LoggedMap, ItemLog {
    private String map;
    private byte[] mapUtf8;
    private LocalMaps localMaps;
    private ThisMember member;
    private MemberMaps maps;
    private AgentSettings settings;
    private AgentLink link;
    private MapState state;
    private boolean readThrough;
    private volatile boolean destroyed;
    /**
     * Partitions that are cleared in the log, while Hazelcast removes their keys from memory in
     * steps.
     */
    private final Set<Integer> clearing = ConcurrentHashMap.newKeySet();
    private InternalSerializationService serialization;
    private volatile PartitioningStrategy<?> strategy;
    private volatile boolean strategyKnown;

    /**
     * Throws only if the configuration is wrong. Hazelcast calls this whenever it needs the map,
     * also on a member that has just forwarded a client's change to its owner. An error from here
     * would tell the client that nothing was changed. A map that cannot be used yet refuses its
     * operations: {@link LoggedRecordStore}.
     */
    @Override
    public void init(HazelcastInstance instance, Properties properties, String mapName) {
        map = mapName;
        mapUtf8 = mapName.getBytes(StandardCharsets.UTF_8);
        try {
            settings = AgentSettings.of(mapName, properties);
        } catch (IllegalArgumentException e) {
            throw new InvalidConfigurationException(e.getMessage());
        }
        NodeEngine nodeEngine = ThisMember.original(instance).node.getNodeEngine();
        localMaps = Composed.of(nodeEngine, LocalMaps.class);
        maps = Composed.of(nodeEngine, MemberMaps.class);
        member = maps.member();
        MapConfig config = member.nodeEngine().getConfig().findMapConfig(mapName);
        MapRequirements.check(member.nodeEngine(), map, config);
        readThrough = settings.readThrough()
                || config.getEvictionConfig().getEvictionPolicy() != EvictionPolicy.NONE
                || !MemoryWatch.possible();
        serialization = (InternalSerializationService) member.nodeEngine()
                .getSerializationService();
        link = maps.links().of(settings);
        state = maps.state(mapName);
        state.opening().use(settings);
    }

    /**
     * Forgets the state of the map. Hazelcast also calls this at a graceful shutdown. Only a user's
     * {@code destroy} is logged.
     */
    @Override
    public void destroy() {
        if (state == null || destroyed) {
            return;
        }
        destroyed = true;
        Destruction destruction = Destruction.isAsked(member)
                ? new Destruction(maps, map, settings) : null;
        try {
            if (destruction != null) {
                destruction.run();
            }
        } catch (RuntimeException e) {
            // Otherwise Hazelcast would keep the map in memory, with entries that the log no longer
            // has.
            localMaps.discard(map);
            throw e;
        } finally {
            maps.forget(map);
            if (destruction != null) {
                destruction.informMembers();
            }
        }
    }

    @Override
    public void store(Object key, MetadataAwareValue<Object> value) {
        try {
            PlacedKeys placed = placed();
            if (!isLogged(key, value.getValue(), placed)) {
                link.append(List.of(upsert(key, value)));
            }
            placed.end();
        } catch (RetryableHazelcastException e) {
            if (!maps.guard().onBackup(partition(keyData(key)))) {
                throw e;
            }
        }
    }

    @Override
    public void storeAll(Map<Object, MetadataAwareValue<Object>> entries) {
        List<Change> changes = new ArrayList<>(entries.size());
        PlacedKeys placed = placed();
        entries.forEach((key, value) -> {
            if (!isLogged(key, value.getValue(), placed)) {
                changes.add(upsert(key, value));
            }
        });
        link.append(changes);
        placed.end();
    }

    @Override
    public void delete(Object key) {
        PlacedKeys placed = placed();
        if (!isLogged(key, null, placed)) {
            link.append(List.of(tombstone(key)));
        }
        placed.end();
    }

    /**
     * Hazelcast calls this only for {@code clear}, with keys of one partition that are in memory
     * and not locked. With offload it does so once for each 10,000 keys; nothing else changes the
     * partition in between.
     */
    @Override
    public void deleteAll(Collection<Object> keys) {
        int partition = partition(keyData(keys.iterator().next()));
        if (maps.guard().onBackup(partition)) {
            return;
        }
        if (state.locked(partition) > 0) {
            if (clearing.remove(partition)) {
                compare(partition);
                throw new OutcomeUnknown("map \"" + map + "\": a key of partition " + partition
                        + " was locked while the partition was cleared."
                        + " The log has deleted all of its keys, the locked one too; memory is"
                        + " being compared with the log", null);
            }
            deleteUnlocked(partition, keys);
            return;
        }
        boolean more = state.size(partition) > keys.size();
        try {
            clear(partition);
        } catch (RuntimeException e) {
            if (clearing.remove(partition)) {
                compare(partition);
            }
            throw e;
        }
        if (more) {
            clearing.add(partition);
        } else {
            clearing.remove(partition);
        }
    }

    /**
     * The log has deleted all keys of the partition, and memory still has those that Hazelcast
     * would have removed in later steps.
     */
    private void compare(int partition) {
        maps.doubt(map, partition);
    }

    @Override
    public void clearEvicted(int partition) {
        if (maps.guard().onBackup(partition)) {
            return;
        }
        state.requireSettled(partition);
        if (!readThrough && !state.wholeness().partial(partition)) {
            return;
        }
        if (state.locked(partition) > 0) {
            deleteUnlocked(partition, List.of());
        } else {
            clear(partition);
        }
    }

    private void clear(int partition) {
        state.requireSettled(partition);
        maps.logClear(link, map, partition);
    }

    /** Hazelcast does not clear locked keys. */
    private void deleteUnlocked(int partition, Collection<Object> keys) {
        state.requireSettled(partition);
        if (readThrough || state.wholeness().partial(partition)) {
            throw state.outcome(partition, new NotAppended("map \"" + map
                    + "\": partition " + partition
                    + " has locked keys, and perhaps evicted ones that are not locked;"
                    + " it cannot be cleared while keys are locked. Nothing was changed in it",
                    null));
        }
        List<Change> changes = new ArrayList<>(keys.size());
        PlacedKeys placed = placed();
        keys.forEach(key -> {
            if (!isLogged(key, null, placed)) {
                changes.add(tombstone(key));
            }
        });
        link.append(changes);
        placed.end();
    }

    /**
     * Hazelcast passes an object to {@link #store}. This member may not have its class, and it may
     * have other bytes when it is written again.
     */
    @Override
    public boolean endIfLogged(Data key, Object value) {
        if (!maps.placements().contains(map, key) || maps.guard().onBackup(partition(key))) {
            return false;
        }
        PlacedKeys placed = placed();
        boolean logged = isLogged(key, value, placed);
        if (logged) {
            placed.end();
        }
        return logged;
    }

    private PlacedKeys placed() {
        return new PlacedKeys(maps.placements(), map);
    }

    private boolean isLogged(Object key, Object value, PlacedKeys placed) {
        if (maps.placements().none()) {
            return false;
        }
        Data data = keyData(key);
        // A settlement may have read the log before the transaction was logged.
        state.requireSettled(partition(data));
        return placed.isLogged(data, serialization.toData(value));
    }

    /**
     * Returns null only for keys that are certainly absent. Memory has all live keys of a whole
     * partition, except keys in doubt.
     *
     * <p>Hazelcast also calls this when a backup is read that does not have the key. The result is
     * then null: a backup operation must see what the owner saw before it, but the log may already
     * have the result of the operation. What the backup then has for an evicted key does not
     * matter: if the owner is lost, the partition is settled from the log.
     */
    @Override
    @SuppressWarnings({"unchecked", "rawtypes"})
    public MetadataAwareValue<Object> load(Object key) {
        Data data = keyData(key);
        int partition = partition(data);
        if (maps.guard().readsBackup(partition)) {
            return null;
        }
        state.requireSettled(partition);
        try {
            if (!maps.reconciler().inDoubt(map, data) && !readThrough
                    && !state.wholeness().partial(partition)) {
                return null;
            }
            List<LogEntry> entries = maps.readers().newest(settings, map, List.of(data));
            return entries.isEmpty() ? null : value(entries.get(0));
        } catch (LogUnavailable e) {
            throw state.outcome(partition, e);
        }
    }

    @Override
    public Map<Object, MetadataAwareValue<Object>> loadAll(Collection<Object> keys) {
        List<Data> data = new ArrayList<>(keys.size());
        for (Object key : keys) {
            Data each = keyData(key);
            int partition = partition(each);
            state.requireSettled(partition);
            if (readThrough || state.wholeness().partial(partition)
                    || maps.reconciler().inDoubt(map, each)) {
                data.add(each);
            }
        }
        if (data.isEmpty()) {
            return Map.of();
        }
        Map<Object, MetadataAwareValue<Object>> loaded = new HashMap<>();
        maps.readers().newest(settings, map, data).stream().filter(entry -> entry.value() != null)
                .forEach(entry -> loaded.put(entry.key(), value(entry)));
        return loaded;
    }

    /**
     * For a user's {@code loadAll} after an eviction. Maps are not restored in this way: Hazelcast
     * ignores keys that did not reach their owner, and a failed load causes one error and an empty
     * partition.
     */
    @Override
    public Iterable<Object> loadAllKeys() {
        return () -> new KeyPages(maps.readers().make(settings), map, settings.restoreChunk(),
                e -> maps.readers().unavailable(settings, map, e));
    }

    private static MetadataAwareValue<Object> value(LogEntry entry) {
        return entry.expiresAtMs() == 0 ? new MetadataAwareValue<>(entry.value())
                : new MetadataAwareValue<>(entry.value(), entry.expiresAtMs());
    }

    private Change upsert(Object key, MetadataAwareValue<Object> value) {
        Object object = value.getValue();
        byte[] bytes = serialization.toData(object).toByteArray();
        long expires = value.getExpirationTime();
        return change(key, bytes, ClassNames.of(object),
                expires == MetadataAwareValue.NO_TIME_SET ? 0
                : expires);
    }

    private Change tombstone(Object key) {
        return change(key, null, ClassNames.NONE, 0);
    }

    @Override
    public void log(Map<Data, Item> set, Collection<Data> deleted) {
        List<Change> changes = new ArrayList<>(set.size() + deleted.size());
        byte[] number = ClassNames.of(0L);
        set.forEach((key, item) -> changes.add(change(key, number, item.bytes().toByteArray(),
                ClassNames.NONE, item.expiresAtMs())));
        deleted.forEach(key -> changes.add(change(key, number, null, ClassNames.NONE, 0)));
        link.append(changes);
    }

    private Change change(Object key, byte[] value, byte[] valueClass, long expiresAtMs) {
        return change(keyData(key), ClassNames.of(key), value, valueClass, expiresAtMs);
    }

    private Change change(Data data, byte[] keyClass, byte[] value, byte[] valueClass,
            long expiresAtMs) {
        int partition = partition(data);
        state.requireSettled(partition);
        byte[] keyBytes = data.toByteArray();
        link.requireSize(map, keyBytes, value);
        byte[] head = Change.head(mapUtf8, keyBytes, keyClass, value, valueClass,
                System.currentTimeMillis(), expiresAtMs, partition);
        // As late as possible: the stamp has the owner of the partition when the change is queued.
        return new Change(map, data, head, maps.guard().take(partition));
    }

    private int partition(Data key) {
        return member.partition(key);
    }

    private Data keyData(Object key) {
        return serialization.toData(key, strategy());
    }

    private PartitioningStrategy<?> strategy() {
        if (!strategyKnown) {
            // It is in the map's container, which does not exist yet when init runs.
            strategy = member.maps().getMapContainer(map).getPartitioningStrategy();
            strategyKnown = true;
        }
        return strategy;
    }
}
