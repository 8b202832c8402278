package io.imapwal.hazelcast.member;

import com.hazelcast.internal.services.ManagedService;
import com.hazelcast.spi.impl.NodeEngine;
import io.imapwal.hazelcast.engine.ThisMember;
import io.imapwal.hazelcast.structures.LoggedStructures;
import io.imapwal.hazelcast.transactions.LoggedTransactions;

import java.util.Properties;

/**
 * Replaces parts of Hazelcast's services when a member starts, for which Hazelcast has no setting:
 * transactions, the objects that {@code getMap} returns, the record stores, and the services of
 * structures that no log keeps.
 */
final class MapServiceHooks implements ManagedService {
    /** Hazelcast finds this service by the name. */
    static final String NAME = "io.imapwal:hooks";

    /** Called while the services of a member are made. */
    @Override
    public void init(NodeEngine nodeEngine, Properties properties) {
        Durability durability = Durability.of(nodeEngine);
        LoggedTransactions.install(nodeEngine);
        LoggedMaps.install(nodeEngine);
        RecordStores.install(nodeEngine);
        Structures.install(nodeEngine, durability);
        LoggedStructures.install(nodeEngine, durability.structures());
        if (durability.durableJobs()) {
            DurableJobs.install(nodeEngine.getHazelcastInstance(),
                    nodeEngine.getLogger(ThisMember.LOGGER));
        }
        durability.reportStart();
    }

    @Override
    public void reset() {
        // They stay in the next cluster.
    }

    @Override
    public void shutdown(boolean terminate) {
        // They end with the member.
    }
}
