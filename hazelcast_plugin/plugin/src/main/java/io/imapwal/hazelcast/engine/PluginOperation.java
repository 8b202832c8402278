package io.imapwal.hazelcast.engine;

import com.hazelcast.internal.util.UUIDSerializationUtil;
import com.hazelcast.nio.ObjectDataInput;
import com.hazelcast.nio.ObjectDataOutput;
import com.hazelcast.nio.serialization.IdentifiedDataSerializable;
import com.hazelcast.spi.impl.operationservice.Operation;

import java.io.IOException;
import java.util.UUID;

/** An operation that the plug-in sends between members. Most are about a map or a UUID. */
public abstract class PluginOperation extends Operation implements IdentifiedDataSerializable {
    private final transient int id;
    protected String map;
    protected UUID uuid;

    /**
     * @param id   of its class, of {@link OperationIds}
     * @param map  null: none, or it is read
     * @param uuid of a member or a transaction, as the subclass says; null: none, or it is read
     */
    protected PluginOperation(int id, String map, UUID uuid) {
        this.id = id;
        this.map = map;
        this.uuid = uuid;
    }

    @Override
    protected void writeInternal(ObjectDataOutput out) throws IOException {
        super.writeInternal(out);
        out.writeString(map);
        out.writeBoolean(uuid != null);
        if (uuid != null) {
            UUIDSerializationUtil.writeUUID(out, uuid);
        }
    }

    @Override
    protected void readInternal(ObjectDataInput in) throws IOException {
        super.readInternal(in);
        map = in.readString();
        uuid = in.readBoolean() ? UUIDSerializationUtil.readUUID(in) : null;
    }

    @Override
    public final int getFactoryId() {
        return OperationIds.FACTORY;
    }

    @Override
    public final int getClassId() {
        return id;
    }
}
