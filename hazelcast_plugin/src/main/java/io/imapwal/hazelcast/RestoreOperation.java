package io.imapwal.hazelcast;

import com.hazelcast.core.HazelcastException;
import com.hazelcast.internal.serialization.Data;
import com.hazelcast.map.impl.operation.PutFromLoadAllOperation;
import com.hazelcast.nio.ObjectDataInput;
import com.hazelcast.nio.ObjectDataOutput;

import java.io.IOException;
import java.util.List;

/**
 * Puts restored entries into their partition, unless the map is restored already: two members may restore at once, when the
 * map's partition for loading moved, and the slower one's entries are old as soon as changes are accepted.
 */
public final class RestoreOperation extends PutFromLoadAllOperation {
    private Membership loader;
    private boolean skipped;

    /** For deserialisation. */
    public RestoreOperation() {
    }

    /** @param loader who restores; Hazelcast may repeat this in a cluster that both join later */
    RestoreOperation(String map, List<Data> keysValuesExpiries, Membership loader) {
        super(map, keysValuesExpiries, true);
        this.loader = loader;
    }

    @Override
    protected void runInternal() {
        WalPlugin plugin = WalPlugin.of(getNodeEngine());
        if (!plugin.guard().isFellow(loader)) {
            throw new HazelcastException("map \"" + name + "\" is restored for another cluster");
        }
        MapState state = plugin.state(name);
        skipped = state.restored();
        if (!skipped) {
            state.watch(getPartitionId());
            super.runInternal();
        }
    }

    @Override
    public boolean shouldBackup() {
        return !skipped && super.shouldBackup();
    }

    @Override
    protected void writeInternal(ObjectDataOutput out) throws IOException {
        super.writeInternal(out);
        loader.write(out);
    }

    @Override
    protected void readInternal(ObjectDataInput in) throws IOException {
        super.readInternal(in);
        loader = Membership.read(in);
    }

    @Override
    public int getFactoryId() {
        return WalSerializerHook.FACTORY_ID;
    }

    @Override
    public int getClassId() {
        return WalSerializerHook.RESTORE;
    }
}
