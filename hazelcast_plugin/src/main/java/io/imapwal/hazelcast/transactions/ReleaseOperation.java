package io.imapwal.hazelcast.transactions;

import com.hazelcast.internal.util.UUIDSerializationUtil;
import com.hazelcast.nio.ObjectDataInput;
import com.hazelcast.nio.ObjectDataOutput;
import io.imapwal.hazelcast.engine.Composed;
import io.imapwal.hazelcast.engine.MemberOperation;
import io.imapwal.hazelcast.engine.OperationIds;
import io.imapwal.hazelcast.engine.PluginOperation;
import io.imapwal.hazelcast.settle.MemberMaps;

import java.io.IOException;
import java.util.UUID;

/**
 * Informs a member that a transaction was not logged, and never will be. Its keys can be changed
 * again.
 */
public final class ReleaseOperation extends PluginOperation implements MemberOperation {
    private UUID transaction;

    /** For deserialisation. */
    public ReleaseOperation() {
        super(OperationIds.RELEASE);
    }

    public ReleaseOperation(UUID transaction) {
        super(OperationIds.RELEASE);
        this.transaction = transaction;
    }

    @Override
    public void run() {
        MemberMaps maps = Composed.existing(getNodeEngine(), MemberMaps.class);
        if (maps != null) {
            maps.placements().removeAll(transaction);
        }
    }

    @Override
    protected void writeInternal(ObjectDataOutput out) throws IOException {
        super.writeInternal(out);
        UUIDSerializationUtil.writeUUID(out, transaction);
    }

    @Override
    protected void readInternal(ObjectDataInput in) throws IOException {
        super.readInternal(in);
        transaction = UUIDSerializationUtil.readUUID(in);
    }
}
