package io.imapwal.maptests;

import com.hazelcast.config.Config;
import com.hazelcast.config.MapConfig;
import com.hazelcast.config.MapStoreConfig;
import com.hazelcast.internal.config.MapConfigReadOnly;
import com.hazelcast.spi.impl.NodeEngine;

import java.lang.ref.WeakReference;
import java.nio.file.Path;
import java.util.Collections;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.WeakHashMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;

/** Which map store maps get: those that have none, and are not Hazelcast's own. */
public final class Stores {
    /** How many maps of members have got a map store. */
    static final AtomicInteger GIVEN = new AtomicInteger();
    /** By configuration: each member has an object of its own, which does not define equals(). */
    private static final Map<Config, WeakReference<NodeEngine>> MEMBERS =
            Collections.synchronizedMap(new WeakHashMap<>());
    private static final Map<Config, Set<String>> NAMES =
            Collections.synchronizedMap(new WeakHashMap<>());
    private static String kind = "none";
    private static Agents agents;

    private Stores() {
    }

    static void use(String wanted, Path socket) {
        kind = wanted;
        agents = wanted.equals("wal") ? new Agents(socket) : null;
    }

    static void started(NodeEngine member) {
        MEMBERS.put(member.getConfig(), new WeakReference<>(member));
    }

    static void ended(NodeEngine member) {
        if (agents != null) {
            agents.release(member);
        }
    }

    /** Others may ask a member for a map before it knows its cluster: it waits, for two seconds. */
    private static UUID cluster(NodeEngine member) {
        for (int i = 0; i < 200 && member.getClusterService().getClusterId() == null; i++) {
            LockSupport.parkNanos(10_000_000);
        }
        return member.getClusterService().getClusterId();
    }

    /** What a member gets for the configuration of a map. */
    public static MapConfig added(Config config, String name, MapConfig found) {
        WeakReference<NodeEngine> known = MEMBERS.get(config);
        NodeEngine member = known == null ? null : known.get();
        if (kind.equals("none") || member == null || name.startsWith("__")
                || found.getMapStoreConfig().isEnabled()) {
            return found;
        }
        // A cluster that starts has no log, as in a test without a map store it has no entries.
        UUID cluster = cluster(member);
        if (cluster == null) {
            System.err.println("map " + name + " of a member without a cluster");
            return found;
        }
        // As `imap-wal plugin config` prints.
        MapStoreConfig store = new MapStoreConfig().setEnabled(true).setOffload(false)
                .setInitialLoadMode(MapStoreConfig.InitialLoadMode.EAGER);
        if (kind.equals("simple")) {
            store.setImplementation(new SimpleStore(cluster + "/" + name,
                    member.getSerializationService()));
        } else {
            store.setFactoryClassName("io.imapwal.hazelcast.member.WalMapStoreFactory");
            store.setProperty("agent", agents.of(member, cluster));
        }
        if (NAMES.computeIfAbsent(config, each -> ConcurrentHashMap.newKeySet()).add(name)) {
            GIVEN.incrementAndGet();
        }
        return new MapConfigReadOnly(new MapConfig(found).setMapStoreConfig(store));
    }
}
