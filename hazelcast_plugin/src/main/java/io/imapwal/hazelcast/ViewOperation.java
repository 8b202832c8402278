package io.imapwal.hazelcast;

import com.hazelcast.nio.ObjectDataInput;
import com.hazelcast.nio.ObjectDataOutput;
import com.hazelcast.nio.serialization.IdentifiedDataSerializable;
import com.hazelcast.spi.impl.operationservice.Operation;

import java.io.IOException;

/** Asks a member which view the log of a map is in, as far as it knows. */
public final class ViewOperation extends Operation implements IdentifiedDataSerializable {
    private String map;
    private String asker;
    private long answer;

    /** For deserialisation. */
    public ViewOperation() {
    }

    /** @param asker UUID of the member that asks */
    ViewOperation(String map, String asker) {
        this.map = map;
        this.asker = asker;
    }

    @Override
    public void run() {
        WalPlugin plugin = WalPlugin.of(getNodeEngine());
        // A member that this one has lost already must not learn the number of the view without it.
        if (plugin.guard().members().stream().anyMatch(uuid -> uuid.toString().equals(asker))) {
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
        out.writeString(map);
        out.writeString(asker);
    }

    @Override
    protected void readInternal(ObjectDataInput in) throws IOException {
        super.readInternal(in);
        map = in.readString();
        asker = in.readString();
    }

    @Override
    public int getFactoryId() {
        return WalSerializerHook.FACTORY_ID;
    }

    @Override
    public int getClassId() {
        return WalSerializerHook.VIEW;
    }
}
