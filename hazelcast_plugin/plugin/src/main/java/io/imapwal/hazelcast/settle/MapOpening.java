package io.imapwal.hazelcast.settle;

import com.hazelcast.config.IndexConfig;
import com.hazelcast.config.MapStoreConfig;
import com.hazelcast.internal.util.ExceptionUtil;
import com.hazelcast.internal.util.ThreadUtil;
import com.hazelcast.query.impl.IndexRegistry;
import com.hazelcast.query.impl.IndexUtils;
import com.hazelcast.spi.exception.RetryableHazelcastException;
import io.imapwal.hazelcast.LogUnavailable;
import io.imapwal.hazelcast.append.AgentLink;
import io.imapwal.hazelcast.engine.Polling;
import io.imapwal.hazelcast.engine.ThisMember;
import io.imapwal.wire.AgentError;
import io.imapwal.wire.AgentSettings;
import io.imapwal.wire.Membership;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.function.IntConsumer;
import java.util.function.LongSupplier;

/**
 * Opens one map on this member. Its callers wait here until the map is open.
 *
 * <pre>
 * closed ──▶ open      the agent of every member was greeted; a failure is LogUnavailable, and
 *                      the open is tried again
 * open ──▶ loaded      every member has the map open, and the partitions of this one are settled
 * open ──▶ closed      destroy
 * loaded ──▶ closed    destroy
 * </pre>
 *
 * Invariants:
 * <ul>
 * <li>Whether the map is open and loaded changes only under the lock of this object. No thread
 *     holds it while it asks an agent or another member.
 * <li>At most one thread of a generation opens the map. What began in an earlier generation, before
 *     a close, changes nothing.
 * <li>A map that is loaded is open, and a map that is open has {@link #settings}.
 * <li>An attempt opens the map only if the members that it asked are still those of the cluster.
 * <li>A map without anything in its log is not opened while a member has entries of it, unless one
 *     has loaded it: they are older than the map's use of the log, and a settlement would remove
 *     them.
 * <li>Each action of {@link #whenLoaded} runs once: when the map is loaded or closed, or when an
 *     attempt ends without opening it.
 * </ul>
 */
public final class MapOpening {
    private static final long PAUSE_NANOS = TimeUnit.MILLISECONDS.toNanos(500);
    /** For this time after a failed attempt, later attempts fail with the same error. */
    private static final long FAILED_NANOS = TimeUnit.SECONDS.toNanos(5);
    /** How long an open waits until Hazelcast has assigned the cluster's partitions. */
    private static final long ASSIGNED_NANOS = TimeUnit.SECONDS.toNanos(2);
    /** The interval in which a waiting thread checks whether its time has passed. */
    private static final long LOOK_MS = 50;

    private final Context context;
    private final ThisMember member;
    private final String map;
    private final MapPeers peers;
    private final FirstQuestion question;
    private final Wholeness wholeness;
    private final LongSupplier entries;
    private final IntConsumer load;

    private volatile AgentSettings settings;
    /** A thread opens the map. */
    private boolean opening;
    /** No attempt to open the map begins before this time. */
    private long nextNanos = System.nanoTime();
    /** Why the last attempt that ended failed; null: it did not fail. */
    private RuntimeException failure;
    private long failedNanos;
    private volatile boolean open;
    /** All partitions that this member owned were settled once. */
    private volatile boolean loaded;
    /** Increases with each close: tasks that began before it do not count after it. */
    private volatile int generation;
    /** The actions that run when the map is loaded or closed. */
    private final List<Runnable> awaited = new ArrayList<>();

    /**
     * @param entries how many entries this member has in memory
     * @param load    loads the partitions of this member, in the generation it is given
     */
    MapOpening(Context context, String map, Wholeness wholeness, LongSupplier entries,
            IntConsumer load) {
        this.context = context;
        this.member = context.member();
        this.map = map;
        this.peers = new MapPeers(member, map);
        this.question = new FirstQuestion(member.nodeEngine().getPartitionService());
        this.wholeness = wholeness;
        this.entries = entries;
        this.load = load;
    }

    MapPeers peers() {
        return peers;
    }

    /** Whether the log has entries of the map, asked while it was opened. */
    FirstQuestion question() {
        return question;
    }

    /** The link to the map's log; null until the map is used here. */
    public AgentSettings settings() {
        return settings;
    }

    public boolean isOpen() {
        return open;
    }

    public boolean isLoaded() {
        return loaded;
    }

    /**
     * For {@code getMap}: returns when the partitions of this member are loaded, and also those of
     * the others if that does not take long. It also returns if loading takes too long: operations
     * then fail with the reason.
     *
     * @throws LogUnavailable the map cannot be opened
     */
    public void awaitLoaded() throws InterruptedException {
        if (ThreadUtil.isRunningOnPartitionThread() && !loaded) {
            throw new IllegalThreadStateException("getMap(\"" + map
                    + "\") was called on a partition's thread before the map was loaded: it would"
                    + " wait for that thread");
        }
        Membership present = member.cluster().membership();
        long began = System.nanoTime();
        synchronized (this) {
            while (!loaded && !tooLong(began)) {
                wait(LOOK_MS);
            }
        }
        peers.awaitLoaded(present);
    }

    /**
     * Runs {@code then} once, when the map is loaded or is no longer being loaded. If that is
     * already so, it runs at once. It must not wait.
     */
    void whenLoaded(Runnable then) {
        synchronized (this) {
            if ((open || opening) && !loaded) {
                awaited.add(then);
                return;
            }
        }
        then.run();
    }

    /** Removes and returns the actions of {@link #whenLoaded}, and wakes the waiting threads. */
    private synchronized List<Runnable> awaited() {
        notifyAll();
        List<Runnable> now = List.copyOf(awaited);
        awaited.clear();
        return now;
    }

    /**
     * Whether the map is open and its partitions take too long.
     *
     * @throws LogUnavailable it cannot be opened
     */
    private boolean tooLong(long began) {
        if (open) {
            noteWork();
            return wholeness.isQuiet(began, settings);
        }
        RuntimeException why = closed();
        if (!(why instanceof RetryableHazelcastException)) {
            throw why;
        }
        return false;
    }

    /**
     * Each partition that this member owned has been settled.
     *
     * @param ofGeneration the generation in which that began
     */
    void setLoaded(int ofGeneration) {
        synchronized (this) {
            if (!open || ofGeneration != generation) {
                return;
            }
            loaded = true;
        }
        awaited().forEach(Runnable::run);
    }

    /** Called while a load waits for an agent that merges logs: that may take any time. */
    void noteWork() {
        wholeness.progress(context.links().of(settings).readNanos());
    }

    int generation() {
        return generation;
    }

    /** @param forget runs under the lock: what is known of the partitions is no longer valid */
    public void close(Runnable forget) {
        synchronized (this) {
            generation++;
            loaded = false;
            open = false;
            opening = false;
            nextNanos = System.nanoTime();
            failure = null;
            forget.run();
        }
        awaited().forEach(Runnable::run);
    }

    /** Begins to open the map. Returns at once: operations wait until it is open and loaded. */
    public void use(AgentSettings used) {
        settings = used;
        if (!open) {
            beginToOpen(used);
        }
    }

    /**
     * Why the map cannot be used although it exists. Begins to open it.
     *
     * @return a retryable error, or why it cannot be opened, as a new error for each caller:
     *     Hazelcast writes the caller's stack into it
     */
    public synchronized RuntimeException closed() {
        if (member.merging()) {
            return new LogUnavailable("map \"" + map + "\" is not available: member "
                    + member.name() + " is joining another cluster", null);
        }
        AgentSettings used = settings;
        if (used != null) {
            beginToOpen(used);
        }
        if (failure != null && System.nanoTime() - failedNanos < FAILED_NANOS) {
            return failure instanceof LogUnavailable
                    ? new LogUnavailable(failure.getMessage(), failure.getCause())
                    : ExceptionUtil.cloneExceptionWithFixedAsyncStackTrace(failure);
        }
        return new RetryableHazelcastException("map \"" + map
                + "\" is being opened: its agent is asked for its log");
    }

    private synchronized void beginToOpen(AgentSettings used) {
        if (open || opening || member.merging() || System.nanoTime() - nextNanos < 0) {
            return;
        }
        opening = true;
        nextNanos = System.nanoTime() + PAUSE_NANOS;
        try {
            start(used, generation);
        } catch (OutOfMemoryError e) {  // no more threads
            failed(generation, new LogUnavailable("map \"" + map + "\" cannot be opened now: "
                    + AgentError.reason(e), e));
        }
    }

    /** This member's answer to another one's {@link StatusOperation}. */
    String status() {
        if (open) {
            return loaded ? StatusOperation.LOADED : StatusOperation.OPEN;
        }
        try {
            MapStoreConfig config = member.nodeEngine().getConfig().findMapConfig(map)
                    .getMapStoreConfig();
            if (!config.isEnabled()) {
                return "member " + member.name() + " has no map-store for map \"" + map
                        + "\": all members need the same lists of what is durable,"
                        + " imap-wal.durable-maps and the others";
            }
            AgentSettings used = AgentSettings.of(map, config.getProperties());
            AgentLink link = context.links().of(used);
            peers.learnView(link);
            link.connect();
            // So both members load their partitions at the same time.
            beginToOpen(used);
            String unlogged = unlogged();
            return unlogged == null || context.readers().of(used).known(map) ? StatusOperation.READY
                    : unlogged;
        } catch (IOException | RuntimeException e) {
            return AgentError.reason(e);
        }
    }

    /** Why the map cannot be opened if its log has nothing of it; null: it can. */
    private String unlogged() {
        long count = entries.getAsLong();
        return count == 0 ? null : "member " + member.name() + " has " + count + " entries of map"
                + " \"" + map + "\" in memory, and the log has none: they were stored before the"
                + " map used imap-wal, and would be removed. Copy them first, as docs/operations.md"
                + " says under \"Entries that a map has already\"";
    }

    private void start(AgentSettings used, int ofGeneration) {
        Membership present = member.cluster().membership();
        thread(() -> {
            try {
                prepare(used, present, ofGeneration);
            } catch (WrongIndex e) {
                member.logger().warning("imap-wal: map \"" + map + "\" cannot be opened: "
                        + AgentError.reason(e.cause));
                failed(ofGeneration, e.cause);
                return;
            } catch (Throwable e) {
                String why = "map \"" + map + "\" is not available, because its log is not: "
                        + AgentError.reason(e) + ". It is available again as soon as its log is";
                member.logger().warning("imap-wal: " + why);
                failed(ofGeneration, new LogUnavailable(why,
                        e instanceof LogUnavailable ? e.getCause() : e));
                return;
            }
            opened(ofGeneration, used, present);
            load.accept(ofGeneration);
        });
    }

    private void opened(int ofGeneration, AgentSettings used, Membership present) {
        synchronized (this) {
            if (ofGeneration != generation) {
                return;
            }
            opening = false;
            if (member.cluster().isPresent(present)) {
                settings = used;
                // Partitions may have waited since before the map was used here.
                wholeness.progress();
                failure = null;
                open = true;
                notifyAll();
                return;
            }
        }
        awaited().forEach(Runnable::run);
    }

    private void failed(int ofGeneration, RuntimeException why) {
        synchronized (this) {
            if (ofGeneration != generation) {
                return;
            }
            opening = false;
            failure = why;
            failedNanos = System.nanoTime();
        }
        awaited().forEach(Runnable::run);
    }

    private void prepare(AgentSettings used, Membership present, int ofGeneration)
            throws Exception {
        AgentLink link = context.links().of(used);
        used.copies().require(link.settings().copies(), map, used.agent());
        peers.learnView(link);
        link.connect();
        link.viewWithout(context.ownership().departures().awaitTurn());
        MapPeers.Status others = peers.status(present, used.restoreTimeoutMs());
        if (!others.loaded() && others.missing() != null) {
            throw new IllegalStateException(others.missing());
        }
        awaitAssigned();
        addIndexes();
        // Makes the agent merge the logs now, not when a partition's thread waits for it.
        try {
            question.ask(context.readers().of(used), map, ofGeneration);
            // Counted before the log is asked: it has an entry before memory has it. Entries that
            // are never logged are only in maps that a member has loaded, perhaps meanwhile.
            String unlogged = others.loaded() ? null : unlogged();
            if (unlogged != null && !context.readers().of(used).known(map)
                    && !peers.status(present, used.restoreTimeoutMs()).loaded()) {
                throw new IllegalStateException(unlogged);
            }
        } catch (IOException e) {
            throw new IOException(link.agent() + " cannot read the log: " + AgentError.reason(e),
                    e);
        }
    }

    /**
     * Called before entries are loaded, so that a value that an index cannot take stays in the log
     * only. Otherwise Hazelcast adds the indexes at the first {@code getMap}, and fails because of
     * such a value in memory.
     *
     * @throws WrongIndex Hazelcast refuses its configuration
     */
    private void addIndexes() {
        List<IndexConfig> indexes = new ArrayList<>(
                member.nodeEngine().getConfig().findMapConfig(map).getIndexConfigs());
        indexes.addAll(member.maps().getMapIndexConfigs(map));
        if (!indexes.isEmpty()) {
            IndexRegistry registry = member.maps().getMapContainer(map).getGlobalIndexRegistry();
            for (IndexConfig index : registry == null ? List.<IndexConfig>of() : indexes) {
                try {
                    registry.addOrGetIndex(IndexUtils.validateAndNormalize(map, index));
                } catch (RuntimeException e) {
                    throw new WrongIndex(e);
                }
            }
        }
    }

    /** The log is not the cause, so callers get Hazelcast's own error. */
    private static final class WrongIndex extends RuntimeException {
        private static final long serialVersionUID = 1L;
        private final RuntimeException cause;

        WrongIndex(RuntimeException cause) {
            super(cause);
            this.cause = cause;
        }
    }

    private void awaitAssigned() throws InterruptedException {
        if (!Polling.until(context.ownership()::assigned, ASSIGNED_NANOS)) {
            throw new IllegalStateException(
                    "the cluster's partitions have no owners yet; the cluster's state is "
                    + member.nodeEngine().getClusterService().getClusterState());
        }
    }

    private void thread(Runnable work) {
        Thread thread = new Thread(work, "imap-wal-" + map);
        thread.setDaemon(true);
        thread.start();
    }
}
