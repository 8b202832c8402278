package io.imapwal.hazelcast.structures;

import com.hazelcast.collection.impl.queue.QueueContainer;
import com.hazelcast.collection.impl.queue.QueueItem;
import com.hazelcast.collection.impl.queue.QueueService;
import com.hazelcast.collection.impl.queue.operations.QueueOperation;
import com.hazelcast.config.QueueConfig;
import com.hazelcast.config.QueueStoreConfig;
import com.hazelcast.core.HazelcastException;
import com.hazelcast.internal.serialization.Data;
import com.hazelcast.internal.util.ThreadUtil;
import com.hazelcast.nio.ObjectDataOutput;
import com.hazelcast.spi.exception.RetryableHazelcastException;
import com.hazelcast.spi.impl.NodeEngine;
import com.hazelcast.spi.impl.NodeEngineImpl;
import com.hazelcast.spi.impl.operationservice.Notifier;
import com.hazelcast.spi.impl.operationservice.WaitNotifyKey;
import io.imapwal.hazelcast.LogUnavailable;
import io.imapwal.hazelcast.OutcomeUnknown;
import io.imapwal.hazelcast.engine.PartitionThreads;
import io.imapwal.hazelcast.engine.Reflection;

import java.io.IOException;
import java.lang.reflect.Field;
import java.util.Collection;
import java.util.HashSet;
import java.util.LinkedList;
import java.util.List;
import java.util.ListIterator;
import java.util.Map;
import java.util.PriorityQueue;
import java.util.Queue;
import java.util.UUID;
import java.util.function.Supplier;

/**
 * A durable queue on the member that owns its partition. Hazelcast's queue has the order of the
 * items; until they are read, their bytes are only in the map.
 */
final class LoggedQueue extends QueueContainer {
    /**
     * The numbers of a queue begin at the current time, which is above these bits. So no item gets
     * the number of an earlier one that is deleted.
     */
    private static final int NUMBER_BITS = 20;
    private static final Field ID = Reflection.field(QueueContainer.class, "idGenerator");

    private final NodeEngine nodeEngine;
    private final QueueItems store;
    /** Why the queue cannot be used now; null: it can. */
    private RuntimeException unavailable;

    private LoggedQueue(String name, QueueConfig config, QueueItems store, NodeEngine nodeEngine,
            QueueService service) {
        super(name, config, nodeEngine, service);
        this.nodeEngine = nodeEngine;
        this.store = store;
    }

    LoggedItems items() {
        return store.items();
    }

    static LoggedQueue of(String name, QueueConfig config, LoggedItems items,
            NodeEngine nodeEngine, QueueService service) {
        QueueItems store = new QueueItems(items);
        QueueStoreConfig ours = new QueueStoreConfig().setEnabled(true)
                .setStoreImplementation(store)
                .setProperty(QueueStoreConfig.STORE_BINARY, "true")
                // With a comparator, Hazelcast keeps all items, and warns about any limit.
                .setProperty(QueueStoreConfig.STORE_MEMORY_LIMIT,
                        config.isPriorityQueue() ? String.valueOf(Integer.MAX_VALUE) : "0")
                .setProperty(QueueStoreConfig.STORE_BULK_LOAD, "1");
        LoggedQueue queue = new LoggedQueue(name, new QueueConfig(config).setQueueStoreConfig(ours)
                .setBackupCount(0).setAsyncBackupCount(0)
                .setMergePolicyConfig(DurableStructures.noMerge()), store, nodeEngine, service);
        items.refreshLater(queue::refresh);
        return queue;
    }

    /**
     * Makes the queue equal to its map, before an operation. It stays the same object, because
     * operations that wait for an item refer to it. Reservations of transactions are forgotten:
     * these transactions fail before they commit.
     *
     * @throws RuntimeException retryable: the map is not whole yet
     */
    void refresh() {
        if (unavailable == null && store.items().isCurrent()) {
            return;
        }
        destroy();
        boolean made = false;
        try {
            unavailable = null;
            init(false);
            ID.setLong(this, Math.max(ID.getLong(this), System.currentTimeMillis() << NUMBER_BITS));
            made = true;
        } catch (LogUnavailable | OutcomeUnknown e) {
            unavailable = e;
            return;
        } catch (RetryableHazelcastException e) {
            if (PartitionThreads.task(store.items().partition()) instanceof QueueOperation) {
                throw e;
            }
            // An operation of a map has the thread and needs the queue. Repeating it would be in
            // vain until it times out.
            unavailable = new LogUnavailable("queue \"" + getName() + "\" cannot be used by an"
                    + " entry processor now: " + e.getMessage(), e);
            return;
        } catch (IllegalAccessException e) {
            throw new IllegalStateException(e);
        } finally {
            if (!made) {
                // It may have only some of the items.
                store.items().forget();
                destroy();
            }
        }
        // There may be new items of which the operations that wait were not notified.
        notify(getPollWaitNotifyKey());
        notify(getOfferWaitNotifyKey());
    }

    /**
     * Logs the items of a queue of Hazelcast, which came from a member whose configuration does
     * not name the queue yet.
     *
     * @return whether this object is the queue now
     */
    boolean adopt(QueueContainer plain) {
        if (unavailable != null) {
            return false;
        }
        List<Data> before = plain.getAsDataList();
        if (!before.isEmpty()) {
            if (store.items().isNew()) {
                addAll(before);
            } else {
                store.items().reportDropped(before.size());
            }
        }
        return true;
    }

    private void notify(WaitNotifyKey key) {
        ((NodeEngineImpl) nodeEngine).getOperationParker().unpark(new Notifier() {
            @Override
            public boolean shouldNotify() {
                return true;
            }

            @Override
            public WaitNotifyKey getNotifiedKey() {
                return key;
            }
        });
    }

    /** All operations call it, so they fail here. Other threads compute statistics from it. */
    @Override
    public Queue<QueueItem> getItemQueue() {
        if (unavailable != null && ThreadUtil.isRunningOnPartitionThread()) {
            throw unavailable;
        }
        return super.getItemQueue();
    }

    /** The next owner reads the map. */
    @Override
    public void writeData(ObjectDataOutput out) throws IOException {
        out.writeString(getName());
        out.writeInt(0);
        out.writeInt(0);
    }

    /** Hazelcast wraps the exceptions of a queue store, so callers would not see their classes. */
    private static <T> T unwrapped(Supplier<T> action) {
        try {
            return action.get();
        } catch (HazelcastException e) {
            throw e.getClass() == HazelcastException.class
                    && e.getCause() instanceof RuntimeException cause ? cause : e;
        }
    }

    static boolean possible() {
        return ID != null;
    }

    /** Throws what the comparator throws, before the item is logged. */
    private void requireComparable(Data item) {
        if (getItemQueue() instanceof PriorityQueue<QueueItem> queue) {
            QueueItem added = new QueueItem(this, Long.MAX_VALUE, item);
            QueueItem other = queue.isEmpty() ? added : queue.peek();
            if (queue.comparator() != null) {
                queue.comparator().compare(added, other);
            }
        }
    }

    @Override
    public long offer(Data item) {
        requireComparable(item);
        return unwrapped(() -> super.offer(item));
    }

    @Override
    public Map<Long, Data> addAll(Collection<Data> items) {
        items.forEach(this::requireComparable);
        return unwrapped(() -> super.addAll(items));
    }

    @Override
    public QueueItem peek() {
        return unwrapped(super::peek);
    }

    @Override
    public QueueItem poll() {
        return unwrapped(super::poll);
    }

    @Override
    public Map<Long, Data> drain(int maxSize) {
        return unwrapped(() -> super.drain(maxSize));
    }

    @Override
    public Map<Long, Data> clear() {
        return unwrapped(super::clear);
    }

    /** Hazelcast's own method would keep the bytes of all items in memory. */
    @Override
    public List<Data> getAsDataList() {
        Map<Long, Data> all = store.items().all();
        return getItemQueue().stream().map(each -> all.get(each.getItemId())).toList();
    }

    @Override
    public Map<Long, Data> compareAndRemove(Collection<Data> items, boolean retain) {
        return unwrapped(() -> super.compareAndRemove(items, retain));
    }

    @Override
    public QueueItem txnPollReserve(long reservedOfferId, UUID transaction) {
        return unwrapped(() -> super.txnPollReserve(reservedOfferId, transaction));
    }

    @Override
    public QueueItem txnPeek(long offerId, UUID transaction) {
        return unwrapped(() -> super.txnPeek(offerId, transaction));
    }

    /** Hazelcast compares only those items whose bytes are in the queue. */
    @Override
    public long remove(Data item) {
        Map<Long, Data> all = store.items().all();
        for (QueueItem each : getItemQueue()) {
            if (item.equals(all.get(each.getItemId()))) {
                each.setSerializedObject(item);
                return unwrapped(() -> super.remove(item));
            }
        }
        return -1;
    }

    @Override
    public boolean contains(Collection<Data> items) {
        return new HashSet<>(getAsDataList()).containsAll(items);
    }

    /** Hazelcast would ignore an error of the log. */
    @Override
    public boolean txnCommitOffer(long id, Data item, boolean backup) {
        txnCheckReserve(id);
        requireComparable(item);
        store.logBefore(id, item);
        boolean done = super.txnCommitOffer(id, item, backup);
        if (getItemQueue() instanceof LinkedList<QueueItem> queue) {
            // Hazelcast appends it. It is moved to where a restart would put it: by its number.
            QueueItem committed = queue.removeLast();
            ListIterator<QueueItem> place = queue.listIterator(queue.size());
            while (place.hasPrevious()) {
                if (place.previous().compareTo(committed) < 0) {
                    place.next();
                    break;
                }
            }
            place.add(committed);
        }
        return done;
    }

    @Override
    public Data txnCommitPoll(long id) {
        txnCheckReserve(id);
        getItemQueue();
        store.logBefore(id, null);
        return super.txnCommitPoll(id);
    }
}
