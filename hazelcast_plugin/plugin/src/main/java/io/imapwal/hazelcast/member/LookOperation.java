package io.imapwal.hazelcast.member;

import io.imapwal.hazelcast.engine.Composed;
import io.imapwal.hazelcast.engine.MemberOperation;
import io.imapwal.hazelcast.engine.OperationIds;
import io.imapwal.hazelcast.engine.PluginOperation;

/**
 * Informs a member that another one was left out of a view, so that it checks whether it was left
 * out too. Returns whether it knows that already.
 */
public final class LookOperation extends PluginOperation implements MemberOperation {
    private boolean out;

    LookOperation() {
        super(OperationIds.LOOK, null, null);
    }

    @Override
    public void run() {
        LeftOut leftOut = Composed.of(getNodeEngine(), LeftOut.class);
        leftOut.suspect();
        out = leftOut.isOut();
    }

    @Override
    public Object getResponse() {
        return out;
    }
}
