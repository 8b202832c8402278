package io.imapwal.hazelcast.transactions;

import io.imapwal.hazelcast.engine.Composed;
import io.imapwal.hazelcast.engine.MemberOperation;
import io.imapwal.hazelcast.engine.OperationIds;
import io.imapwal.hazelcast.engine.PluginOperation;
import io.imapwal.hazelcast.settle.MemberMaps;

import java.util.UUID;

/**
 * Informs a member that a transaction was not logged, and never will be. Its keys can be changed
 * again.
 */
public final class ReleaseOperation extends PluginOperation implements MemberOperation {
    /** @param transaction null, for deserialisation: it is read */
    public ReleaseOperation(UUID transaction) {
        super(OperationIds.RELEASE, null, transaction);
    }

    @Override
    public void run() {
        MemberMaps maps = Composed.existing(getNodeEngine(), MemberMaps.class);
        if (maps != null) {
            maps.placements().removeAll(uuid);
        }
    }
}
