package io.imapwal.hazelcast.transactions;

import com.hazelcast.internal.util.UUIDSerializationUtil;
import com.hazelcast.nio.ObjectDataInput;
import com.hazelcast.nio.ObjectDataOutput;
import io.imapwal.hazelcast.engine.Composed;
import io.imapwal.hazelcast.engine.MemberOperation;
import io.imapwal.hazelcast.engine.OperationIds;
import io.imapwal.hazelcast.engine.PluginOperation;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.UUID;

/**
 * Asks a member which of the transactions that it coordinated have ended
 * ({@link TransactionInquiry}). It is answered from memory.
 */
public final class InquiryOperation extends PluginOperation implements MemberOperation {
    private Collection<UUID> transactions;
    private List<UUID> ended;

    /** @param transactions null, for deserialisation: they are read */
    public InquiryOperation(Collection<UUID> transactions) {
        super(OperationIds.INQUIRY, null, null);
        this.transactions = transactions;
    }

    @Override
    public void run() {
        ended = Composed.of(getNodeEngine(), TransactionInquiry.class).ended(transactions);
    }

    @Override
    public Object getResponse() {
        return new ArrayList<>(ended);
    }

    @Override
    protected void writeInternal(ObjectDataOutput out) throws IOException {
        super.writeInternal(out);
        out.writeInt(transactions.size());
        for (UUID each : transactions) {
            UUIDSerializationUtil.writeUUID(out, each);
        }
    }

    @Override
    protected void readInternal(ObjectDataInput in) throws IOException {
        super.readInternal(in);
        transactions = new ArrayList<>();
        for (int left = in.readInt(); left > 0; left--) {
            transactions.add(UUIDSerializationUtil.readUUID(in));
        }
    }
}
