package io.imapwal.seatunnel;

import com.hazelcast.core.HazelcastInstanceNotActiveException;
import com.hazelcast.logging.ILogger;
import com.hazelcast.map.IMap;
import io.imapwal.wire.AgentError;

import java.io.IOException;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;

/**
 * Keys whose last change has no outcome: the log may have it, and memory does not. When the agent
 * answers again, memory gets what the log has. There are at most as many as changes that waited
 * for the agent when its connection was lost.
 */
final class Doubts {
    private static final long PAUSE_MS = 500;

    private final ThisMember member;
    private final LogReader log;
    private final ILogger logger;
    private final Map<Doubt, Change> changes = new ConcurrentHashMap<>();
    private Thread thread;
    private volatile boolean closed;

    Doubts(ThisMember member, LogReader log) {
        this.member = member;
        this.log = log;
        this.logger = member.logger();
    }

    /** A map and a key. */
    private static final class Doubt {
        private final String map;
        private final Object key;

        Doubt(Change change) {
            this.map = change.map;
            this.key = change.key;
        }

        @Override
        public boolean equals(Object other) {
            return other instanceof Doubt && map.equals(((Doubt) other).map)
                    && key.equals(((Doubt) other).key);
        }

        @Override
        public int hashCode() {
            return 31 * map.hashCode() + key.hashCode();
        }
    }

    synchronized void add(List<Change> some) {
        some.forEach(change -> changes.put(new Doubt(change), change));
        if (thread == null && !closed) {
            thread = new Thread(this::run, "imap-wal-doubts");
            thread.setDaemon(true);
            thread.start();
        }
    }

    private void run() {
        try {
            while (!closed) {
                for (Map.Entry<Doubt, Change> doubt : changes.entrySet()) {
                    settle(doubt.getKey(), doubt.getValue());
                }
                TimeUnit.MILLISECONDS.sleep(PAUSE_MS);
            }
        } catch (InterruptedException | HazelcastInstanceNotActiveException e) {
            // The member shuts down; its memory ends.
        }
    }

    private void settle(Doubt doubt, Change change) {
        try {
            member.requireRunning();
            IMap<Object, Object> memory = member.instance().getMap(doubt.map);
            memory.lock(doubt.key);
            try {
                LogReader.Entry entry = log.load(doubt.map, doubt.key);
                if (entry == null) {
                    memory.evict(doubt.key);
                } else {
                    memory.putTransient(doubt.key, entry.value, entry.ttlMs(),
                            TimeUnit.MILLISECONDS);
                }
            } finally {
                memory.unlock(doubt.key);
            }
            changes.remove(doubt, change);
            logger.info("imap-wal: map \"" + doubt.map + "\": memory has what the log has of key "
                    + doubt.key + ", whose change had no outcome");
        } catch (IOException e) {
            logger.fine("imap-wal: key " + doubt.key + " stays in doubt: "
                    + AgentError.reason(e));
        } catch (HazelcastInstanceNotActiveException e) {
            throw e;
        } catch (RuntimeException e) {
            logger.warning("imap-wal: map \"" + doubt.map + "\": key " + doubt.key
                    + " stays in doubt: " + AgentError.reason(e));
        }
    }

    synchronized void close() {
        closed = true;
        if (thread != null) {
            thread.interrupt();
        }
    }
}
