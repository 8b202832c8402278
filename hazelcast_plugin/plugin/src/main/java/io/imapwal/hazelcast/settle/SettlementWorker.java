package io.imapwal.hazelcast.settle;

import com.hazelcast.internal.partition.InternalPartition;
import com.hazelcast.internal.partition.InternalPartitionService;
import io.imapwal.hazelcast.LogUnavailable;
import io.imapwal.hazelcast.append.AgentLink;
import io.imapwal.hazelcast.append.SchemaLog;
import io.imapwal.hazelcast.engine.PartitionThreads;
import io.imapwal.hazelcast.engine.ThisMember;
import io.imapwal.hazelcast.read.Readers;
import io.imapwal.wire.AgentError;
import io.imapwal.wire.AgentSettings;
import io.imapwal.wire.ListingGone;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import java.util.logging.Level;

/**
 * Settles partitions, and retries until all are settled. Its thread runs while there is something
 * to settle, and for some time after a member has left, because a lost partition may be assigned to
 * this member without an event.
 */
final class SettlementWorker implements MapState.Settler {
    private static final long WATCH_NANOS = TimeUnit.SECONDS.toNanos(30);
    private static final long WATCH_PAUSE_MS = 50;
    /** A partition's thread may be busy for longer; it holds the partition then. */
    private static final long HOLD_WAIT_S = 10;
    private static final long LOAD_NANOS = TimeUnit.SECONDS.toNanos(2);
    private static final long MIN_PAUSE_MS = 20;
    private static final long MAX_PAUSE_MS = 1000;
    /**
     * The most keys in memory of partitions that are settled together, because they are remembered
     * meanwhile.
     */
    private static final int GROUP_KEYS = 500_000;

    private final Context context;
    private final ThisMember member;
    private final PartitionOwnership ownership;
    private final SchemaLog schemas;
    private final Supplier<Collection<MapState>> states;
    /** What was logged last, by map, until its partitions are settled. */
    private final Map<String, String> said = new ConcurrentHashMap<>();
    private Thread thread;
    private boolean asked;
    private long watchUntil = System.nanoTime();
    private boolean closed;

    /** @param states of the maps that are used on this member */
    SettlementWorker(Context context, SchemaLog schemas, Supplier<Collection<MapState>> states) {
        this.context = context;
        this.member = context.member();
        this.ownership = context.ownership();
        this.schemas = schemas;
        this.states = states;
    }

    @Override
    public synchronized void wake() {
        if (closed) {
            return;
        }
        asked = true;
        notifyAll();
        if (thread == null) {
            thread = new Thread(this::run, "imap-wal-settlement");
            thread.setDaemon(true);
            thread.start();
        }
    }

    /** A member has left. */
    synchronized void watch() {
        watchUntil = System.nanoTime() + WATCH_NANOS;
        wake();
    }

    synchronized void close() {
        closed = true;
        notifyAll();
        if (thread != null) {
            thread.interrupt();
        }
    }

    private void run() {
        long pauseMs = MIN_PAUSE_MS;
        while (true) {
            boolean done = false;
            try {
                if (isWatching()) {
                    states.get().stream().filter(MapState::isOpen).forEach(MapState::demandAll);
                }
                done = round();
            } catch (RuntimeException | Error e) {  // partitions wait for this thread
                // A member is also not running while the cluster's state is PASSIVE, which may end.
                Level level = member.nodeEngine().isRunning() ? Level.SEVERE : Level.FINE;
                member.logger().log(level, "imap-wal: settling partitions failed; it is retried",
                        e);
            }
            pauseMs = done ? MIN_PAUSE_MS : Math.min(MAX_PAUSE_MS, pauseMs * 2);
            if (!pause(done, pauseMs)) {
                return;
            }
        }
    }

    private synchronized boolean isWatching() {
        return watchUntil - System.nanoTime() > 0;
    }

    /** False: there is nothing to do, and the thread ends. */
    private synchronized boolean pause(boolean done, long pauseMs) {
        boolean watching = isWatching();
        if (closed || done && !asked && !watching) {
            thread = null;
            return false;
        }
        if (!asked) {
            try {
                wait(done ? WATCH_PAUSE_MS : pauseMs);
            } catch (InterruptedException e) {
                closed = true;
            }
        }
        asked = false;
        return true;
    }

    /** Settles what can be settled now. @return whether nothing is left */
    private boolean round() {
        boolean all = true;
        Map<AgentLink, String> failed = new HashMap<>();
        List<MapState> waiting = new ArrayList<>(states.get());
        waiting.removeIf(state -> !state.isOpen() || state.isLoaded()
                && !state.wholeness().isAnyUnsettled());
        // Loaded maps first: they are in use, and to load a map, other members are asked.
        waiting.sort(Comparator.comparing(state -> !state.isLoaded()));
        for (MapState state : waiting) {
            AgentLink link = context.links().of(state.settings());
            // An agent that does not serve this member is asked once in a round, because the maps
            // of other agents wait meanwhile.
            String why = failed.get(link);
            if (why == null && !state.settling().tryLock()) {
                all = false;
                continue;
            }
            if (why == null) {
                try {
                    all &= settle(state);
                } catch (IOException | ExecutionException | RuntimeException e) {
                    why = AgentError.reason(cause(e));
                    if (isOfAgent(cause(e))) {
                        failed.put(link, why);
                    }
                } catch (InterruptedException e) {
                    close();
                    return false;
                } finally {
                    state.settling().unlock();
                }
            }
            if (why != null) {
                all = false;
                say(state, why);
            }
        }
        return all;
    }

    private static Throwable cause(Exception e) {
        return e instanceof ExecutionException ? e.getCause() : e;
    }

    /**
     * Whether the agent would answer no request for another map either. Otherwise this map alone
     * failed, such as one of a program, or one whose partition migrates.
     */
    private static boolean isOfAgent(Throwable cause) {
        Throwable reason = cause instanceof LogUnavailable ? cause.getCause() : cause;
        return reason instanceof AgentError error ? !error.connectionStays()
                : reason instanceof IOException && !(reason instanceof ListingGone);
    }

    private void say(MapState state, String why) {
        Map<Integer, Wholeness.Unsettled> unsettled = state.wholeness().unsettled();
        unsettled.values().forEach(each -> each.reason = why);
        if (!why.equals(said.put(state.map(), why))) {
            member.logger().warning("imap-wal: map \"" + state.map() + "\": " + unsettled.size()
                    + " partition(s) wait to be "
                    + (state.isLoaded() ? "compared with" : "restored from")
                    + " the log; this is retried: " + why);
        }
    }

    /**
     * The first load of a map, on the caller's thread, so that maps do not wait for each other. The
     * other members often open it shortly after. If it fails, it is retried by this worker.
     *
     * @param generation in which the map was opened
     */
    @Override
    public void load(MapState state, int generation) {
        try {
            long deadline = System.nanoTime() + LOAD_NANOS;
            for (long pauseMs = 1; !loaded(state, generation)
                    && System.nanoTime() - deadline < 0; pauseMs *= 2) {
                TimeUnit.MILLISECONDS.sleep(pauseMs);
            }
        } catch (IOException | ExecutionException | RuntimeException e) {
            say(state, AgentError.reason(cause(e)));
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
        if (state.isOpen() && (!state.isLoaded() || state.wholeness().isAnyUnsettled())) {
            wake();
        }
    }

    /** @return whether nothing is left: also if the map was closed meanwhile */
    private boolean loaded(MapState state, int generation) throws IOException, InterruptedException,
            ExecutionException {
        state.settling().lock();
        try {
            return !state.isOpen() || state.opening().generation() != generation || settle(state);
        } finally {
            state.settling().unlock();
        }
    }

    /** @return whether nothing is left */
    private boolean settle(MapState state) throws IOException, InterruptedException,
            ExecutionException {
        AgentSettings settings = state.settings();
        AgentLink link = context.links().of(settings);
        int generation = state.opening().generation();
        if (!state.isLoaded()) {
            state.demandAll();
            // The first partitions of a new cluster are assigned without an event.
            FormerCluster.scannedPartitions(member.nodeEngine());
        }
        Map<Integer, Wholeness.Unsettled> held = new HashMap<>(state.wholeness().unsettled());
        held.values().removeIf(each -> !state.isLoaded() && each.quiet);
        if (!held.isEmpty()) {
            new PartitionThreads(member.nodeEngine())
                    .run(held.keySet(), state::holdUnsettled, HOLD_WAIT_S);
            // While the view is claimed.
            state.memoryDigests().begin(held.keySet());
        }
        for (Wholeness.Unsettled each : state.wholeness().unsettled().values()) {
            if (each.leaving != null && !member.cluster().members().contains(each.leaving)) {
                // Hazelcast reports it later, on another thread.
                ownership.departures().add(Set.of(each.leaving));
            }
        }
        Set<UUID> lost = ownership.departures().awaitTurn();
        link.viewWithout(lost);
        // Partitions that were gained while the view was claimed are settled too.
        Map<Integer, Wholeness.Unsettled> unsettled = state.wholeness().unsettled();
        Map<Integer, Wholeness.Unsettled> now = ready(unsettled);
        if (!ownership.departures().members().equals(lost)) {
            return false;
        }
        if (!now.isEmpty()) {
            compare(state, generation, now);
        }
        return ownership.assigned() && noteLoaded(state, generation)
                && !state.wholeness().isAnyUnsettled();
    }

    private static boolean noteLoaded(MapState state, int generation) {
        if (!state.wholeness().isAnyUnsettled()) {
            state.opening().setLoaded(generation);
        }
        return state.isLoaded();
    }

    private void compare(MapState state, int generation,
            Map<Integer, Wholeness.Unsettled> partitions)
            throws IOException, InterruptedException, ExecutionException {
        long from = System.nanoTime();
        long read = 0;
        long set = 0;
        long removed = 0;
        AgentSettings settings = state.settings();
        Readers readers = context.readers().of(settings);
        Boolean asked = state.opening().question().take(generation, partitions.keySet());
        boolean known = asked == null ? readers.known(state.map()) : asked;
        try (Readers.Loan loan = readers.borrow()) {
            if (known) {
                loan.reader().schemas(schemas::register);
            }
            for (Map<Integer, Wholeness.Unsettled> group : groups(state, partitions)) {
                Settlement settlement = new Settlement(member, state, group);
                try {
                    settlement.run(known ? loan.reader() : null);
                } finally {
                    read += settlement.read();
                    set += settlement.set();
                    removed += settlement.removed();
                }
            }
            said.remove(state.map());
            state.forgetDigests();
        } finally {
            // Some of them may be settled, also if one failed.
            long settled = partitions.keySet().stream().filter(state.wholeness()::whole).count();
            long nanos = System.nanoTime() - from;
            state.countSettled(settled, nanos);
            Level level = read + set + removed == 0 && settled == partitions.size()
                    ? Level.FINE : Level.INFO;
            // For thousands of empty maps, making the text took most of the time here.
            if (member.logger().isLoggable(level)) {
                member.logger().log(level, String.format("imap-wal: map \"%s\": %d of %d"
                        + " partition(s) %s from %s: %,d entries compared, %,d set, "
                        + "%,d removed, in %,d ms", state.map(), settled, partitions.size(),
                        state.isLoaded() ? "settled" : "restored",
                                context.links().of(settings).agent(), read, set, removed,
                        TimeUnit.NANOSECONDS.toMillis(nanos)));
            }
        }
    }

    /** Those that this member owns, and whose former owners have left if that matters. */
    private Map<Integer, Wholeness.Unsettled> ready(Map<Integer, Wholeness.Unsettled> unsettled) {
        InternalPartitionService partitions = member.nodeEngine().getPartitionService();
        Map<Integer, Wholeness.Unsettled> ready = new HashMap<>();
        unsettled.forEach((id, reason) -> {
            InternalPartition partition = partitions.getPartition(id, false);
            if (reason.leaving != null
                    && !ownership.departures().members().contains(reason.leaving)) {
                reason.reason = "member " + reason.leaving
                        + " handed it over with changes whose outcome is not known, and has not"
                        + " left yet";
            } else if (!reason.quiet) {
                reason.reason = "changes that began before wait for their acknowledgement";
            } else if (partition.isLocal() && !partition.isMigrating()) {
                ready.put(id, reason);
            }
        });
        return ready;
    }

    private List<Map<Integer, Wholeness.Unsettled>> groups(MapState state,
            Map<Integer, Wholeness.Unsettled> partitions) {
        List<Map<Integer, Wholeness.Unsettled>> groups = new ArrayList<>();
        Map<Integer, Wholeness.Unsettled> group = new HashMap<>();
        long keys = 0;
        for (Map.Entry<Integer, Wholeness.Unsettled> each : partitions.entrySet()) {
            int size = state.size(each.getKey());
            if (!group.isEmpty() && keys + size > GROUP_KEYS) {
                groups.add(group);
                group = new HashMap<>();
                keys = 0;
            }
            group.put(each.getKey(), each.getValue());
            keys += size;
        }
        groups.add(group);
        return groups;
    }
}
