package io.imapwal.hazelcast.structures;

import com.hazelcast.config.RingbufferConfig;
import com.hazelcast.internal.services.ObjectNamespace;
import com.hazelcast.ringbuffer.impl.RingbufferContainer;
import com.hazelcast.ringbuffer.impl.RingbufferService;
import com.hazelcast.ringbuffer.impl.operations.MergeOperation;
import com.hazelcast.spi.exception.RetryableHazelcastException;
import com.hazelcast.spi.impl.NodeEngine;
import io.imapwal.hazelcast.LogUnavailable;
import io.imapwal.hazelcast.engine.PartitionThreads;
import io.imapwal.hazelcast.engine.Reflection;
import io.imapwal.hazelcast.structures.DurableStructures.Kind;

import java.lang.reflect.Field;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/**
 * The ringbuffers in the memory of a member, by partition. As with {@link LoggedQueues}, Hazelcast
 * looks a ringbuffer up here before each operation.
 */
final class LoggedRingbuffers
        extends ConcurrentHashMap<Integer, Map<ObjectNamespace, RingbufferContainer<?, ?>>> {
    private static final Field CONTAINERS =
            Reflection.field(RingbufferService.class, "containers");

    private final transient NodeEngine nodeEngine;
    private final transient RingbufferService service;
    private final transient DurableStructures structures;

    private LoggedRingbuffers(NodeEngine nodeEngine, RingbufferService service,
            DurableStructures structures) {
        this.nodeEngine = nodeEngine;
        this.service = service;
        this.structures = structures;
    }

    /** Called while the services of a member are made, before its first operation. */
    static void install(NodeEngine nodeEngine, DurableStructures structures)
            throws IllegalAccessException {
        RingbufferService service = nodeEngine.getService(RingbufferService.SERVICE_NAME);
        CONTAINERS.set(service, new LoggedRingbuffers(nodeEngine, service, structures));
    }

    static boolean possible() {
        return CONTAINERS != null;
    }

    /** Never null: the log may have ringbuffers of the partition that are not in memory. */
    @Override
    public Map<ObjectNamespace, RingbufferContainer<?, ?>> get(Object partition) {
        return computeIfAbsent((Integer) partition, OfPartition::new);
    }

    /** The ringbuffers of one partition. */
    private final class OfPartition
            extends ConcurrentHashMap<ObjectNamespace, RingbufferContainer<?, ?>> {
        private final int partition;

        private OfPartition(int partition) {
            this.partition = partition;
        }

        @Override
        public RingbufferContainer<?, ?> get(Object key) {
            ObjectNamespace namespace = (ObjectNamespace) key;
            RingbufferContainer<?, ?> found = super.get(namespace);
            if (!isDurable(namespace) || !PartitionThreads.isUsed(partition)) {
                return found;
            }
            if (found instanceof LoggedRingbuffer ours) {
                refresh(ours, namespace);
                return ours;
            }
            LoggedRingbuffer made = make(namespace);
            refresh(made, namespace);
            if (found != null) {
                made.adopt(found);
            }
            super.put(namespace, made);
            return made;
        }

        /** A listener of a topic would end at the first error, so its reads are repeated. */
        private void refresh(LoggedRingbuffer ringbuffer, ObjectNamespace namespace) {
            try {
                ringbuffer.refresh();
            } catch (LogUnavailable e) {
                throw kind(namespace.getObjectName()) == Kind.TOPIC
                        && PartitionThreads.reads(partition)
                        ? new RetryableHazelcastException(e) : e;
            }
        }

        private LoggedRingbuffer make(ObjectNamespace namespace) {
            String name = namespace.getObjectName();
            RingbufferConfig config = service.getRingbufferConfig(name);
            return LoggedRingbuffer.of(namespace, config, partition, items(name), nodeEngine);
        }

        private LoggedItems items(String name) {
            return new LoggedItems(nodeEngine, DurableStructures.map(kind(name), inner(name)),
                    partition);
        }

        /** A ringbuffer has arrived with its partition: as {@link LoggedQueues#put}. */
        @Override
        public RingbufferContainer<?, ?> put(ObjectNamespace namespace,
                RingbufferContainer<?, ?> arrived) {
            if (!isDurable(namespace)) {
                return super.put(namespace, arrived);
            }
            if (super.get(namespace) instanceof LoggedRingbuffer) {
                return null;
            }
            // Otherwise Hazelcast would merge an empty ringbuffer after a split.
            arrived.init(new RingbufferConfig(arrived.getConfig()).setMergePolicyConfig(
                    DurableStructures.noMerge()), nodeEngine);
            return super.put(namespace, arrived);
        }

        /** The ringbuffer is destroyed. */
        @Override
        public RingbufferContainer<?, ?> remove(Object key) {
            ObjectNamespace namespace = (ObjectNamespace) key;
            if (isDurable(namespace)) {
                if (PartitionThreads.task(partition) instanceof MergeOperation) {
                    return null;
                }
                LoggedItems items = super.get(namespace) instanceof LoggedRingbuffer ours
                        ? ours.items() : items(namespace.getObjectName());
                new Clearing(nodeEngine, partition, items).run();
            }
            return super.remove(namespace);
        }
    }

    /** Journals of maps and caches are ringbuffers of other services. */
    private boolean isDurable(ObjectNamespace namespace) {
        String name = namespace.getObjectName();
        return RingbufferService.SERVICE_NAME.equals(namespace.getServiceName())
                && structures.isDurable(kind(name), inner(name));
    }

    private static Kind kind(String name) {
        return name.startsWith(RingbufferService.TOPIC_RB_PREFIX) ? Kind.TOPIC : Kind.RINGBUFFER;
    }

    private static String inner(String name) {
        return kind(name) == Kind.TOPIC
                ? name.substring(RingbufferService.TOPIC_RB_PREFIX.length()) : name;
    }
}
