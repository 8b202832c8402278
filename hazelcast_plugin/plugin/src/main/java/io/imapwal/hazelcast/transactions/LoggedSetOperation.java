package io.imapwal.hazelcast.transactions;

import com.hazelcast.internal.serialization.Data;
import com.hazelcast.internal.util.UUIDSerializationUtil;
import com.hazelcast.map.impl.tx.TxnSetOperation;
import com.hazelcast.nio.ObjectDataInput;
import com.hazelcast.nio.ObjectDataOutput;
import io.imapwal.hazelcast.engine.OperationIds;

import java.io.IOException;
import java.util.UUID;

/**
 * Sets a key in memory, as Hazelcast does. A transaction has logged the value, so this logs
 * nothing.
 */
public final class LoggedSetOperation extends TxnSetOperation {
    private UUID transaction;

    /** For deserialisation. */
    public LoggedSetOperation() {
    }

    public LoggedSetOperation(UUID transaction, String map, Data key, Data value, long version,
            long ttl) {
        super(map, key, value, version, ttl);
        this.transaction = transaction;
    }

    @Override
    public void innerBeforeRun() throws Exception {
        super.innerBeforeRun();
        LoggedChange.begin(getNodeEngine(), name, dataKey, transaction, dataValue);
    }

    @Override
    public void afterRunInternal() {
        super.afterRunInternal();
        LoggedChange.end(getNodeEngine(), name, dataKey, transaction,
                recordStore.getRecord(dataKey), dataValue);
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
        return OperationIds.LOGGED_SET;
    }
}
