package io.imapwal.hazelcast;

import com.hazelcast.nio.ObjectDataInput;
import com.hazelcast.nio.ObjectDataOutput;

import java.io.IOException;

/** Tells a member that the cluster has all of a map: changes may be accepted. */
public final class RestoredOperation extends NamedMapOperation {
    private Membership teller;

    /** For deserialisation. */
    public RestoredOperation() {
    }

    /**
     * @param teller who announces it; Hazelcast may repeat this in a cluster that both join later
     */
    RestoredOperation(String map, Membership teller) {
        super(map);
        this.teller = teller;
    }

    @Override
    public void run() {
        WalPlugin plugin = WalPlugin.of(getNodeEngine());
        Membership present = plugin.guard().membership();
        if (plugin.guard().isFellow(teller)) {
            MapState state = plugin.state(map);
            state.setRestored(state.generation(), present);
        }
    }

    @Override
    protected void writeInternal(ObjectDataOutput out) throws IOException {
        super.writeInternal(out);
        teller.write(out);
    }

    @Override
    protected void readInternal(ObjectDataInput in) throws IOException {
        super.readInternal(in);
        teller = Membership.read(in);
    }

    @Override
    public int getClassId() {
        return WalSerializerHook.RESTORED;
    }
}
