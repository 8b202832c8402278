package io.imapwal.hazelcast;

import com.hazelcast.spi.impl.operationservice.PartitionAwareOperation;

/**
 * Makes the owner of a partition log a clear of it, because the map was destroyed. The map may no
 * longer be in memory there.
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
        plugin.logClear(link, map, getPartitionId());
    }

    @Override
    public int getClassId() {
        return WalSerializerHook.FORGET;
    }
}
