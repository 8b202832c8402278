package io.imapwal.hazelcast;

import com.hazelcast.nio.serialization.IdentifiedDataSerializable;
import com.hazelcast.spi.impl.operationservice.Operation;

/**
 * Informs a member that another one was left out of a view, so that it checks whether it was left
 * out too. Returns whether it knows that already.
 */
public final class LookOperation extends Operation
        implements IdentifiedDataSerializable, MemberOperation {
    private boolean out;

    @Override
    public void run() {
        LeftOut leftOut = WalPlugin.of(getNodeEngine()).leftOut();
        leftOut.suspect();
        out = leftOut.isOut();
    }

    @Override
    public Object getResponse() {
        return out;
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
