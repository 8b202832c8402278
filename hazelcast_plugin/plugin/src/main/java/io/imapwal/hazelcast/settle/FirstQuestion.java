package io.imapwal.hazelcast.settle;

import com.hazelcast.internal.partition.InternalPartition;
import com.hazelcast.internal.partition.InternalPartitionService;
import io.imapwal.hazelcast.read.Readers;

import java.io.IOException;
import java.util.Collection;

/**
 * The question, asked while a map is opened, whether the log has entries of it. The first load that
 * follows uses the answer for partitions that this member has owned since before the question: only
 * their owner adds entries, and it adds none before they are loaded. For others, it asks again.
 */
final class FirstQuestion {
    private static final int NOT_OWNED = -1;

    private final InternalPartitionService partitions;
    private Answer answer;

    /** @param versions of the partitions that this member owned before the question */
    private record Answer(int generation, int[] versions, boolean known) {
    }

    FirstQuestion(InternalPartitionService partitions) {
        this.partitions = partitions;
    }

    /**
     * Waits for the agent, which may have to merge all logs.
     *
     * @param generation in which the map is opened
     */
    void ask(Readers readers, String map, int generation) throws IOException {
        int[] versions = new int[partitions.getPartitionCount()];
        for (int id = 0; id < versions.length; id++) {
            versions[id] = version(id);
        }
        boolean known = readers.known(map);
        synchronized (this) {
            answer = new Answer(generation, versions, known);
        }
    }

    private int version(int id) {
        InternalPartition partition = partitions.getPartition(id, false);
        int version = partition.version();
        return partition.isLocal() ? version : NOT_OWNED;
    }

    /** The answer, once; null: there is none that is valid for all of these partitions. */
    Boolean take(int generation, Collection<Integer> ids) {
        Answer taken;
        synchronized (this) {
            taken = answer;
            answer = null;
        }
        return taken != null && taken.generation == generation && ids.stream().allMatch(
                id -> taken.versions[id] != NOT_OWNED && taken.versions[id] == version(id))
                ? taken.known : null;
    }
}
