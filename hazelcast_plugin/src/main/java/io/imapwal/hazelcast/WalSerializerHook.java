package io.imapwal.hazelcast;

import com.hazelcast.internal.serialization.DataSerializerHook;
import com.hazelcast.nio.serialization.DataSerializableFactory;

/** Makes the operations of the plug-in serializable between members. */
public final class WalSerializerHook implements DataSerializerHook {
    static final int FACTORY_ID = -77_001;
    static final int STATUS = 2;
    static final int DOUBT_PROCESSOR = 4;
    static final int DOUBT_PROCESSOR_BACKUP = 5;
    static final int VIEW = 20;
    static final int LOOK = 21;
    static final int FORGET = 22;
    static final int DESTROYED = 23;
    static final int DOUBT = 24;
    static final int PLACE = 25;
    static final int RELEASE = 26;
    static final int LOGGED_SET = 27;
    static final int LOGGED_DELETE = 28;
    static final int INQUIRY = 29;
    static final int CARRIED_STATE = 6;
    static final int CORRECTION_BACKUP = 7;

    @Override
    public int getFactoryId() {
        return FACTORY_ID;
    }

    @Override
    public DataSerializableFactory createFactory() {
        return id -> switch (id) {
            case STATUS -> new StatusOperation();
            case DOUBT_PROCESSOR -> new DoubtProcessor();
            case DOUBT_PROCESSOR_BACKUP -> new DoubtProcessor.OnBackup();
            case VIEW -> new ViewOperation();
            case LOOK -> new LookOperation();
            case FORGET -> new ForgetOperation();
            case DESTROYED -> new DestroyedOperation();
            case DOUBT -> new DoubtOperation();
            case PLACE -> new PlaceOperation();
            case RELEASE -> new ReleaseOperation();
            case LOGGED_SET -> new LoggedSetOperation();
            case LOGGED_DELETE -> new LoggedDeleteOperation();
            case INQUIRY -> new InquiryOperation();
            case CARRIED_STATE -> new CarriedState();
            case CORRECTION_BACKUP -> new CorrectionBackup();
            default -> null;
        };
    }
}
