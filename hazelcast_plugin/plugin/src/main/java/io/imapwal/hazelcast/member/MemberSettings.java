package io.imapwal.hazelcast.member;

import com.hazelcast.config.InvalidConfigurationException;
import io.imapwal.hazelcast.structures.DurableStructures;
import io.imapwal.hazelcast.structures.DurableStructures.Kind;
import io.imapwal.wire.AgentSettings;

import java.util.EnumMap;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import java.util.function.Predicate;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/**
 * What a member's Hazelcast properties say about all of its maps. Each name begins with {@code
 * imap-wal.}:
 *
 * <pre>{@code
 * properties:
 *   imap-wal.agent: ipc:///run/imap-wal/agent.sock
 *   imap-wal.durable-maps: "*"
 *   imap-wal.transient-maps: "cache-*"
 *   imap-wal.durable-queues: "jobs"
 *   imap-wal.durable-structures: warn
 * }</pre>
 *
 * @param store            the properties of the map store, for maps that do not set them
 * @param durable          the maps that are durable, whatever section they have
 * @param transients       the maps that are not, even if {@code durable} matches
 * @param structures       the queues, ringbuffers and topics that are durable
 * @param refuseStructures whether structures that no log keeps are refused
 */
record MemberSettings(Properties store, NamePatterns durable, NamePatterns transients,
        DurableStructures structures, boolean refuseStructures) {

    static final String PREFIX = "imap-wal.";
    static final String DURABLE_MAPS = "durable-maps";
    static final String TRANSIENT_MAPS = "transient-maps";
    static final String DURABLE_STRUCTURES = "durable-structures";

    static final String WHY_NOT_INTERNAL = "maps whose names begin with \"__\" are Hazelcast's own;"
            + " of them, \"__sql.catalog\" and \"__jet.*\" can be named as durable in "
            + PREFIX + DURABLE_MAPS;

    private static final String INTERNAL = "__";
    /** Of Hazelcast's own maps, those that can be durable, as they are named: SQL and jobs. */
    static final String CATALOG = "__sql.catalog";
    private static final String JOBS = "__jet.";
    private static final Set<String> INTERNAL_DURABLE = Set.of(CATALOG, JOBS + "*");
    private static final Map<Kind, String> KINDS = Map.of(Kind.QUEUE, "durable-queues",
            Kind.RINGBUFFER, "durable-ringbuffers", Kind.TOPIC, "durable-topics");
    private static final Set<String> OWN = Stream.concat(KINDS.values().stream(),
            Stream.of(DURABLE_MAPS, TRANSIENT_MAPS, DURABLE_STRUCTURES))
            .collect(Collectors.toUnmodifiableSet());

    /** @throws InvalidConfigurationException naming the property */
    static MemberSettings of(Properties properties) {
        Properties store = new Properties();
        for (String full : properties.stringPropertyNames()) {
            if (!full.startsWith(PREFIX)) {
                continue;
            }
            String name = full.substring(PREFIX.length());
            if (AgentSettings.KNOWN.contains(name)) {
                store.setProperty(name, properties.getProperty(full));
            } else if (!OWN.contains(name)) {
                Set<String> known = new TreeSet<>(AgentSettings.KNOWN);
                known.addAll(OWN);
                throw refused(name, "is unknown; known after \"" + PREFIX + "\" are "
                        + String.join(", ", known));
            }
        }
        // An agent is there to make maps durable: without a list, all are.
        boolean agent = store.containsKey(AgentSettings.AGENT);
        NamePatterns durable = NamePatterns.parse(
                properties.getProperty(PREFIX + DURABLE_MAPS, agent ? "*" : ""));
        if (!agent && !durable.texts().isEmpty()) {
            throw needsAgent(DURABLE_MAPS);
        }
        for (String pattern : durable.texts()) {
            if (isInternal(pattern) && !INTERNAL_DURABLE.contains(pattern)) {
                throw refused(DURABLE_MAPS, "names \"" + pattern + "\": " + WHY_NOT_INTERNAL);
            }
        }
        return new MemberSettings(store, durable, NamePatterns.parse(
                properties.getProperty(PREFIX + TRANSIENT_MAPS, "")),
                structures(properties, agent), refuses(properties));
    }

    private static DurableStructures structures(Properties properties, boolean agent) {
        Map<Kind, Predicate<String>> durable = new EnumMap<>(Kind.class);
        boolean[] any = {false};
        KINDS.forEach((kind, name) -> {
            NamePatterns patterns = NamePatterns.parse(properties.getProperty(PREFIX + name, ""));
            if (!agent && !patterns.texts().isEmpty()) {
                throw needsAgent(name);
            }
            any[0] |= !patterns.texts().isEmpty();
            durable.put(kind, structure -> !isInternal(structure) && patterns.match(structure));
        });
        return new DurableStructures(durable, any[0]);
    }

    /** The property that makes structures of a kind durable; null: none does. */
    static String durableProperty(String kind) {
        return KINDS.entrySet().stream().filter(each -> each.getKey().text().equals(kind))
                .map(each -> PREFIX + each.getValue()).findFirst().orElse(null);
    }

    private static InvalidConfigurationException needsAgent(String name) {
        return refused(name, "needs " + PREFIX + AgentSettings.AGENT
                + ": the address of the agent beside this member");
    }

    /** Whether the jobs of Jet are durable: all of their maps. */
    boolean durableJobs() {
        return durable.texts().contains(JOBS + "*");
    }

    /** Whether it is a map of Hazelcast that is named as durable. */
    boolean isDurableInternal(String map) {
        return map.startsWith(JOBS) ? durableJobs()
                : map.equals(CATALOG) && durable.texts().contains(CATALOG);
    }

    /** Whether it is a map of Hazelcast. */
    static boolean isInternal(String map) {
        return map.startsWith(INTERNAL);
    }

    private static boolean refuses(Properties properties) {
        String text = properties.getProperty(PREFIX + DURABLE_STRUCTURES, "warn").strip();
        if (!text.equals("warn") && !text.equals("refuse")) {
            throw refused(DURABLE_STRUCTURES, "must be warn or refuse, not \"" + text + "\"");
        }
        return text.equals("refuse");
    }

    private static InvalidConfigurationException refused(String name, String why) {
        return new InvalidConfigurationException("property \"" + PREFIX + name + "\" " + why);
    }
}
