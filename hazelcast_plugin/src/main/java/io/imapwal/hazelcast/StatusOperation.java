package io.imapwal.hazelcast;

/** Asks a member whether a map is restored, and if not, whether its agent is there. */
public final class StatusOperation extends NamedMapOperation {
    static final String RESTORED = "restored";
    static final String READY = "ready";

    private String answer;

    /** For deserialisation. */
    public StatusOperation() {
    }

    StatusOperation(String map) {
        super(map);
    }

    @Override
    public void run() {
        answer = WalPlugin.of(getNodeEngine()).state(map).status();
    }

    @Override
    public Object getResponse() {
        return answer;
    }

    @Override
    public int getClassId() {
        return WalSerializerHook.STATUS;
    }
}
