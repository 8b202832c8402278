package io.imapwal.hazelcast.engine;

/** The ids by which members know the classes that the plug-in sends. */
public final class OperationIds {
    public static final int FACTORY = -77_001;
    public static final int STATUS = 2;
    public static final int DOUBT_PROCESSOR = 4;
    public static final int DOUBT_PROCESSOR_BACKUP = 5;
    public static final int CARRIED_STATE = 6;
    public static final int CORRECTION_BACKUP = 7;
    public static final int VIEW = 20;
    public static final int LOOK = 21;
    public static final int FORGET = 22;
    public static final int DESTROYED = 23;
    public static final int DOUBT = 24;
    public static final int PLACE = 25;
    public static final int RELEASE = 26;
    public static final int LOGGED_SET = 27;
    public static final int LOGGED_DELETE = 28;
    public static final int INQUIRY = 29;

    private OperationIds() {
    }
}
