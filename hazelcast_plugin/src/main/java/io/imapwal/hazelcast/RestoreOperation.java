package io.imapwal.hazelcast;

import com.hazelcast.internal.serialization.Data;
import com.hazelcast.map.impl.operation.PutFromLoadAllOperation;

import java.util.List;

/**
 * Puts restored entries into their partition, unless the map is restored already: two members may restore at once, when the
 * map's partition for loading moved, and the slower one's entries are old as soon as changes are accepted.
 */
public final class RestoreOperation extends PutFromLoadAllOperation {
    private boolean skipped;

    /** For deserialisation. */
    public RestoreOperation() {
    }

    RestoreOperation(String map, List<Data> keysValuesExpiries) {
        super(map, keysValuesExpiries, true);
    }

    @Override
    protected void runInternal() {
        MapState state = WalPlugin.of(getNodeEngine()).state(name);
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
    public int getFactoryId() {
        return WalSerializerHook.FACTORY_ID;
    }

    @Override
    public int getClassId() {
        return WalSerializerHook.RESTORE;
    }
}
