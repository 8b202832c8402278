package io.imapwal.hazelcast.member;

import com.hazelcast.map.MapLoader;
import com.hazelcast.map.MapStoreFactory;

import java.util.Properties;

/**
 * Makes the map store of a durable map. {@link DurableMaps} gives it to each of them; a section of
 * a member's configuration can also name it, for maps with an agent or settings of their own:
 *
 * <pre>{@code
 * map:
 *   "sessions-*":
 *     map-store:
 *       enabled: true
 *       initial-mode: EAGER
 *       factory-class-name: io.imapwal.hazelcast.member.WalMapStoreFactory
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
}
