package io.imapwal.hazelcast.member;

import java.util.Set;
import java.util.concurrent.CountDownLatch;

/** The faults and delays of a {@link FakeAgent}. Tests set them while it runs. */
public final class FakeFaults {
    public volatile OnAppend onAppend = OnAppend.ACK;
    /** Before each append. */
    public volatile long delayMs;
    /**
     * The next append does nothing and is not answered until another request arrives on its
     * connection.
     */
    public volatile boolean holdsForNext;
    /** Appends wait until it is zero. */
    public volatile CountDownLatch hold = new CountDownLatch(0);
    /** Schemas of this type are refused. */
    public volatile String refusedType;
    /** Before the answer to each hello. */
    public volatile long helloDelayMs;
    /** Hellos are answered when it is zero, with what the log had before. */
    volatile CountDownLatch heldHellos = new CountDownLatch(0);
    /** Before each load and each page of a listing with entries. */
    public volatile long readDelayMs;
    /** Loads and pages with entries after so many wait until {@link #heldLoads} is zero. */
    public volatile int holdsAfterLoads = Integer.MAX_VALUE;
    public final CountDownLatch heldLoads = new CountDownLatch(1);
    /** It has no digests now. */
    public volatile boolean hasNoDigests;
    /** All reads fail with this text; null: none. */
    public volatile String readError;
    /** Listings of these maps are refused, as of a map of a program. */
    public volatile Set<String> refusedMaps = Set.of();
    /** Loads and listings that read this key fail. */
    public volatile byte[] unreadable;
    /** Most keys that one answer covers. */
    public volatile int loadLimit = Integer.MAX_VALUE;
    /** After this many loads the agent stops; negative: never. */
    volatile int breakAfterLoads = -1;
    /** After this many pages of keys, one is answered "listing-gone"; negative: none. */
    volatile int goneAfterPages = -1;
    /**
     * After this many pages of keys, one is left out, as if its answer was lost; negative: none.
     */
    volatile int skipAfterPages = -1;
    /** Beats are not answered, as if the agent's loop hung. ZeroMQ's thread answers a PING. */
    volatile boolean loopHangs;
    /** Before READY, which ZeroMQ sends when the agent has admitted the connection. */
    volatile long admissionDelayMs;
    /** Before the answer to a question about maps, as if the agent merged all logs for it. */
    volatile long mergeDelayMs;
    /** Questions about maps are answered when it is zero, with what the log had before. */
    volatile CountDownLatch heldMaps = new CountDownLatch(0);
    /** The merge makes no progress. */
    volatile boolean mergeHangs;
    /** As if its process was stopped: nothing is read, connections stay open. */
    public volatile boolean frozen;

    /** Returns when the agent is not frozen. */
    void awaitThaw() throws InterruptedException {
        while (frozen) {
            Thread.sleep(5);
        }
    }

    boolean isListingGone() {
        return goneAfterPages >= 0 && --goneAfterPages < 0;
    }

    boolean isPageSkipped() {
        return skipAfterPages >= 0 && --skipAfterPages < 0;
    }

    boolean stopsAtLoad() {
        return breakAfterLoads >= 0 && --breakAfterLoads < 0;
    }
}
