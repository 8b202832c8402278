package io.imapwal.hazelcast;

import com.hazelcast.nio.ObjectDataInput;
import com.hazelcast.nio.ObjectDataOutput;

import java.io.IOException;

/**
 * Asks a member for the state of a map: whether its agent answers, whether the map may be used,
 * whether its partitions are loaded; or why not. The member begins to open the map.
 */
public final class StatusOperation extends NamedMapOperation {
    static final String READY = "ready";
    static final String OPEN = "open";
    static final String LOADED = "loaded";

    private Membership asker;
    private boolean whenLoaded;
    private String answer;
    private boolean deferred;

    /** For deserialisation. */
    public StatusOperation() {
    }

    /** @param whenLoaded the answer is sent when the map is loaded, or cannot be */
    StatusOperation(String map, Membership asker, boolean whenLoaded) {
        super(map);
        this.asker = asker;
        this.whenLoaded = whenLoaded;
    }

    @Override
    public void run() {
        WalPlugin plugin = WalPlugin.of(getNodeEngine());
        answer = plugin.cluster().isFellow(asker) ? plugin.state(map).status()
                : "member " + plugin.member() + " is not in the same cluster any more";
        if (whenLoaded && (OPEN.equals(answer) || READY.equals(answer))) {
            deferred = true;
            plugin.state(map).whenLoaded(() -> sendResponse(answer));
        }
    }

    @Override
    public boolean returnsResponse() {
        return !deferred;
    }

    @Override
    public Object getResponse() {
        return answer;
    }

    @Override
    protected void writeInternal(ObjectDataOutput out) throws IOException {
        super.writeInternal(out);
        asker.write(out);
        out.writeBoolean(whenLoaded);
    }

    @Override
    protected void readInternal(ObjectDataInput in) throws IOException {
        super.readInternal(in);
        asker = Membership.read(in);
        whenLoaded = in.readBoolean();
    }

    @Override
    public int getClassId() {
        return WalSerializerHook.STATUS;
    }
}
