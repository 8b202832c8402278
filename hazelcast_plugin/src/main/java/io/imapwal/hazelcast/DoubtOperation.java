package io.imapwal.hazelcast;

import com.hazelcast.spi.impl.operationservice.PartitionAwareOperation;

/**
 * Makes the owner of a partition compare it with the log before it is used: the log may have
 * cleared it.
 */
public final class DoubtOperation extends NamedMapOperation implements PartitionAwareOperation {
    /** For deserialisation. */
    public DoubtOperation() {
    }

    DoubtOperation(String map) {
        super(map);
    }

    @Override
    public void run() {
        WalPlugin plugin = WalPlugin.of(getNodeEngine());
        plugin.state(map).doubt(getPartitionId(), null);
        plugin.settlements().wake();
    }

    @Override
    public int getClassId() {
        return WalSerializerHook.DOUBT;
    }
}
