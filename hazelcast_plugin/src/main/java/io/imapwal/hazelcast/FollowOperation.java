package io.imapwal.hazelcast;

import com.hazelcast.nio.serialization.IdentifiedDataSerializable;
import com.hazelcast.spi.impl.operationservice.Operation;

/** The caller leaves to form a new cluster. Asks a member to join that one as soon as the caller has left. */
public final class FollowOperation extends Operation implements IdentifiedDataSerializable {
    @Override
    public void run() {
        WalPlugin.of(getNodeEngine()).leftOut().follow(getCallerAddress());
    }

    @Override
    public int getFactoryId() {
        return WalSerializerHook.FACTORY_ID;
    }

    @Override
    public int getClassId() {
        return WalSerializerHook.FOLLOW;
    }
}
