package io.imapwal.hazelcast.settle;

import com.hazelcast.map.impl.operation.MapOperation;
import com.hazelcast.nio.ObjectDataInput;
import com.hazelcast.nio.ObjectDataOutput;
import com.hazelcast.spi.impl.operationservice.BackupOperation;
import io.imapwal.hazelcast.engine.OperationIds;

import java.io.IOException;

/** Makes the changes of a settlement on a backup, as on the partition's owner. */
public final class CorrectionBackup extends MapOperation implements BackupOperation {
    private Corrections corrections;

    /** For deserialisation. */
    public CorrectionBackup() {
    }

    public CorrectionBackup(String map, Corrections corrections) {
        super(map);
        this.corrections = corrections;
    }

    @Override
    protected void runInternal() {
        corrections.applyToBackup(recordStore, System.currentTimeMillis());
    }

    @Override
    protected void writeInternal(ObjectDataOutput out) throws IOException {
        super.writeInternal(out);
        corrections.write(out);
    }

    @Override
    protected void readInternal(ObjectDataInput in) throws IOException {
        super.readInternal(in);
        corrections = Corrections.read(in);
    }

    @Override
    public int getFactoryId() {
        return OperationIds.FACTORY;
    }

    @Override
    public int getClassId() {
        return OperationIds.CORRECTION_BACKUP;
    }
}
