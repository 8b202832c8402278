package io.imapwal.seatunnel;

import io.imapwal.wire.AgentSettings;
import org.apache.seatunnel.engine.imap.storage.api.IMapStorage;

import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.TimeUnit;

/**
 * One map, for SeaTunnel's {@code FileMapStore}. It ignores the results of these methods, so they
 * throw an exception for a change that is not in the log.
 */
final class ImapWalStorage implements IMapStorage {
    private static final String MAP = "businessName";
    /** Those of the file storage, which may stay in the configuration. */
    private static final List<String> OF_FILES = Arrays.asList("type", "namespace", "clusterName",
            MAP, "writeDataTimeoutMilliseconds");
    private static final String WAY_OUT = "use factory-class-name: "
            + ImapWalMapStoreFactory.class.getName() + " instead of type: imap-wal";
    private static final long OPENING_NANOS = TimeUnit.SECONDS.toNanos(5);

    private String name;
    private AgentSettings settings;
    private String thread;
    private LogMap map;
    private final Object opening = new Object();
    private volatile Map<Object, Object> read;
    private volatile long readNanos;

    @Override
    public void initialize(Map<String, Object> properties) {
        Properties own = new Properties();
        properties.forEach((key, value) -> {
            if (!OF_FILES.contains(key) && !key.contains(".")) {
                own.setProperty(key, String.valueOf(value));
            }
        });
        name = String.valueOf(properties.get(MAP));
        settings = LogClient.settings(name, own);
        thread = Thread.currentThread().getName();
    }

    /** The member may still be starting when the storage is made. */
    private synchronized LogMap map() {
        if (map == null) {
            map = LogMap.of(ThisMember.of(thread, WAY_OUT), name, settings);
        }
        return map;
    }

    @Override
    public boolean store(Object key, Object value) {
        storeAll(Collections.singletonMap(key, value));
        return true;
    }

    @Override
    public Set<Object> storeAll(Map<Object, Object> entries) {
        Map<Object, LogReader.Entry> all = new HashMap<>();
        entries.forEach((key, value) -> all.put(key, new LogReader.Entry(value, 0)));
        opened().store(all);
        return Collections.emptySet();
    }

    @Override
    public boolean delete(Object key) {
        deleteAll(Collections.singletonList(key));
        return true;
    }

    @Override
    public Set<Object> deleteAll(Collection<Object> keys) {
        opened().delete(keys);
        return Collections.emptySet();
    }

    /** For a change: what was read for the opening is not kept. */
    private LogMap opened() {
        if (read != null && System.nanoTime() - readNanos > OPENING_NANOS) {
            read = null;
        }
        return map();
    }

    /**
     * While a map is opened, SeaTunnel asks for all of it again for each batch of keys. Until they
     * are loaded, these partitions do not change, so one pass over the log answers all.
     */
    @Override
    public Map<Object, Object> loadAll() {
        synchronized (opening) {
            Map<Object, Object> all = read;
            if (all == null || System.nanoTime() - readNanos > OPENING_NANOS) {
                Map<Object, Object> fresh = new HashMap<>();
                map().loadAll().forEach((key, entry) -> fresh.put(key, entry.value));
                all = fresh;
            }
            readNanos = System.nanoTime();
            read = all;
            return all;
        }
    }

    @Override
    public Set<Object> loadAllKeys() {
        return loadAll().keySet();
    }

    @Override
    public void destroy(boolean deleteAllFileFlag) {
        // What the log has stays. imap-wal drop deletes a map.
    }
}
