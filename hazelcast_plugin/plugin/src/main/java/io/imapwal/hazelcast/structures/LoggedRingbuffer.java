package io.imapwal.hazelcast.structures;

import com.hazelcast.config.InMemoryFormat;
import com.hazelcast.config.RingbufferConfig;
import com.hazelcast.internal.serialization.Data;
import com.hazelcast.internal.services.ObjectNamespace;
import com.hazelcast.nio.ObjectDataOutput;
import com.hazelcast.ringbuffer.impl.RingbufferContainer;
import com.hazelcast.spi.impl.NodeEngine;
import com.hazelcast.spi.impl.NodeEngineImpl;
import io.imapwal.hazelcast.structures.ItemLog.Item;

import java.io.IOException;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import java.util.stream.LongStream;

/**
 * A durable ringbuffer on the member that owns its partition. After a restart, it has the same
 * items, and its sequences continue. The log keeps as many items as the ringbuffer.
 */
final class LoggedRingbuffer extends RingbufferContainer<Object, Object> {
    /** The number of an entry that has the last sequence: items expire, but sequences continue. */
    private static final long TAIL = -1;

    private final NodeEngine nodeEngine;
    private final int partition;
    private final LoggedItems items;
    /** Items that are in the log, but for which the ringbuffer has no room. */
    private List<Long> surplus = List.of();

    private LoggedRingbuffer(ObjectNamespace namespace, RingbufferConfig config, int partition,
            LoggedItems items, NodeEngine nodeEngine) {
        super(namespace, config, nodeEngine, partition);
        this.nodeEngine = nodeEngine;
        this.partition = partition;
        this.items = items;
    }

    static LoggedRingbuffer of(ObjectNamespace namespace, RingbufferConfig config, int partition,
            LoggedItems items, NodeEngine nodeEngine) {
        LoggedRingbuffer ringbuffer = new LoggedRingbuffer(namespace, new RingbufferConfig(config)
                .setBackupCount(0).setAsyncBackupCount(0)
                .setMergePolicyConfig(DurableStructures.noMerge()), partition, items, nodeEngine);
        items.refreshLater(ringbuffer::refresh);
        return ringbuffer;
    }

    LoggedItems items() {
        return items;
    }

    /**
     * Makes the ringbuffer equal to its map, before an operation.
     *
     * @throws RuntimeException retryable: the map is not whole yet
     */
    void refresh() {
        if (items.isCurrent()) {
            return;
        }
        TreeMap<Long, Data> all = items.load();
        Data marked = all.remove(TAIL);
        long tail = marked == null ? -1 : nodeEngine.getSerializationService().toObject(marked);
        // Older items expire first: if any are left, the last one is among them.
        tail = all.isEmpty() ? tail : all.lastKey();
        long head = tail + 1;
        while (tail - head + 1 < getCapacity() && all.containsKey(head - 1)) {
            head--;
        }
        surplus = List.copyOf(all.headMap(head).keySet());
        setTailSequence(head - 1);
        setHeadSequence(head);
        items.forget();
        for (long sequence = head; sequence <= tail; sequence++) {
            set(sequence, all.get(sequence));
        }
        items.keep();
        ((NodeEngineImpl) nodeEngine).getOperationParker().unpark(this);
    }

    /** As {@link LoggedQueue#adopt}: the items keep their sequences. */
    void adopt(RingbufferContainer<?, ?> plain) {
        if (plain.tailSequence() < 0) {
            return;
        }
        if (!items.isNew()) {
            items.reportDropped(plain.size());
            return;
        }
        setTailSequence(plain.headSequence() - 1);
        setHeadSequence(plain.headSequence());
        List<Data> before = LongStream.rangeClosed(plain.headSequence(), plain.tailSequence())
                .mapToObj(plain::readAsData).toList();
        log(before);
        before.forEach(super::add);
    }

    @Override
    public long add(Object item) {
        requireReadable(item);
        log(List.of(item));
        return super.add(item);
    }

    @Override
    public long addAll(Object[] added) {
        Arrays.asList(added).forEach(this::requireReadable);
        log(Arrays.asList(added));
        return super.addAll(added);
    }

    /** A ringbuffer that keeps objects could not be made from an item that is not readable. */
    private void requireReadable(Object item) {
        if (getConfig().getInMemoryFormat() == InMemoryFormat.OBJECT) {
            nodeEngine.getSerializationService().toObject(item);
        }
    }

    /** Logs new items, and deletes from the log those that they replace. */
    private void log(List<?> added) {
        long ttlMs = TimeUnit.SECONDS.toMillis(getConfig().getTimeToLiveSeconds());
        long expiresAtMs = ttlMs == 0 ? 0 : System.currentTimeMillis() + ttlMs;
        Map<Long, Item> set = new LinkedHashMap<>();
        long sequence = tailSequence() + 1;
        long end = sequence + added.size();
        for (Object item : added) {
            // Of more items than the ringbuffer has room for, it keeps the last ones.
            if (end - sequence <= getCapacity()) {
                set.put(sequence, new Item(data(item), expiresAtMs));
            }
            sequence++;
        }
        if (ttlMs > 0) {
            set.put(TAIL, new Item(data(end - 1), 0));
        }
        List<Long> replaced = LongStream.concat(surplus.stream().mapToLong(Long::longValue),
                LongStream.range(Math.max(0, tailSequence() + 1 - getCapacity()),
                        Math.min(end - getCapacity(), tailSequence() + 1))).boxed().toList();
        items.change(set, replaced);
        surplus = List.of();
    }

    private Data data(Object item) {
        return nodeEngine.getSerializationService().toData(item);
    }

    /** The next owner reads the map. */
    @Override
    public void writeData(ObjectDataOutput out) throws IOException {
        new RingbufferContainer<>(getNamespace(), getConfig(), nodeEngine, partition)
                .writeData(out);
    }
}
