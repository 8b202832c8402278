package io.imapwal.hazelcast.member;

import com.hazelcast.config.InvalidConfigurationException;
import com.hazelcast.config.MapConfig;
import com.hazelcast.config.MapStoreConfig;
import com.hazelcast.query.impl.IndexUtils;
import com.hazelcast.spi.impl.NodeEngine;

/** What the configuration of a map must be, so that its log can have all of its changes. */
final class MapRequirements {
    private MapRequirements() {
    }

    /**
     * @throws InvalidConfigurationException imap-wal cannot keep a map with this configuration
     * @throws IllegalArgumentException an index is wrong; the map would never open
     */
    static void check(NodeEngine node, String map, MapConfig config) {
        if (!DurableMaps.isDurable(node, map)) {
            throw new InvalidConfigurationException("map \"" + map
                    + "\": its map-store must be configured with factory-class-name "
                    + DurableMaps.FACTORY + ", not with an implementation");
        }
        if (!RecordStores.possible()) {
            throw new InvalidConfigurationException(
                    "imap-wal does not work with this version of Hazelcast, " + node.getVersion()
                    + ": its record stores are made in another way. Use a version that imap-wal's"
                    + " documentation names");
        }
        if (config.getMapStoreConfig().getWriteDelaySeconds() > 0) {
            throw new InvalidConfigurationException("map \"" + map + "\": write-delay-seconds is "
                    + config.getMapStoreConfig().getWriteDelaySeconds()
                    + "; imap-wal needs 0, because a change must be in the log before it is in"
                    + " memory");
        }
        if (config.getMapStoreConfig()
                .getInitialLoadMode() != MapStoreConfig.InitialLoadMode.EAGER) {
            throw new InvalidConfigurationException("map \"" + map
                    + "\": initial-mode is LAZY (Hazelcast's default); imap-wal needs EAGER, "
                    + "because Hazelcast answers queries on a LAZY map before it is restored, as"
                    + " if nothing were in it");
        }
        if (config.getMaxIdleSeconds() > 0) {
            throw new InvalidConfigurationException("map \"" + map + "\": max-idle-seconds is "
                    + config.getMaxIdleSeconds()
                    + "; imap-wal needs 0, because reads are not logged, so the log does not"
                    + " show when an entry was last used. Use time-to-live-seconds, or name the map"
                    + " in \"" + MemberSettings.PREFIX + MemberSettings.TRANSIENT_MAPS + "\"");
        }
        config.getIndexConfigs().forEach(index -> IndexUtils.validateAndNormalize(map, index));
    }
}
