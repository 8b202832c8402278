package io.imapwal.hazelcast.settle;

import com.hazelcast.spi.impl.operationservice.PartitionAwareOperation;
import io.imapwal.hazelcast.engine.Composed;
import io.imapwal.hazelcast.engine.NamedMapOperation;
import io.imapwal.hazelcast.engine.OperationIds;

/**
 * Makes the owner of a partition compare it with the log before it is used: the log may have
 * cleared it.
 */
public final class DoubtOperation extends NamedMapOperation implements PartitionAwareOperation {
    /** For deserialisation. */
    public DoubtOperation() {
        super(OperationIds.DOUBT, null);
    }

    public DoubtOperation(String map) {
        super(OperationIds.DOUBT, map);
    }

    @Override
    public void run() {
        Composed.of(getNodeEngine(), MemberMaps.class).doubt(map, getPartitionId());
    }
}
