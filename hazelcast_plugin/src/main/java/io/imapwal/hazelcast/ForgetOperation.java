package io.imapwal.hazelcast;

import com.hazelcast.spi.impl.operationservice.PartitionAwareOperation;

import java.util.List;

/**
 * Logs at a partition's owner that the partition was cleared with its destroyed map. The map may
 * not be in memory there any more.
 */
public final class ForgetOperation extends NamedMapOperation implements PartitionAwareOperation {
    /** For deserialisation. */
    public ForgetOperation() {
    }

    ForgetOperation(String map) {
        super(map);
    }

    @Override
    public void run() {
        WalPlugin plugin = WalPlugin.of(getNodeEngine());
        AgentLink link = plugin.linkOf(map);
        if (link == null) {
            throw new LogUnavailable("member " + plugin.member() + " has no map-store for map \""
                    + map + "\"", null);
        }
        plugin.placements().clear(map, getPartitionId());
        link.append(List.of(Change.clear(map, plugin.guard().take(getPartitionId()),
                plugin.partitionCount())));
    }

    @Override
    public int getClassId() {
        return WalSerializerHook.FORGET;
    }
}
