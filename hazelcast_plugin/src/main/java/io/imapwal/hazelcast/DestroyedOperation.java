package io.imapwal.hazelcast;

/**
 * Informs a member that a map's destruction was logged, or could not be logged completely. The
 * member may have used the map meanwhile, so it compares its memory with the log.
 */
public final class DestroyedOperation extends NamedMapOperation implements MemberOperation {
    /** For deserialisation. */
    public DestroyedOperation() {
    }

    DestroyedOperation(String map) {
        super(map);
    }

    @Override
    public void run() {
        WalPlugin.of(getNodeEngine()).state(map).destroyed();
    }

    @Override
    public Object getResponse() {
        return true;
    }

    @Override
    public int getClassId() {
        return WalSerializerHook.DESTROYED;
    }
}
