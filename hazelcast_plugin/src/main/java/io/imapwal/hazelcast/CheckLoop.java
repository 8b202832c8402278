package io.imapwal.hazelcast;

import com.hazelcast.logging.ILogger;

import java.util.function.Supplier;

/**
 * Repeats a check on a thread of its own, with pauses, until the check finds nothing to do. A
 * request that arrives during a check causes another one. A check that fails is repeated.
 */
final class CheckLoop {
    private final String name;
    private final long pauseMs;
    private final Check check;
    private final Supplier<ILogger> logger;
    private Thread thread;
    /** Since the last check began. */
    private boolean requested;
    private boolean closed;

    /** Returns whether to check again later. */
    interface Check {
        boolean look() throws InterruptedException;
    }

    /** @param logger a member has it later than its check */
    CheckLoop(String name, long pauseMs, Check check, Supplier<ILogger> logger) {
        this.name = name;
        this.pauseMs = pauseMs;
        this.check = check;
        this.logger = logger;
    }

    /** Returns at once. */
    synchronized void request() {
        if (closed) {
            return;
        }
        requested = true;
        if (thread == null) {
            thread = new Thread(this::run, "imap-wal-" + name);
            thread.setDaemon(true);
            thread.start();
        }
    }

    synchronized boolean isRunning() {
        return thread != null;
    }

    synchronized void close() {
        closed = true;
        if (thread != null) {
            thread.interrupt();
        }
    }

    private void run() {
        boolean again = false;
        String said = "";
        try {
            while (begin(again)) {
                try {
                    again = check.look();
                } catch (RuntimeException | Error e) {  // a dead thread would never check again
                    again = true;
                    if (!e.toString().equals(said)) {
                        said = e.toString();
                        logger.get().warning("imap-wal: the check \"" + name
                                + "\" failed; it is repeated", e);
                    }
                }
                Thread.sleep(pauseMs);
            }
        } catch (InterruptedException e) {
            logger.get().fine("imap-wal: the member stops");
            begin(false);
        }
    }

    /** Whether there is another check. If not, the thread must end. */
    private synchronized boolean begin(boolean again) {
        if (closed || !again && !requested) {
            thread = null;
            return false;
        }
        requested = false;
        return true;
    }
}
