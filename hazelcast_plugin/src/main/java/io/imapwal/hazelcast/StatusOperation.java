package io.imapwal.hazelcast;

import com.hazelcast.nio.ObjectDataInput;
import com.hazelcast.nio.ObjectDataOutput;

import java.io.IOException;

/** Asks a member whether a map is restored, and if not, whether its agent is there. */
public final class StatusOperation extends NamedMapOperation {
    static final String RESTORED = "restored";
    static final String READY = "ready";

    private Membership asker;
    private String answer;

    /** For deserialisation. */
    public StatusOperation() {
    }

    StatusOperation(String map, Membership asker) {
        super(map);
        this.asker = asker;
    }

    @Override
    public void run() {
        WalPlugin plugin = WalPlugin.of(getNodeEngine());
        answer = plugin.guard().isFellow(asker) ? plugin.state(map).status()
                : "member " + plugin.member() + " is not in the same cluster any more";
    }

    @Override
    public Object getResponse() {
        return answer;
    }

    @Override
    protected void writeInternal(ObjectDataOutput out) throws IOException {
        super.writeInternal(out);
        asker.write(out);
    }

    @Override
    protected void readInternal(ObjectDataInput in) throws IOException {
        super.readInternal(in);
        asker = Membership.read(in);
    }

    @Override
    public int getClassId() {
        return WalSerializerHook.STATUS;
    }
}
