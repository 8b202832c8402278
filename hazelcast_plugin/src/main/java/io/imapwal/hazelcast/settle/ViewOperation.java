package io.imapwal.hazelcast.settle;

import com.hazelcast.internal.util.UUIDSerializationUtil;
import com.hazelcast.nio.ObjectDataInput;
import com.hazelcast.nio.ObjectDataOutput;
import io.imapwal.hazelcast.append.AgentLink;
import io.imapwal.hazelcast.engine.Composed;
import io.imapwal.hazelcast.engine.MemberOperation;
import io.imapwal.hazelcast.engine.NamedMapOperation;
import io.imapwal.hazelcast.engine.OperationIds;

import java.io.IOException;
import java.util.UUID;

/** Asks a member for the newest view of the log of a map that it knows. */
public final class ViewOperation extends NamedMapOperation implements MemberOperation {
    private UUID asker;
    private long answer;

    /** For deserialisation. */
    public ViewOperation() {
        super(OperationIds.VIEW, null);
    }

    /** @param asker UUID of the member that asks */
    public ViewOperation(String map, UUID asker) {
        super(OperationIds.VIEW, map);
        this.asker = asker;
    }

    @Override
    public void run() {
        MemberMaps maps = Composed.of(getNodeEngine(), MemberMaps.class);
        // A member that this one has lost already must not learn the number of the view without it.
        if (maps.member().cluster().members().contains(asker)) {
            AgentLink link = maps.links().of(map);
            answer = link == null ? 0 : link.knownView();
        }
    }

    @Override
    public Object getResponse() {
        return answer;
    }

    @Override
    protected void writeInternal(ObjectDataOutput out) throws IOException {
        super.writeInternal(out);
        UUIDSerializationUtil.writeUUID(out, asker);
    }

    @Override
    protected void readInternal(ObjectDataInput in) throws IOException {
        super.readInternal(in);
        asker = UUIDSerializationUtil.readUUID(in);
    }
}
