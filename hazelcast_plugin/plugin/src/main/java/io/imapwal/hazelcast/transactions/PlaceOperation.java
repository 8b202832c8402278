package io.imapwal.hazelcast.transactions;

import com.hazelcast.internal.nio.IOUtil;
import com.hazelcast.internal.serialization.Data;
import com.hazelcast.internal.util.UUIDSerializationUtil;
import com.hazelcast.map.impl.MapService;
import com.hazelcast.map.impl.record.Record;
import com.hazelcast.map.impl.recordstore.RecordStore;
import com.hazelcast.nio.ObjectDataInput;
import com.hazelcast.nio.ObjectDataOutput;
import com.hazelcast.spi.exception.RetryableHazelcastException;
import com.hazelcast.transaction.TransactionException;
import io.imapwal.hazelcast.append.AgentLink;
import io.imapwal.hazelcast.append.Placements;
import io.imapwal.hazelcast.engine.Composed;
import io.imapwal.hazelcast.engine.OperationIds;
import io.imapwal.hazelcast.engine.PluginOperation;
import io.imapwal.hazelcast.engine.ThisMember;
import io.imapwal.hazelcast.settle.MapState;
import io.imapwal.hazelcast.settle.MemberMaps;
import io.imapwal.wire.SessionInfo;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;

/**
 * Gives the changes of a transaction in one partition their place in the order, and returns the
 * place. It runs on the partition's owner, which makes no other change of these keys until it knows
 * the outcome of the transaction.
 */
public final class PlaceOperation extends PluginOperation {
    private UUID lockOwner;
    private UUID coordinator;
    private List<Item> items;
    private long view;
    private long order;

    /**
     * @param thread  that holds the lock
     * @param version of the entry in memory when it was locked
     */
    public record Item(String map, Data key, long thread, long version) {
    }

    /** For deserialisation. */
    public PlaceOperation() {
        super(OperationIds.PLACE, null, null);
    }

    /** @param view in which the transaction is logged */
    public PlaceOperation(UUID transaction, UUID lockOwner, UUID coordinator, List<Item> items,
            long view) {
        super(OperationIds.PLACE, null, transaction);
        this.lockOwner = lockOwner;
        this.coordinator = coordinator;
        this.items = items;
        this.view = view;
    }

    @Override
    public String getServiceName() {
        return MapService.SERVICE_NAME;
    }

    @Override
    public void run() {
        MemberMaps maps = Composed.of(getNodeEngine(), MemberMaps.class);
        Placements placements = maps.placements();
        items.forEach(item -> requireView(maps.links().of(item.map), maps.member()));
        items.forEach(item -> check(item, maps));
        order = maps.guard().place(getPartitionId()).order();
        for (Item item : items) {
            placements.place(item.map, item.key, uuid, coordinator, getPartitionId(), order);
        }
        Composed.of(getNodeEngine(), TransactionInquiry.class).watch();
        if (maps.member().nodeEngine().getClusterService().getMember(coordinator) == null) {
            placements.removeAll(uuid);
            throw new TransactionException("the transaction's member has left the cluster");
        }
    }

    /**
     * A member that does not know the view may have been left out of it. Then the partition has
     * another owner, and a place from this member could be older than changes of that owner.
     */
    private void requireView(AgentLink link, ThisMember member) {
        SessionInfo session = link == null ? null : link.session();
        if (session == null || session.incarnation() < view) {
            if (link != null) {
                link.learn(view);
                link.suspect();
            }
            throw new RetryableHazelcastException("member " + member.name()
                    + " says hello to its agent in view " + view
                    + ", before it takes part in a transaction");
        }
    }

    private void check(Item item, MemberMaps maps) {
        RecordStore<?> store = maps.member().maps().getRecordStore(getPartitionId(), item.map);
        MapState state = maps.state(item.map);
        state.requireSettled(getPartitionId());
        if (maps.reconciler().isDoubted(item.map, item.key)
                || maps.placements().isChanged(item.map, item.key, uuid)) {
            // The settlement waits for the lock that this transaction has.
            throw new TransactionException("map \"" + item.map
                    + "\": an earlier change of a key has an unknown outcome, which is settled"
                    + " when this transaction has ended: repeat the transaction");
        }
        Record<?> record = store.getRecord(item.key);
        boolean unchanged = record == null || record.getVersion() == item.version;
        if (!unchanged || !store.isLockedBy(item.key, lockOwner, item.thread)) {
            throw new TransactionException("map \"" + item.map
                    + "\": the transaction took so long that its lock of a key has expired, or"
                    + " the key's owner was lost");
        }
    }

    @Override
    public Object getResponse() {
        return order;
    }

    @Override
    public void logError(Throwable e) {
        if (!(e instanceof TransactionException)) {
            super.logError(e);
        }
    }

    @Override
    protected void writeInternal(ObjectDataOutput out) throws IOException {
        super.writeInternal(out);
        UUIDSerializationUtil.writeUUID(out, lockOwner);
        UUIDSerializationUtil.writeUUID(out, coordinator);
        out.writeLong(view);
        out.writeInt(items.size());
        for (Item item : items) {
            out.writeString(item.map);
            IOUtil.writeData(out, item.key);
            out.writeLong(item.thread);
            out.writeLong(item.version);
        }
    }

    @Override
    protected void readInternal(ObjectDataInput in) throws IOException {
        super.readInternal(in);
        lockOwner = UUIDSerializationUtil.readUUID(in);
        coordinator = UUIDSerializationUtil.readUUID(in);
        view = in.readLong();
        items = new ArrayList<>();
        for (int left = in.readInt(); left > 0; left--) {
            items.add(new Item(in.readString(), IOUtil.readData(in), in.readLong(), in.readLong()));
        }
    }
}
