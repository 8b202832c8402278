package io.imapwal.hazelcast.engine;

import com.hazelcast.logging.ILogger;

/**
 * Repeats a check on a thread of its own, with pauses, until the check finds nothing to do. A
 * request that arrives during a check causes another one. A check that fails is repeated.
 */
public final class CheckLoop {
    private final String name;
    private final long pauseMs;
    private final ILogger logger;
    private Check check;
    private Thread thread;
    /** Since the last check began. */
    private boolean requested;
    private boolean closed;

    /** Returns whether to check again later. */
    public interface Check {
        boolean look() throws InterruptedException;
    }

    public CheckLoop(String name, long pauseMs, ILogger logger) {
        this.name = name;
        this.pauseMs = pauseMs;
        this.logger = logger;
    }

    /** Others may have requested a check already. */
    public synchronized CheckLoop of(Check what) {
        check = what;
        if (requested) {
            request();
        }
        return this;
    }

    /** Returns at once. */
    public synchronized void request() {
        if (closed) {
            return;
        }
        requested = true;
        if (thread == null && check != null) {
            thread = new Thread(this::run, "imap-wal-" + name);
            thread.setDaemon(true);
            thread.start();
        }
    }

    public synchronized boolean isRunning() {
        return thread != null;
    }

    public synchronized void close() {
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
                        logger.warning("imap-wal: the check \"" + name
                                + "\" failed; it is repeated", e);
                    }
                }
                Thread.sleep(pauseMs);
            }
        } catch (InterruptedException e) {
            logger.fine("imap-wal: the member stops");
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
