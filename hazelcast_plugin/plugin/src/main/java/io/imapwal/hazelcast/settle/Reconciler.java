package io.imapwal.hazelcast.settle;

import com.hazelcast.internal.serialization.Data;
import com.hazelcast.internal.util.ThreadUtil;
import com.hazelcast.map.IMap;
import io.imapwal.hazelcast.LogUnavailable;
import io.imapwal.hazelcast.append.AgentLink;
import io.imapwal.hazelcast.append.Change;
import io.imapwal.hazelcast.engine.ThisMember;
import io.imapwal.hazelcast.read.AgentReaders;
import io.imapwal.hazelcast.read.ReadWait;
import io.imapwal.wire.AgentError;
import io.imapwal.wire.SessionInfo;

import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/**
 * Makes memory equal to the log for keys in doubt.
 *
 * <p>First it needs a new welcome. From then on the agent appends nothing more of the old
 * connection. A request above the last one of the welcome is certainly not in the log, so memory is
 * already correct. For the rest, a {@link DoubtProcessor} runs on the owner of the key. After a
 * clear, the whole partition is compared with the log. The reconciler retries until it succeeds.
 * Its thread runs only while there is something to settle.
 *
 * <p>Until then the log may have a key that memory lacks. Hazelcast acknowledges the removal of an
 * absent key without a change to log. So code that finds a key absent must ask {@link #inDoubt}
 * first.
 */
public final class Reconciler implements AgentLink.Doubts {
    /**
     * Each caller adds at most one key, and then waits for an agent. More keys are a sign of
     * another problem.
     */
    private static final int MAX_KEYS = 100_000;
    private static final long MIN_PAUSE_MS = 20;
    private static final long MAX_PAUSE_MS = 1000;
    /**
     * A key needs longer only if a transaction has its lock. The other keys are settled meanwhile,
     * and the next round retries this one.
     */
    private static final long TURN_MS = 200;

    /** Hazelcast repeats an operation for this time: 250 times, with pauses of half a second. */
    private static final long REPEAT_NANOS = TimeUnit.SECONDS.toNanos(130);

    /**
     * The id of the thread that sends the operations, as locks know it. No real thread has a
     * negative id. Owners of keys recognise the settlement by it.
     */
    public static final long THREAD_ID = -77_001;

    private final ThisMember member;
    private final PartitionOwnership ownership;
    private final AgentReaders readers;
    /**
     * When a key was settled for which the log was newer than memory. Hazelcast may still repeat
     * the operation whose first attempt is in the log.
     */
    private final Map<Area, Long> settledNanos = new HashMap<>();
    private final Map<Key, Doubt> doubts = new LinkedHashMap<>();
    private volatile Thread thread;
    private boolean closed;

    /** @param key null: it is not known whether the partition was cleared */
    private record Key(String map, Data key, int partition) {
    }

    /** A partition of a map. */
    private record Area(String map, int partition) {
    }

    /**
     * @param welcomes    how many welcomes the link had had then; -1: the change is in the log
     * @param transaction that the change is a part of; or null
     * @param lost        its transaction was coordinated by a lost member
     */
    private record Doubt(AgentLink link, long welcomes, long session, long request,
            UUID transaction, boolean lost) {
    }

    /** A processor that was sent to a key for a doubt. */
    private record Turn(Doubt doubt, CompletableFuture<?> done) {
    }

    public Reconciler(ThisMember member, PartitionOwnership ownership, AgentReaders readers) {
        this.member = member;
        this.ownership = ownership;
        this.readers = readers;
    }

    @Override
    public synchronized void add(AgentLink link, Change change, long welcomes, long session) {
        add(link, new Key(change.map, change.key, change.stamp.partition()),
                new Doubt(link, welcomes, session, change.request, change.transaction, false));
    }

    /** A transaction that a lost member coordinated changes the key. */
    synchronized void addLost(AgentLink link, String map, Data key, UUID transaction) {
        add(link, new Key(map, key, member.partition(key)), new Doubt(link, -1, 0, 0, transaction,
                true));
    }

    /**
     * The log may be newer than memory, and no change is in flight.
     *
     * @param transaction that changed the key; or null
     */
    public synchronized void add(AgentLink link, String map, Data key, UUID transaction) {
        add(link, new Key(map, key, member.partition(key)), new Doubt(link, -1, 0, 0, transaction,
                false));
    }

    private void add(AgentLink link, Key key, Doubt doubt) {
        if (closed) {
            return;
        }
        if (doubts.size() >= MAX_KEYS && !doubts.containsKey(key)) {
            member.logger().severe("imap-wal: map \"" + key.map + "\": more than " + MAX_KEYS
                    + " keys with an unknown outcome; memory and log may differ for further ones"
                    + " until the cluster is restarted");
            return;
        }
        Doubt former = doubts.get(key);
        // If a key is in doubt twice, the log decides which change counts. Request 0 is never above
        // the last one.
        doubts.put(key, former == null ? doubt
                : new Doubt(link, Math.max(doubt.welcomes, former.welcomes), doubt.session, 0,
                doubt.transaction == null ? former.transaction : doubt.transaction, doubt.lost
                || former.lost));
        if (thread == null) {
            Thread started = new Thread(this::run, "imap-wal-reconciler");
            started.setDaemon(true);
            started.start();
            thread = started;
        }
    }

    /** A destroyed map has no memory to settle. An operation on it would create it again. */
    public synchronized void forget(String map) {
        doubts.keySet().removeIf(key -> key.map.equals(map));
        settledNanos.keySet().removeIf(area -> area.map.equals(map));
    }

    private synchronized boolean doubts(Key key) {
        return doubts.containsKey(key);
    }

    /**
     * Whether no key at all is in doubt. This is cheap, because it is called for each key that is
     * not in memory.
     */
    public boolean idle() {
        return thread == null;
    }

    /**
     * Whether the outcome of this key's last change is still unknown. If so, nothing of it is
     * appended after this has returned, so the log may be read.
     *
     * @throws LogUnavailable no agent answers, so the log cannot be read
     */
    public boolean inDoubt(String map, Data key) {
        if (idle()) {
            return false;
        }
        Doubt doubt;
        synchronized (this) {
            doubt = doubts.get(new Key(map, key, member.partition(key)));
        }
        if (doubt == null) {
            return false;
        }
        try {
            shutOut(doubt);
        } catch (LogUnavailable e) {
            throw new LogUnavailable("map \"" + map
                    + "\": it is not known whether the key exists, because its last change may be"
                    + " in the log: " + AgentError.reason(e), e.getCause());
        }
        return true;
    }

    /**
     * Waits for a welcome after the doubt. From then on the agent appends nothing of the connection
     * on which the change was sent.
     */
    private static void shutOut(Doubt doubt) {
        if (doubt.link.welcomes() <= doubt.welcomes) {
            doubt.link.connect();
        }
        if (doubt.link.welcomes() <= doubt.welcomes) {
            throw new LogUnavailable("another agent that was sent the change does not answer, and"
                    + " may still append it; this ends when it answers, or with the next view",
                    null);
        }
    }

    /** Whether the outcome of this key's last change is still unknown. Does not wait. */
    public boolean isDoubted(String map, Data key) {
        return !idle() && doubts(new Key(map, key, member.partition(key)));
    }

    /**
     * Whether the log has, or had a short time ago, a change of the key that memory lacks. It may
     * be the first attempt of a change that Hazelcast has repeated because the partition migrated.
     * If the repeated attempt is refused, the caller must not get an error which says that nothing
     * was changed.
     */
    @Override
    public synchronized boolean isAhead(String map, Data key) {
        Doubt doubt = doubts.get(new Key(map, key, member.partition(key)));
        return doubt != null && doubt.welcomes < 0 || wasAhead(map, member.partition(key));
    }

    /** The same for any key of a partition. */
    public synchronized boolean isAhead(String map, int partition) {
        return wasAhead(map, partition) || !idle() && changed(partition).containsKey(map);
    }

    private boolean wasAhead(String map, int partition) {
        Long settled = settledNanos.get(new Area(map, partition));
        return settled != null && System.nanoTime() - settled < REPEAT_NANOS;
    }

    /** Those of which a key is in doubt. */
    public synchronized Set<UUID> transactions() {
        Set<UUID> transactions = new HashSet<>();
        doubts.values().forEach(doubt -> transactions.add(doubt.transaction));
        return transactions;
    }

    public synchronized int size() {
        return doubts.size();
    }

    /**
     * The maps with a change in this partition that may still be appended, or with a clear that is
     * not settled yet.
     */
    public synchronized Set<String> maps(int partition) {
        Set<String> maps = new HashSet<>();
        doubts.forEach((key, doubt) -> {
            if (key.partition == partition && (doubt.welcomes >= 0 || key.key == null)) {
                maps.add(key.map);
            }
        });
        return maps;
    }

    /**
     * For each map, the keys in this partition for which the log may be newer than memory, and of
     * which nothing more can be appended.
     */
    public synchronized Map<String, List<Data>> changed(int partition) {
        Map<String, List<Data>> changed = new HashMap<>();
        doubts.forEach((key, doubt) -> {
            if (key.partition == partition && doubt.welcomes < 0 && key.key != null) {
                changed.computeIfAbsent(key.map, map -> new ArrayList<>()).add(key.key);
            }
        });
        return changed;
    }

    /**
     * Waits until no key is in doubt, at most as long as an operation waits for an unsettled
     * partition. If a member leaves with keys in doubt, the next owners of their partitions settle
     * them.
     */
    public void drain() {
        long waitMs = 0;
        synchronized (this) {
            for (Doubt doubt : doubts.values()) {
                waitMs = Math.max(waitMs, doubt.link.settings().settleTimeoutMs());
            }
        }
        long until = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(waitMs);
        synchronized (this) {
            try {
                for (long left; !doubts.isEmpty() && !closed
                        && (left = until - System.nanoTime()) > 0;) {
                    TimeUnit.NANOSECONDS.timedWait(this, left);
                }
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
            if (!doubts.isEmpty()) {
                member.logger().warning(
                        "imap-wal: this member leaves while the outcome of changes of "
                        + doubts.size()
                        + " key(s) is not known; the next owners of their partitions compare these"
                        + " with the log");
            }
        }
    }

    public synchronized void close() {
        closed = true;
        doubts.clear();
        notifyAll();
        if (thread != null) {
            thread.interrupt();
        }
    }

    private void run() {
        ThreadUtil.setThreadId(THREAD_ID);
        Map<Key, Turn> turns = new HashMap<>();
        long pauseMs = MIN_PAUSE_MS;
        String said = "";
        for (Map<Key, Doubt> batch; !(batch = batch()).isEmpty();) {
            String why = settle(batch, turns);
            if (why.isEmpty()) {
                pauseMs = MIN_PAUSE_MS;
                continue;
            }
            if (!why.equals(said)) {
                member.logger().warning("imap-wal: " + size()
                        + " key(s) with an unknown outcome wait to be settled: " + why);
                said = why;
            }
            try {
                Thread.sleep(pauseMs);
            } catch (InterruptedException e) {
                close();
            }
            pauseMs = Math.min(MAX_PAUSE_MS, pauseMs * 2);
        }
    }

    /** The present doubts. If there are none, the thread must end. */
    private synchronized Map<Key, Doubt> batch() {
        if (doubts.isEmpty() || closed) {
            thread = null;
            return Map.of();
        }
        return new LinkedHashMap<>(doubts);
    }

    /**
     * Tries to settle each of the keys.
     *
     * @param turns the processors that have not ended
     * @return why some are not settled; empty: all are
     */
    private String settle(Map<Key, Doubt> batch, Map<Key, Turn> turns) {
        int settled = 0;
        String why = "";
        for (Map.Entry<Key, Doubt> each : batch.entrySet()) {
            Key key = each.getKey();
            if (!doubts(key)) {
                continue;
            }
            try {
                Turn turn = turns.get(key);
                long waitMs = turn == null ? TURN_MS : 0;
                if (turn == null) {
                    turn = new Turn(each.getValue(), begin(key, each.getValue()));
                    turns.put(key, turn);
                }
                turn.done.get(waitMs, TimeUnit.MILLISECONDS);
                turns.remove(key);
                settled(key, turn.doubt);
                settled++;
            } catch (TimeoutException e) {
                why = "map \"" + key.map
                        + "\": a transaction has locked a key, or its owner does not answer";
            } catch (Exception | Error e) {  // keys wait for this thread
                // The others do not wait for one key that cannot be settled. While this member
                // leaves, Hazelcast runs nothing on keys: the doubts go to the next owners.
                turns.remove(key);
                why = AgentError.reason(e);
            }
        }
        if (settled > 0) {
            member.logger().info("imap-wal: " + settled
                    + " key(s) with an unknown outcome settled from the log");
        }
        return why;
    }

    private synchronized void settled(Key key, Doubt doubt) {
        // If it came in doubt again meanwhile, it is kept, even if the new doubt equals this one.
        if (doubts.get(key) == doubt) {
            doubts.remove(key);
        }
        if (doubt.welcomes < 0) {
            settledNanos.put(new Area(key.map, key.partition), System.nanoTime());
        }
        notifyAll();
    }

    /** Begins to settle a key. The future is done when memory is equal to the log. */
    private CompletableFuture<?> begin(Key key, Doubt doubt)
            throws IOException, InterruptedException {
        shutOut(doubt);
        if (doubt.lost) {
            // From then on nothing that the lost member has sent is appended.
            doubt.link.viewWithout(ownership.departures().awaitTurn());
        }
        SessionInfo session = doubt.link.session();
        // Only some of several agents have said what they have.
        if (doubt.transaction == null && doubt.welcomes >= 0 && !session.shared()
                && session.session() == doubt.session && doubt.request > session.lastRequest()) {
            return CompletableFuture.completedFuture(null);
        }
        if (key.key == null) {
            return member.invoke(new DoubtOperation(key.map), key.partition);
        }
        // The agent may have to merge logs first. No operation waits for this thread, unlike for
        // the partition's thread.
        readers.of(doubt.link.settings()).shared().load(key.map, List.of(key.key), ReadWait.LONG);
        IMap<Object, Object> map = member.instance().getMap(key.map);
        return map.submitToKey(key.key, new DoubtProcessor(key.map, key.key, doubt.transaction))
                .toCompletableFuture();
    }
}
