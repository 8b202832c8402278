package io.imapwal.hazelcast;

import com.hazelcast.nio.serialization.IdentifiedDataSerializable;
import com.hazelcast.spi.impl.operationservice.Operation;

/** Tells a member that another one was left out of a view: it looks whether it was, too. */
public final class LookOperation extends Operation implements IdentifiedDataSerializable {

    @Override
    public void run() {
        WalPlugin.of(getNodeEngine()).leftOut().suspect();
    }

    @Override
    public int getFactoryId() {
        return WalSerializerHook.FACTORY_ID;
    }

    @Override
    public int getClassId() {
        return WalSerializerHook.LOOK;
    }
}
