package io.imapwal.hazelcast;

import com.hazelcast.nio.ObjectDataInput;
import com.hazelcast.nio.ObjectDataOutput;
import com.hazelcast.nio.serialization.IdentifiedDataSerializable;
import com.hazelcast.spi.impl.operationservice.Operation;

import java.io.IOException;

/** Asks a member whether a map is restored, and if not, whether its agent is there. */
public final class StatusOperation extends Operation implements IdentifiedDataSerializable {
    static final String RESTORED = "restored";
    static final String READY = "ready";

    private String map;
    private String answer;

    /** For deserialisation. */
    public StatusOperation() {
    }

    StatusOperation(String map) {
        this.map = map;
    }

    @Override
    public void run() {
        answer = WalPlugin.of(getNodeEngine()).state(map).status();
    }

    @Override
    public Object getResponse() {
        return answer;
    }

    @Override
    protected void writeInternal(ObjectDataOutput out) throws IOException {
        super.writeInternal(out);
        out.writeString(map);
    }

    @Override
    protected void readInternal(ObjectDataInput in) throws IOException {
        super.readInternal(in);
        map = in.readString();
    }

    @Override
    public int getFactoryId() {
        return WalSerializerHook.FACTORY_ID;
    }

    @Override
    public int getClassId() {
        return WalSerializerHook.STATUS;
    }
}
