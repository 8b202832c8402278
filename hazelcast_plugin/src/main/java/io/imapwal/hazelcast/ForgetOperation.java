package io.imapwal.hazelcast;

import com.hazelcast.internal.nio.IOUtil;
import com.hazelcast.internal.serialization.Data;
import com.hazelcast.nio.ObjectDataInput;
import com.hazelcast.nio.ObjectDataOutput;
import com.hazelcast.spi.impl.operationservice.PartitionAwareOperation;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;

/** Logs tombstones for keys of a destroyed map, at the owner of their partition. The map may not be in memory there any more. */
public final class ForgetOperation extends NamedMapOperation implements PartitionAwareOperation {
    private List<Data> keys;

    /** For deserialisation. */
    public ForgetOperation() {
    }

    ForgetOperation(String map, List<Data> keys) {
        super(map);
        this.keys = keys;
    }

    @Override
    public void run() {
        WalPlugin plugin = WalPlugin.of(getNodeEngine());
        AgentLink link = plugin.linkOf(map);
        if (link == null) {
            throw new LogUnavailable("member " + plugin.member() + " has no map-store for map \"" + map + "\"", null);
        }
        OrderGuard.Stamp stamp = plugin.guard().take(getPartitionId());
        List<Change> changes = new ArrayList<>(keys.size());
        for (Data key : keys) {
            changes.add(WalMapStore.tombstone(map, key, stamp));
        }
        link.append(changes);
    }

    @Override
    protected void writeInternal(ObjectDataOutput out) throws IOException {
        super.writeInternal(out);
        out.writeInt(keys.size());
        for (Data key : keys) {
            IOUtil.writeData(out, key);
        }
    }

    @Override
    protected void readInternal(ObjectDataInput in) throws IOException {
        super.readInternal(in);
        int count = in.readInt();
        keys = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            keys.add(IOUtil.readData(in));
        }
    }

    @Override
    public int getClassId() {
        return WalSerializerHook.FORGET;
    }
}
