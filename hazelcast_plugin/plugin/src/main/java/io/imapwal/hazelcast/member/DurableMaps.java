package io.imapwal.hazelcast.member;

import com.hazelcast.config.Config;
import com.hazelcast.config.InvalidConfigurationException;
import com.hazelcast.config.MapConfig;
import com.hazelcast.config.MapStoreConfig;
import com.hazelcast.internal.dynamicconfig.DynamicConfigurationAwareConfig;
import com.hazelcast.internal.dynamicconfig.search.ConfigSupplier;
import com.hazelcast.internal.dynamicconfig.search.Searcher;
import com.hazelcast.nio.serialization.IdentifiedDataSerializable;
import com.hazelcast.spi.impl.NodeEngine;
import io.imapwal.hazelcast.engine.Reflection;

import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;

/**
 * Which maps of a member are durable. Durability is a property of the cluster, and a map opts out
 * by name. Hazelcast gives a map the one section that matches best, so a section without a map
 * store would silently take the map out of the log.
 *
 * <pre>
 * name of the map           kind       its map store
 * begins with "__"          INTERNAL   none: Hazelcast's own maps; those of SQL and of jobs are
 *                                      DURABLE if durable-maps names them
 * has the items of a        DURABLE    of the member's properties
 * durable structure
 * in transient-maps         TRANSIENT  none
 * its section names ours    DURABLE    of the section
 * another section that      DURABLE    of that section: "default" is for all names
 * names ours matches
 * in durable-maps           DURABLE    of the member's properties
 * else                      UNNAMED    as configured; reported
 * </pre>
 *
 * Hazelcast has no public API for this: {@link #install} changes the search for the section of a
 * map. So maps whose section was added at run time get the right map store too.
 */
final class DurableMaps {
    /** The class {@code WalMapStoreFactory}, whose map stores need this class. */
    static final String FACTORY = "io.imapwal.hazelcast.member.WalMapStoreFactory";
    private static final String DEFAULT = "default";
    private static final Field SEARCHER =
            Reflection.field(DynamicConfigurationAwareConfig.class, "configSearcher");

    private final Config config;
    private final MemberSettings settings;
    /** The sections of the configuration at the start that name our map store. */
    private final Map<String, MapStoreConfig> sections = new HashMap<>();

    enum Kind {
        DURABLE, TRANSIENT, UNNAMED, INTERNAL
    }

    /** @throws InvalidConfigurationException a map that cannot be durable is named as durable */
    DurableMaps(Config config, MemberSettings settings) {
        this.config = config;
        this.settings = settings;
        for (MapConfig section : config.getMapConfigs().values()) {
            if (isOurs(section)) {
                requireNotInternal(section);
                sections.put(section.getName(), section.getMapStoreConfig());
            }
        }
    }

    /** Whether the map is durable on this member. */
    static boolean isDurable(NodeEngine nodeEngine, String map) {
        return isOurs(nodeEngine.getConfig().findMapConfig(map));
    }

    /** Whether a section names our map store. */
    static boolean isOurs(MapConfig section) {
        MapStoreConfig store = section.getMapStoreConfig();
        return store.isEnabled() && FACTORY.equals(store.getFactoryClassName());
    }

    private static void requireNotInternal(MapConfig section) {
        if (MemberSettings.isInternal(section.getName())) {
            throw new InvalidConfigurationException("section \"" + section.getName()
                    + "\" of the maps names the map store of imap-wal: "
                            + MemberSettings.WHY_NOT_INTERNAL);
        }
    }

    /** From now on, each map of this member gets the map store of its kind. */
    @SuppressWarnings({"unchecked", "rawtypes"})
    void install() {
        if (SEARCHER == null || !(config instanceof DynamicConfigurationAwareConfig)) {
            throw new InvalidConfigurationException("imap-wal does not work with this version of"
                    + " Hazelcast: it searches the configuration of maps in another way. Use a"
                    + " version that imap-wal's documentation names");
        }
        try {
            SEARCHER.set(config, new Search((Searcher) SEARCHER.get(config), this));
        } catch (IllegalAccessException e) {
            throw new IllegalStateException(e);
        }
    }

    /** Hazelcast's search with our map stores. */
    @SuppressWarnings({"unchecked", "rawtypes"})
    private record Search(Searcher hazelcasts, DurableMaps durable) implements Searcher {
        @Override
        public IdentifiedDataSerializable getConfig(String name, String fallback,
                ConfigSupplier supplier) {
            IdentifiedDataSerializable found = hazelcasts.getConfig(name, fallback, supplier);
            // Only findMapConfig() falls back to "default". Callers of getMapConfig() may change
            // what they get.
            return found instanceof MapConfig section && DEFAULT.equals(fallback)
                    ? durable.applied(name, section) : found;
        }
    }

    /**
     * The section of a map, with the map store that the map's kind demands.
     *
     * @throws InvalidConfigurationException the section contradicts the kind
     */
    MapConfig applied(String map, MapConfig section) {
        MapConfig items = ofStructure(map);
        return items != null ? items : switch (kind(map, section)) {
            case DURABLE -> new MapConfig(section).setMapStoreConfig(store(map, section));
            case TRANSIENT, INTERNAL -> isOurs(section)
                    ? new MapConfig(section).setMapStoreConfig(
                            new MapStoreConfig().setEnabled(false))
                    : section;
            case UNNAMED -> section;
        };
    }

    /** Of a map that has the items of a structure; else null. */
    private MapConfig ofStructure(String map) {
        MapStoreConfig store = ours();
        store.getProperties().putAll(settings.store());
        return settings.structures().config(map, store);
    }

    private MapStoreConfig store(String map, MapConfig section) {
        MapStoreConfig found = section.getMapStoreConfig();
        if (!isOurs(section) && found.isEnabled()) {
            throw new InvalidConfigurationException("map \"" + map + "\" is durable, and section \""
                    + section.getName() + "\" gives it another map store; a map can have only one."
                    + " Remove that one, or name the map in \"" + MemberSettings.PREFIX
                    + MemberSettings.TRANSIENT_MAPS + "\"");
        }
        MapStoreConfig named = isOurs(section) ? found : sections.get(matching(map));
        MapStoreConfig store = named == null ? ours() : new MapStoreConfig(named);
        Properties all = new Properties();
        all.putAll(settings.store());
        all.putAll(store.getProperties());
        return store.setProperties(all);
    }

    private static MapStoreConfig ours() {
        return new MapStoreConfig().setEnabled(true).setOffload(false).setWriteDelaySeconds(0)
                .setInitialLoadMode(MapStoreConfig.InitialLoadMode.EAGER)
                .setFactoryClassName(FACTORY);
    }

    /** The name of the section with our map store that matches best; null: none does. */
    private String matching(String map) {
        if (sections.containsKey(map)) {
            return map;
        }
        String best = config.getConfigPatternMatcher().matches(sections.keySet(), map);
        return best == null && sections.containsKey(DEFAULT) ? DEFAULT : best;
    }

    Kind kind(String map) {
        return kind(map, config.findMapConfig(map));
    }

    private Kind kind(String map, MapConfig section) {
        if (MemberSettings.isInternal(map)) {
            if (settings.isDurableInternal(map)) {
                return Kind.DURABLE;
            }
            if (isOurs(section)) {
                requireNotInternal(section);
            }
            return Kind.INTERNAL;
        }
        if (ofStructure(map) != null) {
            return Kind.DURABLE;
        }
        if (settings.transients().match(map)) {
            return Kind.TRANSIENT;
        }
        return isOurs(section) || matching(map) != null || settings.durable().match(map)
                ? Kind.DURABLE : Kind.UNNAMED;
    }

    /** Whether any map can be durable without a section that is added at run time. */
    boolean any() {
        return !sections.isEmpty() || !settings.durable().texts().isEmpty();
    }

    /** The sections of the configuration at the start whose maps are in neither list. */
    List<String> unnamedSections() {
        List<String> unnamed = new ArrayList<>();
        for (MapConfig section : new TreeMap<>(config.getMapConfigs()).values()) {
            String name = section.getName();
            if (!name.equals(DEFAULT) && kind(name, section) == Kind.UNNAMED) {
                unnamed.add(name);
            }
        }
        return unnamed;
    }

    /** The patterns, for people: which names are durable, unless they are transient. */
    List<String> durablePatterns() {
        Set<String> all = new TreeSet<>(settings.durable().texts());
        sections.keySet().stream().filter(each -> !settings.transients().match(each))
                .map(each -> each.equals(DEFAULT) ? "*" : each).forEach(all::add);
        return all.contains("*") ? List.of("*") : List.copyOf(all);
    }

    List<String> transientPatterns() {
        return settings.transients().texts();
    }
}
