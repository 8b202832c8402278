package io.imapwal.hazelcast.settle;

import io.imapwal.hazelcast.engine.PartitionThreads;

import java.util.Arrays;
import java.util.Collection;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;

/**
 * Digests of the entries in memory, of partitions whose operations wait, with one salt. They are
 * computed on the partitions' threads while a view is claimed, and while the agent merges its logs
 * and computes its own digests. Although operations wait, an entry may still expire, be evicted, or
 * be set from the log: then the digest is computed again.
 */
final class MemoryDigests {
    private final PartitionThreads threads;
    private final Wholeness wholeness;
    private final Computation computation;
    private final byte[] salt = EntriesDigest.salt();
    private final ConcurrentMap<Integer, Found> found = new ConcurrentHashMap<>();

    /** @param changes how often memory had changed while the partition waited for this reason */
    private record Found(Wholeness.Unsettled reason, int changes, EntriesDigest digest) {
        boolean isOf(Wholeness.Unsettled now) {
            return MemoryWatch.possible() && reason == now && changes == now.changes
                    && digest.firstExpiryMs() > System.currentTimeMillis();
        }
    }

    /** Computes a digest on the partition's thread; null: there is no record store. */
    interface Computation {
        EntriesDigest digest(int partition, byte[] salt);
    }

    MemoryDigests(PartitionThreads threads, Wholeness wholeness, Computation computation) {
        this.threads = threads;
        this.wholeness = wholeness;
        this.computation = computation;
    }

    byte[] salt() {
        return salt;
    }

    /** Begins to compute the digests of those partitions that are quiet. Does not wait. */
    void begin(Collection<Integer> partitions) {
        if (MemoryWatch.possible()) {
            threads.begin(partitions, partition -> {
                Wholeness.Unsettled reason = wholeness.unsettled(partition);
                if (reason != null && reason.quiet) {
                    of(partition, reason);
                }
            });
        }
    }

    /** On the partition's thread: whether its live entries have this digest. */
    boolean isEqual(int partition, Wholeness.Unsettled reason, byte[] digest) {
        Found now = of(partition, reason);
        return now != null && Arrays.equals(now.digest.bytes(), digest);
    }

    /** Null: there is no record store. */
    private Found of(int partition, Wholeness.Unsettled reason) {
        Found known = found.get(partition);
        if (known != null && known.isOf(reason)) {
            return known;
        }
        EntriesDigest digest = computation.digest(partition, salt);
        if (digest == null) {
            return null;
        }
        Found now = new Found(reason, reason.changes, digest);
        found.put(partition, now);
        return now;
    }
}
