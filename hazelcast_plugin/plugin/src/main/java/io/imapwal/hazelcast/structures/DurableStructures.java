package io.imapwal.hazelcast.structures;

import com.hazelcast.config.Config;
import com.hazelcast.config.InMemoryFormat;
import com.hazelcast.config.InvalidConfigurationException;
import com.hazelcast.config.MapConfig;
import com.hazelcast.config.MapStoreConfig;
import com.hazelcast.config.MergePolicyConfig;
import com.hazelcast.config.PartitioningStrategyConfig;
import com.hazelcast.config.QueueStoreConfig;
import com.hazelcast.partition.strategy.StringPartitioningStrategy;
import com.hazelcast.ringbuffer.impl.RingbufferService;
import com.hazelcast.spi.merge.DiscardMergePolicy;

import java.util.Map;
import java.util.function.Predicate;

/** Which queues, ringbuffers and topics of a member are durable, and the maps of their items. */
public final class DurableStructures {
    /** What a log can keep besides maps. */
    public enum Kind {
        QUEUE("queue", ""),
        RINGBUFFER("ringbuffer", ""),
        /** Hazelcast keeps its messages in a ringbuffer whose name has this prefix. */
        TOPIC("reliable topic", RingbufferService.TOPIC_RB_PREFIX);

        private final String text;
        private final String prefix;

        Kind(String text, String prefix) {
            this.text = text;
            this.prefix = prefix;
        }

        /** For messages; the name of the map begins with it, too. */
        public String text() {
            return text;
        }
    }

    private final Map<Kind, Predicate<String>> durable;
    private final boolean any;

    /**
     * @param durable which names are durable, for each kind
     * @param any     whether any name can be durable
     */
    public DurableStructures(Map<Kind, Predicate<String>> durable, boolean any) {
        this.durable = durable;
        this.any = any;
    }

    public boolean isDurable(Kind kind, String name) {
        return durable.get(kind).test(name);
    }

    /** The name of the map that has the items. */
    public static String map(Kind kind, String name) {
        return kind.text + ":" + name;
    }

    /** The configuration of a map if it has the items of a durable structure; else null. */
    public MapConfig config(String map, MapStoreConfig store) {
        for (Kind kind : Kind.values()) {
            String beginning = map(kind, "");
            if (map.startsWith(beginning)
                    && isDurable(kind, map.substring(beginning.length()))) {
                // Hazelcast takes the partition of a structure from its name.
                String key = StringPartitioningStrategy.getPartitionKey(
                        kind.prefix + map.substring(beginning.length()));
                return new MapConfig(map).setBackupCount(0).setAsyncBackupCount(0)
                        .setInMemoryFormat(InMemoryFormat.BINARY).setMapStoreConfig(store)
                        .setPartitioningStrategyConfig(
                                new PartitioningStrategyConfig(item -> key));
            }
        }
        return null;
    }

    /**
     * Called before a durable structure is made.
     *
     * @throws InvalidConfigurationException its configuration names a store of the user
     */
    public void requireNoOtherStore(Config config, Kind kind, String name) {
        boolean other = switch (kind) {
            case QUEUE -> {
                QueueStoreConfig store = config.findQueueConfig(name).getQueueStoreConfig();
                yield store != null && store.isEnabled();
            }
            case RINGBUFFER, TOPIC -> config.findRingbufferConfig(name).getRingbufferStoreConfig()
                    .isEnabled();
        };
        if (other) {
            throw new InvalidConfigurationException(kind.text + " \"" + name + "\" is durable, and"
                    + " its configuration names another store; it can have only one");
        }
    }

    /** Whether any structure can be durable. */
    boolean any() {
        return any;
    }

    /** After a split of the network, nothing is merged: the log has the items that count. */
    static MergePolicyConfig noMerge() {
        return new MergePolicyConfig().setPolicy(DiscardMergePolicy.class.getName());
    }
}
