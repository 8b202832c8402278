package io.imapwal.hazelcast.member;

import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.core.LifecycleEvent;
import com.hazelcast.internal.serialization.InternalSerializationService;
import com.hazelcast.spi.impl.NodeEngine;
import com.hazelcast.spi.properties.ClusterProperty;
import io.imapwal.hazelcast.append.AgentLink;
import io.imapwal.hazelcast.append.AgentLinks;
import io.imapwal.hazelcast.append.OrderGuard;
import io.imapwal.hazelcast.append.Placements;
import io.imapwal.hazelcast.append.SchemaLog;
import io.imapwal.hazelcast.engine.CheckLoop;
import io.imapwal.hazelcast.engine.Composed;
import io.imapwal.hazelcast.engine.JmxBeans;
import io.imapwal.hazelcast.engine.ThisMember;
import io.imapwal.hazelcast.read.AgentReaders;
import io.imapwal.hazelcast.settle.Context;
import io.imapwal.hazelcast.settle.MapState;
import io.imapwal.hazelcast.settle.MemberMaps;
import io.imapwal.hazelcast.settle.PartitionMoves;
import io.imapwal.hazelcast.settle.PartitionOwnership;
import io.imapwal.hazelcast.settle.Reconciler;
import io.imapwal.hazelcast.transactions.TransactionInquiry;
import io.imapwal.wire.AgentEndpoint;
import io.imapwal.wire.Agents;
import io.imapwal.wire.Candidates;
import io.imapwal.wire.Pulse;

import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.util.List;
import java.util.Properties;

/** The parts of the plug-in on one member. They are made here, in one pass, and ended. */
public final class WalPlugin {
    private static final String VERSION = version();

    private final MemberMaps maps;
    private final TransactionInquiry inquiry;
    private final LocalMaps localMaps;
    private final LeftOut leftOut;
    private final Agents agents;
    private final JmxBeans beans;

    private WalPlugin(MemberMaps maps, TransactionInquiry inquiry, LocalMaps localMaps,
            LeftOut leftOut, Agents agents, JmxBeans beans) {
        this.maps = maps;
        this.inquiry = inquiry;
        this.localMaps = localMaps;
        this.leftOut = leftOut;
        this.agents = agents;
        this.beans = beans;
    }

    /** Makes the parts, for {@link Composed}. */
    public static List<?> compose(NodeEngine nodeEngine) {
        ThisMember member = new ThisMember(ThisMember.original(nodeEngine.getHazelcastInstance()));
        PythonPickle.register((InternalSerializationService) nodeEngine.getSerializationService(),
                member.logger());
        JmxBeans beans = new JmxBeans(member.instance().getName(), member.logger(),
                nodeEngine.getProperties().getBoolean(ClusterProperty.ENABLE_JMX));
        OrderGuard guard = new OrderGuard(nodeEngine, member.cluster());
        SchemaLog schemas = new SchemaLog(member.nodeEngine());
        PartitionOwnership ownership = PartitionMoves.of(nodeEngine).ownership();
        CheckLoop views = LeftOut.checks(member.logger());
        Agents agents = new Agents(settings -> new Candidates(settings,
                member.cluster()::membership, VERSION, member.partitionCount(),
                () -> pulse(nodeEngine, settings.agent())));
        AgentReaders readers = new AgentReaders(agents, member.name());
        Reconciler reconciler = new Reconciler(member, ownership, readers);
        AgentLinks links = new AgentLinks(member, map -> DurableMaps.isDurable(nodeEngine, map),
                settings -> {
                    AgentLink link = new AgentLink(member, agents.of(settings), guard, schemas,
                            reconciler, ownership.repeats(), views::request);
                    beans.add(link.bean(), settings.agent().toString());
                    return link;
                });
        MemberMaps maps = new MemberMaps(new Context(member, links, readers,
                new Placements(guard), ownership, reconciler), guard, schemas, beans);
        LocalMaps localMaps = new LocalMaps(maps);
        LeftOut leftOut = new LeftOut(maps, localMaps, views);
        TransactionInquiry inquiry = new TransactionInquiry(maps);
        WalPlugin plugin = new WalPlugin(maps, inquiry, localMaps, leftOut, agents, beans);
        beans.add(new MemberBean(maps));
        member.instance().getLifecycleService().addLifecycleListener(plugin::changed);
        member.instance().getCluster().addMembershipListener(leftOut.members());
        return List.of(plugin, maps, localMaps, inquiry, leftOut);
    }

    /** What a beat to an agent reports. */
    private static Pulse.State pulse(NodeEngine nodeEngine, AgentEndpoint agent) {
        MemberMaps maps = Composed.existing(nodeEngine, MemberMaps.class);
        return new Pulse.State(maps == null ? 0 : maps.unsettled(agent),
                Durability.of(nodeEngine).report());
    }

    public static WalPlugin of(HazelcastInstance instance) {
        return Composed.of(ThisMember.original(instance).node.getNodeEngine(), WalPlugin.class);
    }

    public ThisMember member() {
        return maps.member();
    }

    public MemberMaps maps() {
        return maps;
    }

    /** Finds out which transactions have ended. */
    public TransactionInquiry inquiry() {
        return inquiry;
    }

    public LocalMaps localMaps() {
        return localMaps;
    }

    public LeftOut leftOut() {
        return leftOut;
    }

    private void changed(LifecycleEvent event) {
        switch (event.getState()) {
            case SHUTTING_DOWN -> {
                maps.reconciler().drain();
                member().leave();
            }
            case MERGING -> dropAll();
            case MERGED, MERGE_FAILED -> {
                leftOut.forget();
                member().merging(false);
            }
            case SHUTDOWN -> close();
            default -> { }
        }
    }

    /**
     * Drops all maps, because Hazelcast would merge the entries that are in memory. The log has
     * them.
     */
    private void dropAll() {
        member().merging(true);
        // Also maps that are not in memory here: their state belongs to this cluster.
        localMaps.drop(maps.states().stream().map(MapState::map).toList());
        // A key may have got its place while its map was closed. Later ones are refused.
        maps.placements().clear();
    }

    private void close() {
        member().close();
        beans.close();
        leftOut.close();
        maps.close();
        maps.links().close();
        maps.readers().close();
        agents.close();
    }

    private record MemberBean(MemberMaps maps) implements JmxBeans.Member {
        @Override
        public String getVersion() {
            return VERSION;
        }

        @Override
        public int getMaps() {
            return maps.states().size();
        }

        @Override
        public int getKeysInDoubt() {
            return maps.reconciler().size();
        }
    }

    private static String version() {
        try (InputStream in = WalPlugin.class.getResourceAsStream(
                "/io/imapwal/hazelcast/plugin.properties")) {
            Properties properties = new Properties();
            if (in != null) {
                properties.load(in);
            }
            return properties.getProperty("version", "unknown");
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }
}
