package io.imapwal.hazelcast;

import com.hazelcast.nio.ObjectDataInput;
import com.hazelcast.nio.ObjectDataOutput;
import com.hazelcast.nio.serialization.IdentifiedDataSerializable;
import com.hazelcast.spi.impl.operationservice.Operation;

import java.io.IOException;

/** Tells a member that the cluster has all of a map: changes may be accepted. */
public final class RestoredOperation extends Operation implements IdentifiedDataSerializable {
    private String map;

    /** For deserialisation. */
    public RestoredOperation() {
    }

    RestoredOperation(String map) {
        this.map = map;
    }

    @Override
    public void run() {
        MapState state = WalPlugin.of(getNodeEngine()).state(map);
        state.setRestored(state.generation());
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
        return WalSerializerHook.RESTORED;
    }
}
