package io.imapwal.hazelcast;

import com.hazelcast.spi.impl.operationservice.PartitionAwareOperation;

/** The owner of the partition compares it with the log before it is used: it may have been cleared there. */
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
