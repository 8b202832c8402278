package io.imapwal.hazelcast.structures;

import com.hazelcast.config.InvalidConfigurationException;
import com.hazelcast.spi.impl.NodeEngine;

/** Replaces the maps in which Hazelcast's services keep queues and ringbuffers. */
public final class LoggedStructures {
    private LoggedStructures() {
    }

    /**
     * Called while the services of a member are made, before its first operation.
     *
     * @throws InvalidConfigurationException a structure is durable, and this version of Hazelcast
     *         keeps structures in another way
     */
    public static void install(NodeEngine nodeEngine, DurableStructures structures) {
        if (!structures.any()) {
            return;
        }
        if (!LoggedQueues.possible() || !LoggedQueue.possible() || !LoggedRingbuffers.possible()) {
            throw new InvalidConfigurationException("imap-wal cannot make queues and ringbuffers"
                    + " durable in this version of Hazelcast, " + nodeEngine.getVersion() + ". Use"
                    + " a version that imap-wal's documentation names, or remove the names of"
                    + " durable queues, ringbuffers and topics");
        }
        try {
            LoggedQueues.install(nodeEngine, structures);
            LoggedRingbuffers.install(nodeEngine, structures);
        } catch (IllegalAccessException e) {
            throw new IllegalStateException(e);
        }
    }
}
