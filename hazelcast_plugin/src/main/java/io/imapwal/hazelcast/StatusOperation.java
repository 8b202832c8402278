package io.imapwal.hazelcast;

import com.hazelcast.core.HazelcastInstanceNotActiveException;
import com.hazelcast.nio.ObjectDataInput;
import com.hazelcast.nio.ObjectDataOutput;

import java.io.IOException;

/**
 * Asks a member for the state of a map: whether its agent answers, whether the map may be used,
 * whether its partitions are loaded; or why not. The member begins to open the map.
 */
public final class StatusOperation extends NamedMapOperation implements MemberOperation {
    static final String READY = "ready";
    static final String OPEN = "open";
    static final String LOADED = "loaded";
    private static final String EXECUTOR = "imap-wal:status";

    private Membership asker;
    private boolean whenLoaded;
    private boolean runs;

    /** For deserialisation. */
    public StatusOperation() {
    }

    /** @param whenLoaded the answer is sent when the map is loaded, or cannot be */
    StatusOperation(String map, Membership asker, boolean whenLoaded) {
        super(map);
        this.asker = asker;
        this.whenLoaded = whenLoaded;
    }

    /** On another thread, because an agent may take long to answer a hello. */
    @Override
    public void run() {
        runs = true;
        getNodeEngine().getExecutionService().execute(EXECUTOR, () -> {
            try {
                answer();
            } catch (RuntimeException e) {
                send(Outcomes.reason(e));
            }
        });
    }

    private void answer() {
        WalPlugin plugin = WalPlugin.of(getNodeEngine());
        if (!plugin.cluster().isFellow(asker)) {
            send("member " + plugin.member() + " is not in the same cluster any more");
            return;
        }
        MapState state = plugin.state(map);
        String status = state.opening().status();
        if (whenLoaded && (OPEN.equals(status) || READY.equals(status))) {
            state.opening().whenLoaded(() -> send(status));
        } else {
            send(status);
        }
    }

    private void send(String status) {
        try {
            sendResponse(status);
        } catch (HazelcastInstanceNotActiveException e) {
            // This member shuts down. The other one sees that it leaves.
        }
    }

    /** Once it runs, it sends the response itself. */
    @Override
    public boolean returnsResponse() {
        return !runs;
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
