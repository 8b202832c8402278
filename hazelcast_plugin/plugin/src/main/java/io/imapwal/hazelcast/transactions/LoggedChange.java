package io.imapwal.hazelcast.transactions;

import com.hazelcast.internal.serialization.Data;
import com.hazelcast.map.impl.record.Record;
import com.hazelcast.spi.impl.NodeEngine;
import com.hazelcast.transaction.TransactionException;
import io.imapwal.hazelcast.engine.Composed;
import io.imapwal.hazelcast.settle.MemberMaps;

import java.util.UUID;

/** The common part of the two operations that make a logged change of a transaction in memory. */
final class LoggedChange {

    private LoggedChange() {
    }

    /**
     * @throws TransactionException the key was changed since then: memory must be set from the log
     */
    static void begin(NodeEngine nodeEngine, String map, Data key, UUID transaction, Data value) {
        if (!Composed.of(nodeEngine, MemberMaps.class).placements().setLogged(map, key,
                transaction, value)) {
            throw new TransactionException("map \"" + map
                    + "\": the key has another owner, or was changed since");
        }
    }

    /** @param stored what memory has now */
    static void end(NodeEngine nodeEngine, String map, Data key, UUID transaction, Record<?> stored,
                    Data value) {
        MemberMaps maps = Composed.of(nodeEngine, MemberMaps.class);
        boolean unstored = maps.placements().remove(map, key, transaction);
        if (unstored && (value != null || stored != null)) {
            // It was evicted and loaded again since then. Hazelcast does not change a key that has
            // another version.
            maps.settle(map, key, transaction);
        }
    }
}
