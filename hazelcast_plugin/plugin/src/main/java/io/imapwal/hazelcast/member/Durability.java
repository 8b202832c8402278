package io.imapwal.hazelcast.member;

import com.hazelcast.config.Config;
import com.hazelcast.logging.ILogger;
import com.hazelcast.spi.impl.NodeEngine;
import io.imapwal.hazelcast.engine.ThisMember;
import io.imapwal.hazelcast.structures.DurableStructures;
import io.imapwal.hazelcast.structures.DurableStructures.Kind;
import io.imapwal.wire.AgentSettings;
import io.imapwal.wire.DurabilityReport;
import io.imapwal.wire.Pulse;

import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;

/**
 * Which maps and structures of a member are durable, and its reports about them: no loss of
 * durability is silent. Each map and each structure is reported once, in the member's log at its
 * first use, and to the agents with the {@link Pulse}.
 */
final class Durability {
    /** Hazelcast finds this service by the name. */
    static final String NAME = "io.imapwal:durability";

    /** Names of each kind in a report; further ones are a number only. */
    private static final int NAMES_MAX = 50;
    /** How many names of each kind are kept. Further ones have no line in the log. */
    private static final int COUNT_MAX = 10_000;

    private static final String WHY_UNNAMED = "not durable: the entries are lost when all members"
            + " stop. If that is intended, add the name to the property \"" + MemberSettings.PREFIX
            + MemberSettings.TRANSIENT_MAPS + "\"; if not, to \"" + MemberSettings.PREFIX
            + MemberSettings.DURABLE_MAPS + "\"";

    private final ILogger logger;
    private final Config config;
    private final boolean lite;
    private final MemberSettings settings;
    private final DurableMaps maps;
    private final Names durable = new Names();
    private final Names transients = new Names();
    private final Names unnamed = new Names();
    private final Names structures = new Names();

    /** The names of one kind, in the order of their first use. */
    private static final class Names {
        private final Set<String> names = new LinkedHashSet<>();

        /** Whether it is new. */
        synchronized boolean add(String name) {
            return names.size() < COUNT_MAX && names.add(name);
        }

        /** The first ones, sorted. */
        synchronized List<String> list() {
            return names.stream().limit(NAMES_MAX).sorted().toList();
        }

        synchronized int count() {
            return names.size();
        }
    }

    /** An error of the configuration ends the start of the member here. */
    Durability(NodeEngine nodeEngine) {
        this.logger = nodeEngine.getLogger(ThisMember.LOGGER);
        this.config = nodeEngine.getConfig();
        this.lite = nodeEngine.getLocalMember().isLiteMember();
        this.settings = MemberSettings.of(config.getProperties());
        this.maps = new DurableMaps(config, settings);
        this.maps.install();
    }

    static Durability of(NodeEngine nodeEngine) {
        return nodeEngine.getService(NAME);
    }

    DurableStructures structures() {
        return settings.structures();
    }

    boolean durableJobs() {
        return settings.durableJobs() && !lite;
    }

    DurableMaps maps() {
        return maps;
    }

    /** Writes into the member's log which maps are durable, and names sections that are not. */
    void reportStart() {
        if (lite) {
            return;
        }
        if (!maps.any()) {
            logger.warning("imap-wal: no map of this member is durable: neither the property "
                    + MemberSettings.PREFIX + AgentSettings.AGENT
                    + " nor a section of a map names an agent");
            return;
        }
        logger.info("imap-wal: durable maps: " + String.join(", ", maps.durablePatterns())
                + "; transient maps: " + (maps.transientPatterns().isEmpty() ? "none"
                : String.join(", ", maps.transientPatterns())));
        for (String section : maps.unnamedSections()) {
            unnamed.add(section);
            logger.warning("imap-wal: the maps of section \"" + section + "\" are " + WHY_UNNAMED);
        }
    }

    /** A map is used on this member. */
    void used(String map) {
        switch (maps.kind(map)) {
            case DURABLE -> {
                // Each job has maps of its own.
                if (!MemberSettings.isInternal(map)) {
                    durable.add(map);
                }
            }
            case TRANSIENT -> transients.add(map);
            case UNNAMED -> {
                if (unnamed.add(map) && !lite && maps.any()) {
                    logger.warning("imap-wal: map \"" + map + "\" is " + WHY_UNNAMED);
                }
            }
            case INTERNAL -> { }
        }
    }

    /**
     * A structure is created.
     *
     * @throws UnsupportedOperationException no log keeps it, and such structures are refused here
     */
    void demandStructure(String kind, String name) {
        for (Kind durableKind : Kind.values()) {
            if (durableKind.text().equals(kind) && settings.structures().isDurable(durableKind,
                    name)) {
                settings.structures().requireNoOtherStore(config, durableKind, name);
                used(DurableStructures.map(durableKind, name));
                return;
            }
        }
        String property = MemberSettings.durableProperty(kind);
        String what = kind + " \"" + name + "\"";
        if (settings.refuseStructures()) {
            throw new UnsupportedOperationException(what + " is refused: the property "
                    + MemberSettings.PREFIX + MemberSettings.DURABLE_STRUCTURES
                    + " is \"refuse\", and " + (property == null
                            ? "imap-wal cannot keep a " + kind + ". Use a map"
                            : "it is not durable. Add its name to \"" + property + "\"")
                    + ", or set the property to \"warn\"");
        }
        if (structures.add(what) && !lite) {
            logger.warning("imap-wal: " + what + " is not durable: it is lost when all members"
                    + " stop. " + (property == null ? "The log cannot keep a " + kind
                            : "To make it durable, add its name to \"" + property + "\""));
        }
    }

    /** Durable, transient and unnamed maps, and structures, as far as this member has used them. */
    DurabilityReport report() {
        List<Names> all = List.of(durable, transients, unnamed, structures);
        return new DurabilityReport(all.stream().map(Names::list).toList(),
                all.stream().map(Names::count).toList());
    }
}
