package io.imapwal.hazelcast.settle;

import com.hazelcast.spi.impl.operationservice.PartitionAwareOperation;
import io.imapwal.hazelcast.engine.Composed;
import io.imapwal.hazelcast.engine.OperationIds;
import io.imapwal.hazelcast.engine.PluginOperation;

/**
 * Makes the owner of a partition compare it with the log before it is used: the log may have
 * cleared it.
 */
public final class DoubtOperation extends PluginOperation implements PartitionAwareOperation {
    /** @param map null, for deserialisation: it is read */
    public DoubtOperation(String map) {
        super(OperationIds.DOUBT, map, null);
    }

    @Override
    public void run() {
        Composed.of(getNodeEngine(), OwnMaps.class).doubt(map, getPartitionId());
    }
}
