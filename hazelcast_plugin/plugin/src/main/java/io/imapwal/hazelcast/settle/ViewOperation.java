package io.imapwal.hazelcast.settle;

import io.imapwal.hazelcast.engine.Composed;
import io.imapwal.hazelcast.engine.MemberOperation;
import io.imapwal.hazelcast.engine.OperationIds;
import io.imapwal.hazelcast.engine.PluginOperation;

import java.util.UUID;

/** Asks a member for the newest view of the log of a map that it knows. */
public final class ViewOperation extends PluginOperation implements MemberOperation {
    private long answer;

    /** For deserialisation. */
    public ViewOperation() {
        this(null, null);
    }

    /** @param asker UUID of the member that asks */
    public ViewOperation(String map, UUID asker) {
        super(OperationIds.VIEW, map, asker);
    }

    @Override
    public void run() {
        OwnMaps maps = Composed.of(getNodeEngine(), OwnMaps.class);
        // A member that this one has lost already must not learn the number of the view without it.
        answer = maps.member().cluster().members().contains(uuid) ? maps.knownView(map) : 0;
    }

    @Override
    public Object getResponse() {
        return answer;
    }
}
