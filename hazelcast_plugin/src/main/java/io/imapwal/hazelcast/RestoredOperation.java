package io.imapwal.hazelcast;

/** Tells a member that the cluster has all of a map: changes may be accepted. */
public final class RestoredOperation extends NamedMapOperation {

    /** For deserialisation. */
    public RestoredOperation() {
    }

    RestoredOperation(String map) {
        super(map);
    }

    @Override
    public void run() {
        MapState state = WalPlugin.of(getNodeEngine()).state(map);
        state.setRestored(state.generation());
    }

    @Override
    public int getClassId() {
        return WalSerializerHook.RESTORED;
    }
}
