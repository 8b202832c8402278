package io.imapwal.hazelcast.member;

import com.hazelcast.internal.serialization.DataSerializerHook;
import com.hazelcast.nio.serialization.DataSerializableFactory;
import io.imapwal.hazelcast.engine.OperationIds;
import io.imapwal.hazelcast.settle.CarriedState;
import io.imapwal.hazelcast.settle.CorrectionBackup;
import io.imapwal.hazelcast.settle.DoubtOperation;
import io.imapwal.hazelcast.settle.DoubtProcessor;
import io.imapwal.hazelcast.settle.StatusOperation;
import io.imapwal.hazelcast.settle.ViewOperation;
import io.imapwal.hazelcast.transactions.InquiryOperation;
import io.imapwal.hazelcast.transactions.LoggedDeleteOperation;
import io.imapwal.hazelcast.transactions.LoggedSetOperation;
import io.imapwal.hazelcast.transactions.PlaceOperation;
import io.imapwal.hazelcast.transactions.ReleaseOperation;

/** Makes the operations of the plug-in serializable between members. */
public final class WalSerializerHook implements DataSerializerHook {
    @Override
    public int getFactoryId() {
        return OperationIds.FACTORY;
    }

    @Override
    public DataSerializableFactory createFactory() {
        return id -> switch (id) {
            case OperationIds.STATUS -> new StatusOperation();
            case OperationIds.DOUBT_PROCESSOR -> new DoubtProcessor();
            case OperationIds.DOUBT_PROCESSOR_BACKUP -> new DoubtProcessor.OnBackup();
            case OperationIds.VIEW -> new ViewOperation();
            case OperationIds.LOOK -> new LookOperation();
            case OperationIds.FORGET -> new ForgetOperation(null);
            case OperationIds.DESTROYED -> new DestroyedOperation(null);
            case OperationIds.DOUBT -> new DoubtOperation(null);
            case OperationIds.PLACE -> new PlaceOperation();
            case OperationIds.RELEASE -> new ReleaseOperation(null);
            case OperationIds.LOGGED_SET -> new LoggedSetOperation();
            case OperationIds.LOGGED_DELETE -> new LoggedDeleteOperation();
            case OperationIds.INQUIRY -> new InquiryOperation(null);
            case OperationIds.CARRIED_STATE -> new CarriedState(null);
            case OperationIds.CORRECTION_BACKUP -> new CorrectionBackup();
            default -> null;
        };
    }
}
