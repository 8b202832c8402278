package io.imapwal.hazelcast.settle;

import com.hazelcast.internal.nio.IOUtil;
import com.hazelcast.internal.serialization.Data;
import com.hazelcast.internal.util.UUIDSerializationUtil;
import com.hazelcast.nio.ObjectDataInput;
import com.hazelcast.nio.ObjectDataOutput;
import io.imapwal.hazelcast.engine.OperationIds;
import io.imapwal.hazelcast.engine.PluginOperation;

import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;

/**
 * Sent with a partition to its next owner. It names the maps that are whole in the copy. A new
 * owner that did not receive it gained the partition by loss.
 */
public final class CarriedState extends PluginOperation {
    private Contents contents;

    /**
     * @param whole   maps that are whole in memory
     * @param doubted maps that have to be compared with the log after {@code from} has left: its
     *                agent may still append changes that have no outcome at the sender
     * @param changed for each map, keys that may be newer in the log than in the copy: they were
     *                changed while the migration began
     * @param partial maps of which keys were evicted
     * @param filled  maps that have entries in the partition
     */
    public record Contents(Set<String> whole, Set<String> doubted, Map<String, List<Data>> changed,
            Set<String> partial, Set<String> filled, UUID from) {
    }

    /** @param contents null, for deserialisation: they are read */
    public CarriedState(Contents contents) {
        super(OperationIds.CARRIED_STATE, null, null);
        this.contents = contents;
    }

    public Contents contents() {
        return contents;
    }

    @Override
    public void run() {
        PartitionMoves moves = getService();
        moves.requireOpen(getPartitionId(), contents);
        moves.arrive(getPartitionId(), contents);
    }

    @Override
    protected void writeInternal(ObjectDataOutput out) throws IOException {
        super.writeInternal(out);
        write(out, contents.whole);
        write(out, contents.doubted);
        out.writeInt(contents.changed.size());
        for (Map.Entry<String, List<Data>> keys : contents.changed.entrySet()) {
            out.writeString(keys.getKey());
            out.writeInt(keys.getValue().size());
            for (Data key : keys.getValue()) {
                IOUtil.writeData(out, key);
            }
        }
        write(out, contents.partial);
        write(out, contents.filled);
        UUIDSerializationUtil.writeUUID(out, contents.from);
    }

    @Override
    protected void readInternal(ObjectDataInput in) throws IOException {
        super.readInternal(in);
        Set<String> whole = read(in);
        Set<String> doubted = read(in);
        Map<String, List<Data>> changed = new HashMap<>();
        for (int maps = in.readInt(); maps > 0; maps--) {
            List<Data> keys = changed.computeIfAbsent(in.readString(), map -> new ArrayList<>());
            for (int left = in.readInt(); left > 0; left--) {
                keys.add(IOUtil.readData(in));
            }
        }
        contents = new Contents(whole, doubted, changed, read(in), read(in),
                UUIDSerializationUtil.readUUID(in));
    }

    private static void write(ObjectDataOutput out, Set<String> maps) throws IOException {
        out.writeStringArray(maps.toArray(new String[0]));
    }

    private static Set<String> read(ObjectDataInput in) throws IOException {
        return new HashSet<>(Set.of(in.readStringArray()));
    }

    @Override
    public String getServiceName() {
        return PartitionMoves.NAME;
    }
}
