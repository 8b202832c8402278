package io.imapwal.hazelcast;

import com.hazelcast.nio.ObjectDataInput;
import com.hazelcast.nio.ObjectDataOutput;

import java.io.IOException;

/**
 * Tells a member that a map's destruction was logged, or could not be logged completely. The member
 * may have used the map meanwhile, so it compares its memory with the log.
 */
public final class DestroyedOperation extends NamedMapOperation {
    private boolean complete;

    /** For deserialisation. */
    public DestroyedOperation() {
    }

    DestroyedOperation(String map, boolean complete) {
        super(map);
        this.complete = complete;
    }

    @Override
    public void run() {
        WalPlugin.of(getNodeEngine()).state(map).destroyed(complete);
    }

    @Override
    public Object getResponse() {
        return true;
    }

    @Override
    protected void writeInternal(ObjectDataOutput out) throws IOException {
        super.writeInternal(out);
        out.writeBoolean(complete);
    }

    @Override
    protected void readInternal(ObjectDataInput in) throws IOException {
        super.readInternal(in);
        complete = in.readBoolean();
    }

    @Override
    public int getClassId() {
        return WalSerializerHook.DESTROYED;
    }
}
