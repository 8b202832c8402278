package io.imapwal.hazelcast.settle;

import com.hazelcast.core.HazelcastInstanceNotActiveException;
import com.hazelcast.internal.util.UUIDSerializationUtil;
import com.hazelcast.nio.ObjectDataInput;
import com.hazelcast.nio.ObjectDataOutput;
import io.imapwal.hazelcast.engine.Composed;
import io.imapwal.hazelcast.engine.MemberOperation;
import io.imapwal.hazelcast.engine.OperationIds;
import io.imapwal.hazelcast.engine.PluginOperation;
import io.imapwal.wire.AgentError;
import io.imapwal.wire.Membership;

import java.io.IOException;
import java.util.Set;
import java.util.UUID;

/**
 * Asks a member for the state of a map: whether its agent answers, whether the map may be used,
 * whether its partitions are loaded; or why not. The member begins to open the map.
 */
public final class StatusOperation extends PluginOperation implements MemberOperation {
    static final String READY = "ready";
    static final String OPEN = "open";
    public static final String LOADED = "loaded";
    /** Answers after which the map may still be loaded. */
    static final Set<String> MAY_LOAD = Set.of(READY, OPEN);
    private static final String EXECUTOR = "imap-wal:status";

    private UUID cluster;
    private boolean whenLoaded;
    private boolean runs;

    /** For deserialisation. */
    public StatusOperation() {
        super(OperationIds.STATUS, null, null);
    }

    /** @param whenLoaded the answer is sent when the map is loaded, or cannot be */
    public StatusOperation(String map, Membership asker, boolean whenLoaded) {
        super(OperationIds.STATUS, map, asker.member());
        this.cluster = asker.clusterId();
        this.whenLoaded = whenLoaded;
    }

    /** On another thread, because an agent may take long to answer a hello. */
    @Override
    public void run() {
        runs = true;
        getNodeEngine().getExecutionService().execute(EXECUTOR, () -> {
            try {
                Composed.of(getNodeEngine(), OwnMaps.class)
                        .status(map, new Membership(cluster, uuid), whenLoaded, this::send);
            } catch (RuntimeException e) {
                send(AgentError.reason(e));
            }
        });
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
        UUIDSerializationUtil.writeUUID(out, cluster);
        out.writeBoolean(whenLoaded);
    }

    @Override
    protected void readInternal(ObjectDataInput in) throws IOException {
        super.readInternal(in);
        cluster = UUIDSerializationUtil.readUUID(in);
        whenLoaded = in.readBoolean();
    }
}
