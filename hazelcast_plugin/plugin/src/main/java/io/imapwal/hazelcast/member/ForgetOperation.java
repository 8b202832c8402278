package io.imapwal.hazelcast.member;

import com.hazelcast.spi.impl.operationservice.PartitionAwareOperation;
import io.imapwal.hazelcast.LogUnavailable;
import io.imapwal.hazelcast.append.AgentLink;
import io.imapwal.hazelcast.engine.Composed;
import io.imapwal.hazelcast.engine.OperationIds;
import io.imapwal.hazelcast.engine.PluginOperation;
import io.imapwal.hazelcast.settle.MemberMaps;

/**
 * Makes the owner of a partition log a clear of it, because the map was destroyed. The map may no
 * longer be in memory there.
 */
public final class ForgetOperation extends PluginOperation implements PartitionAwareOperation {
    /** @param map null, for deserialisation: it is read */
    ForgetOperation(String map) {
        super(OperationIds.FORGET, map, null);
    }

    @Override
    public void run() {
        MemberMaps maps = Composed.of(getNodeEngine(), MemberMaps.class);
        AgentLink link = maps.links().of(map);
        if (link == null) {
            throw new LogUnavailable("member " + maps.member().name()
                    + " has no map-store for map \"" + map + "\"", null);
        }
        maps.logClear(link, map, getPartitionId());
    }
}
