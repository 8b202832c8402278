package io.imapwal.hazelcast;

import com.hazelcast.spi.impl.NodeEngine;

/**
 * Replaces three parts of Hazelcast's map service, for which Hazelcast has no setting:
 * transactions, the objects that {@code getMap} returns, and the record stores.
 */
final class MapServiceHooks {
    private MapServiceHooks() {
    }

    /** Called while the services of a member are made. */
    static void install(NodeEngine nodeEngine) {
        LoggedTransactions.install(nodeEngine);
        LoggedMaps.install(nodeEngine);
        RecordStores.install(nodeEngine);
    }
}
