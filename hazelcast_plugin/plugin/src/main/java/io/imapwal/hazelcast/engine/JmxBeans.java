package io.imapwal.hazelcast.engine;

import com.hazelcast.logging.ILogger;
import io.imapwal.hazelcast.LogUnavailable;
import io.imapwal.hazelcast.NotAppended;
import io.imapwal.hazelcast.OutcomeUnknown;

import java.lang.management.ManagementFactory;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import javax.management.InstanceAlreadyExistsException;
import javax.management.JMException;
import javax.management.MBeanServer;
import javax.management.MXBean;
import javax.management.ObjectName;

/**
 * The state and the counters of a member's plug-in for JMX. The beans are registered if
 * {@code hazelcast.jmx} is true, like those of Hazelcast:
 *
 * <pre>
 * io.imapwal:type=Member,instance=NAME
 * io.imapwal:type=Agent,instance=NAME,agent=ENDPOINT
 * io.imapwal:type=Map,instance=NAME,map=MAP
 * </pre>
 *
 * Reading them never waits for an agent, and changes nothing.
 */
public final class JmxBeans {
    private static final String DOMAIN = "io.imapwal";

    private final MBeanServer server;
    private final String instance;
    private final ILogger logger;
    private final Set<ObjectName> registered = ConcurrentHashMap.newKeySet();
    private volatile boolean closed;

    /** The plug-in of one member. */
    @MXBean
    public interface Member {
        String getVersion();

        /** How many maps have a log. */
        int getMaps();

        /** Keys for which the log may be newer than memory. They are compared with it soon. */
        int getKeysInDoubt();
    }

    /** The connection to one agent. Counters are of changes, since the member started. */
    @MXBean
    public interface Agent {
        /** The name of the log's node; empty before the first connection. */
        String getNode();

        /** The view of the log that the newest connection is in; 0 before the first one. */
        long getIncarnation();

        /** How many connections for appends were greeted. */
        long getConnections();

        boolean isConnected();

        /** Why there is no connection; empty while there is one. */
        String getFailure();

        /** Whether a newer view of the log has left this member out. */
        boolean isLeftOut();

        /** Changes that are in the log. */
        long getAppended();

        /** Callers got {@link NotAppended} or {@link LogUnavailable}. */
        long getRefused();

        /** Callers got {@link OutcomeUnknown}. */
        long getUnknown();

        /** How many agents can be used for changes now: 0 or 1, or as many as have copies. */
        int getUsableAgents();

        /** Acknowledged changes that are in fewer logs than {@code copies} says. */
        long getUnderCopied();

        /** Of these, how many have as many copies now. */
        long getCopiedAgain();

        /** Of these, how many are copied again to the next agent that can take them. */
        long getWaitingForCopies();

        /** Changes whose callers wait for the outcome now. */
        int getWaiting();
    }

    /** One map on this member. */
    @MXBean
    public interface Map {
        /** Whether the agent was reached, so that the map may be used. */
        boolean isOpen();

        /** Whether all entries are in memory. */
        boolean isLoaded();

        /** Partitions of this member that are not compared with the log yet: operations wait. */
        int getUnsettledPartitions();

        /** Why one of them waits; empty: none does. */
        String getReason();

        /**
         * Seconds in which partitions were compared with the log, also in restores, since the
         * member started.
         */
        double getSettleSeconds();

        /** How often a partition was settled. */
        long getSettledPartitions();
    }

    public JmxBeans(String instance, ILogger logger, boolean enabled) {
        this.server = enabled ? ManagementFactory.getPlatformMBeanServer() : null;
        this.instance = instance;
        this.logger = logger;
    }

    public void add(Member bean) {
        register("type=Member,instance=" + quoted(instance), bean);
    }

    public void add(Agent bean, String endpoint) {
        register("type=Agent,instance=" + quoted(instance) + ",agent=" + quoted(endpoint), bean);
    }

    public void add(Map bean, String map) {
        register("type=Map,instance=" + quoted(instance) + ",map=" + quoted(map), bean);
    }

    private static String quoted(String text) {
        return ObjectName.quote(text);
    }

    /** A bean that cannot be registered must not stop a map. */
    private void register(String keys, Object bean) {
        if (server == null || closed) {
            return;
        }
        try {
            ObjectName name = new ObjectName(DOMAIN + ":" + keys);
            registered.add(name);
            try {
                server.registerMBean(bean, name);
            } catch (InstanceAlreadyExistsException e) {
                // An instance of the same name in this JVM that was not shut down.
                server.unregisterMBean(name);
                server.registerMBean(bean, name);
            }
        } catch (JMException | RuntimeException e) {
            logger.warning("imap-wal: no JMX bean for " + keys, e);
        }
    }

    public void close() {
        closed = true;
        for (ObjectName name : registered) {
            try {
                server.unregisterMBean(name);
            } catch (JMException e) {
                logger.fine("imap-wal: the JMX bean " + name + " was not registered", e);
            }
        }
        registered.clear();
    }
}
