package io.imapwal.hazelcast;

import com.hazelcast.nio.ObjectDataInput;
import com.hazelcast.nio.ObjectDataOutput;

import java.io.IOException;

/** Asks a member for the newest view of the log of a map that it knows. */
public final class ViewOperation extends NamedMapOperation implements MemberOperation {
    private String asker;
    private long answer;

    /** For deserialisation. */
    public ViewOperation() {
    }

    /** @param asker UUID of the member that asks */
    ViewOperation(String map, String asker) {
        super(map);
        this.asker = asker;
    }

    @Override
    public void run() {
        WalPlugin plugin = WalPlugin.of(getNodeEngine());
        // A member that this one has lost already must not learn the number of the view without it.
        if (plugin.cluster().members().stream().anyMatch(uuid -> uuid.toString().equals(asker))) {
            AgentLink link = plugin.linkOf(map);
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
        out.writeString(asker);
    }

    @Override
    protected void readInternal(ObjectDataInput in) throws IOException {
        super.readInternal(in);
        asker = in.readString();
    }

    @Override
    public int getClassId() {
        return WalSerializerHook.VIEW;
    }
}
