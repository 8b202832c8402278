package io.imapwal.hazelcast.transactions;

import com.hazelcast.internal.serialization.Data;
import com.hazelcast.internal.util.UUIDSerializationUtil;
import com.hazelcast.map.impl.tx.TxnDeleteOperation;
import com.hazelcast.nio.ObjectDataInput;
import com.hazelcast.nio.ObjectDataOutput;
import io.imapwal.hazelcast.engine.OperationIds;

import java.io.IOException;
import java.util.UUID;

/**
 * Removes a key from memory, as Hazelcast does. A transaction has logged the removal, so this logs
 * nothing.
 */
public final class LoggedDeleteOperation extends TxnDeleteOperation {
    private UUID transaction;

    /** For deserialisation. */
    public LoggedDeleteOperation() {
    }

    public LoggedDeleteOperation(UUID transaction, String map, Data key, long version) {
        super(map, key, version);
        this.transaction = transaction;
    }

    @Override
    public void innerBeforeRun() throws Exception {
        super.innerBeforeRun();
        LoggedChange.begin(getNodeEngine(), name, dataKey, transaction, null);
    }

    @Override
    public void afterRunInternal() {
        super.afterRunInternal();
        LoggedChange.end(getNodeEngine(), name, dataKey, transaction,
                recordStore.getRecord(dataKey), null);
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
        return OperationIds.FACTORY;
    }

    @Override
    public int getClassId() {
        return OperationIds.LOGGED_DELETE;
    }
}
