package io.imapwal.hazelcast.structures;

import com.hazelcast.collection.impl.queue.QueueContainer;
import com.hazelcast.collection.impl.queue.QueueService;
import com.hazelcast.collection.impl.queue.operations.QueueMergeOperation;
import com.hazelcast.partition.strategy.StringPartitioningStrategy;
import com.hazelcast.spi.impl.NodeEngine;
import io.imapwal.hazelcast.engine.PartitionThreads;
import io.imapwal.hazelcast.engine.Reflection;
import io.imapwal.hazelcast.structures.DurableStructures.Kind;

import java.lang.reflect.Field;
import java.util.concurrent.ConcurrentHashMap;

/**
 * The queues in the memory of a member, by name. Hazelcast looks a queue up here before each
 * operation. Its only public API for this is {@code QueueStore}, which is not asked again when a
 * partition gets another owner.
 */
final class LoggedQueues extends ConcurrentHashMap<String, QueueContainer> {
    private static final Field CONTAINERS = Reflection.field(QueueService.class, "containerMap");

    private final transient NodeEngine nodeEngine;
    private final transient QueueService service;
    private final transient DurableStructures structures;

    private LoggedQueues(NodeEngine nodeEngine, QueueService service,
            DurableStructures structures) {
        this.nodeEngine = nodeEngine;
        this.service = service;
        this.structures = structures;
    }

    /** Called while the services of a member are made, before its first operation. */
    static void install(NodeEngine nodeEngine, DurableStructures structures)
            throws IllegalAccessException {
        QueueService service = nodeEngine.getService(QueueService.SERVICE_NAME);
        CONTAINERS.set(service, new LoggedQueues(nodeEngine, service, structures));
    }

    static boolean possible() {
        return CONTAINERS != null;
    }

    private int partition(String name) {
        return nodeEngine.getPartitionService().getPartitionId(
                StringPartitioningStrategy.getPartitionKey(name));
    }

    private LoggedItems items(String name) {
        return new LoggedItems(nodeEngine, DurableStructures.map(Kind.QUEUE, name),
                partition(name));
    }

    /** Whether an operation runs now: perhaps one of a map whose entry processor uses it. */
    private boolean isUsed(String name) {
        return PartitionThreads.isUsed(partition(name));
    }

    @Override
    public QueueContainer get(Object name) {
        QueueContainer found = super.get(name);
        // A name has to be checked only for a queue that is not a durable one yet.
        boolean ours = found instanceof LoggedQueue ? isUsed((String) name)
                : found != null && isLogged((String) name);
        return ours ? logged((String) name, found) : found;
    }

    /** An operation needs a queue that is not in memory. */
    @Override
    public QueueContainer putIfAbsent(String name, QueueContainer plain) {
        return isLogged(name) ? logged(name, plain) : super.putIfAbsent(name, plain);
    }

    private boolean isLogged(String name) {
        return structures.isDurable(Kind.QUEUE, name) && isUsed(name);
    }

    /** @param found the queue in memory, or a new one of Hazelcast */
    private LoggedQueue logged(String name, QueueContainer found) {
        if (found instanceof LoggedQueue queue) {
            queue.refresh();
            return queue;
        }
        LoggedQueue queue = LoggedQueue.of(name, found.getConfig(), items(name), nodeEngine,
                service);
        queue.refresh();
        if (queue.adopt(found)) {
            super.put(name, queue);
        }
        return queue;
    }

    /**
     * A queue has arrived with its partition. A durable queue arrives empty, so if this one has
     * items, they are not in the log.
     */
    @Override
    public QueueContainer put(String name, QueueContainer arrived) {
        if (!structures.isDurable(Kind.QUEUE, name)) {
            return super.put(name, arrived);
        }
        // Otherwise Hazelcast would merge an empty queue after a split.
        arrived.getConfig().setMergePolicyConfig(DurableStructures.noMerge());
        return super.get(name) instanceof LoggedQueue ? null : super.put(name, arrived);
    }

    /** The queue is destroyed. */
    @Override
    public QueueContainer remove(Object name) {
        if (structures.isDurable(Kind.QUEUE, (String) name)) {
            if (PartitionThreads.task(partition((String) name)) instanceof QueueMergeOperation) {
                // It is empty, except for what transactions have reserved.
                return null;
            }
            LoggedItems items = super.get(name) instanceof LoggedQueue queue ? queue.items()
                    : items((String) name);
            new Clearing(nodeEngine, partition((String) name), items).run();
        }
        return super.remove(name);
    }
}
