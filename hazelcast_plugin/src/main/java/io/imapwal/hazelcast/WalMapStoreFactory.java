package io.imapwal.hazelcast;

import com.hazelcast.config.MapStoreConfig;
import com.hazelcast.map.MapLoader;
import com.hazelcast.map.MapStoreFactory;
import com.hazelcast.spi.impl.NodeEngine;

import java.util.Properties;

/**
 * The class that a member's configuration names as the {@code factory-class-name} of a {@code
 * map-store}. Map names may have wildcards.
 *
 * <pre>{@code
 * map:
 *   "*":
 *     map-store:
 *       enabled: true
 *       factory-class-name: io.imapwal.hazelcast.WalMapStoreFactory
 *       properties:
 *         agent: ipc:///run/imap-wal/agent.sock
 * }</pre>
 */
public final class WalMapStoreFactory implements MapStoreFactory<Object, Object> {

    @Override
    @SuppressWarnings({"unchecked", "rawtypes"})
    public MapLoader<Object, Object> newMapStore(String mapName, Properties properties) {
        // An EntryStore is a MapLoader of values with their expiry. Hazelcast checks with
        // instanceof.
        return (MapLoader) new WalMapStore();
    }

    /** Whether this member's configuration names this factory for the map. */
    static boolean isNamed(NodeEngine nodeEngine, String map) {
        MapStoreConfig config = nodeEngine.getConfig().findMapConfig(map).getMapStoreConfig();
        return config.isEnabled()
                && WalMapStoreFactory.class.getName().equals(config.getFactoryClassName());
    }
}
