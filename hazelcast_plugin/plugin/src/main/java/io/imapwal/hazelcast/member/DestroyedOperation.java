package io.imapwal.hazelcast.member;

import io.imapwal.hazelcast.engine.Composed;
import io.imapwal.hazelcast.engine.MemberOperation;
import io.imapwal.hazelcast.engine.OperationIds;
import io.imapwal.hazelcast.engine.PluginOperation;
import io.imapwal.hazelcast.settle.MemberMaps;

/**
 * Informs a member that a map's destruction was logged, or could not be logged completely. The
 * member may have used the map meanwhile, so it compares its memory with the log.
 */
public final class DestroyedOperation extends PluginOperation implements MemberOperation {
    /** @param map null, for deserialisation: it is read */
    DestroyedOperation(String map) {
        super(OperationIds.DESTROYED, map, null);
    }

    @Override
    public void run() {
        Composed.of(getNodeEngine(), MemberMaps.class).state(map).destroyed();
    }

    @Override
    public Object getResponse() {
        return true;
    }
}
