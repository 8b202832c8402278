package io.imapwal.hazelcast.engine;

import com.hazelcast.nio.ObjectDataInput;
import com.hazelcast.nio.ObjectDataOutput;

import java.io.IOException;

/** An operation between members about one map. */
public abstract class NamedMapOperation extends PluginOperation {
    protected String map;

    /** @param map null: it is read */
    protected NamedMapOperation(int id, String map) {
        super(id);
        this.map = map;
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
}
