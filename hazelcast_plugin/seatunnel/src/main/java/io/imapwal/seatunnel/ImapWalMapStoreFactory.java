package io.imapwal.seatunnel;

import com.hazelcast.map.MapLoader;
import com.hazelcast.map.MapStoreFactory;

import java.util.Properties;

/**
 * Makes the maps of SeaTunnel's engine durable, in {@code hazelcast.yaml} of each server:
 *
 * <pre>
 * map:
 *   engine*:
 *     map-store:
 *       enabled: true
 *       initial-mode: EAGER
 *       factory-class-name: io.imapwal.seatunnel.ImapWalMapStoreFactory
 *       properties:
 *         agent: tcp://127.0.0.1:7701
 * </pre>
 */
public final class ImapWalMapStoreFactory implements MapStoreFactory<Object, Object> {

    @Override
    @SuppressWarnings({"unchecked", "rawtypes"})
    public MapLoader<Object, Object> newMapStore(String mapName, Properties properties) {
        // An EntryStore is a MapLoader of values with their expiry. Hazelcast checks with
        // instanceof.
        return (MapLoader) new ImapWalMapStore();
    }
}
