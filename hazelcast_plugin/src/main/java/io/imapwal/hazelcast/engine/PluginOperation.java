package io.imapwal.hazelcast.engine;

import com.hazelcast.nio.serialization.IdentifiedDataSerializable;
import com.hazelcast.spi.impl.operationservice.Operation;

/** An operation that the plug-in sends between members. */
public abstract class PluginOperation extends Operation implements IdentifiedDataSerializable {
    private final transient int id;

    /** @param id of its class, of {@link OperationIds} */
    protected PluginOperation(int id) {
        this.id = id;
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
