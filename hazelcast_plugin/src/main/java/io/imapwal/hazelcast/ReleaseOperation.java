package io.imapwal.hazelcast;

import com.hazelcast.internal.util.UUIDSerializationUtil;
import com.hazelcast.nio.ObjectDataInput;
import com.hazelcast.nio.ObjectDataOutput;
import com.hazelcast.nio.serialization.IdentifiedDataSerializable;
import com.hazelcast.spi.impl.operationservice.Operation;

import java.io.IOException;
import java.util.UUID;

/**
 * Informs a member that a transaction was not logged, and never will be. Its keys can be changed
 * again.
 */
public final class ReleaseOperation extends Operation
        implements IdentifiedDataSerializable, MemberOperation {
    private UUID transaction;

    /** For deserialisation. */
    public ReleaseOperation() {
    }

    ReleaseOperation(UUID transaction) {
        this.transaction = transaction;
    }

    @Override
    public void run() {
        WalPlugin plugin = WalPlugin.existing(getNodeEngine());
        if (plugin != null) {
            plugin.placements().removeAll(transaction);
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

    @Override
    public int getFactoryId() {
        return WalSerializerHook.FACTORY_ID;
    }

    @Override
    public int getClassId() {
        return WalSerializerHook.RELEASE;
    }
}
