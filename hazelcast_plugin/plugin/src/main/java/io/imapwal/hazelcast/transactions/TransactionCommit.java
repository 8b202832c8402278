package io.imapwal.hazelcast.transactions;

import com.hazelcast.cluster.Member;
import com.hazelcast.internal.serialization.Data;
import com.hazelcast.internal.util.ExceptionUtil;
import com.hazelcast.map.impl.MapService;
import com.hazelcast.map.impl.operation.KeyBasedMapOperation;
import com.hazelcast.map.impl.tx.MapTransactionLogRecord;
import com.hazelcast.map.impl.tx.MapTxnOperation;
import com.hazelcast.map.impl.tx.TxnSetOperation;
import com.hazelcast.spi.impl.NodeEngineImpl;
import com.hazelcast.spi.impl.operationservice.Operation;
import com.hazelcast.transaction.TransactionException;
import io.imapwal.hazelcast.NotAppended;
import io.imapwal.hazelcast.OutcomeUnknown;
import io.imapwal.hazelcast.append.AgentLink;
import io.imapwal.hazelcast.append.Change;
import io.imapwal.hazelcast.append.PartitionStamp;
import io.imapwal.hazelcast.engine.ClassNames;
import io.imapwal.hazelcast.engine.Reflection;
import io.imapwal.hazelcast.settle.MemberMaps;
import io.imapwal.wire.AgentError;
import io.imapwal.wire.SessionInfo;

import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

/**
 * Commits the changes of one transaction in maps with a log: all of them, or none.
 *
 * <pre>
 *                                                              if it fails
 * place   the owners of the partitions give each change its    nothing has happened
 *         place in the order
 * log     the coordinator appends all changes in one           nothing has happened; or all of
 *         message, hence in one frame                          it, or nothing: OutcomeUnknown
 * apply   the owners change memory                             the reconciler does it
 * </pre>
 */
final class TransactionCommit {
    /** The most bytes of the order that is sent with a change. */
    private static final int ORDER_BYTES = 40;

    private static final Field TTL = Reflection.field(TxnSetOperation.class, "ttl");

    private final MemberMaps maps;
    private final NodeEngineImpl nodeEngine;
    private final UUID transaction;
    private final UUID lockOwner;
    private final AgentLink link;
    private final List<Part> parts = new ArrayList<>();

    /**
     * One key.
     *
     * @param value   null: it is removed
     * @param ttlMs   as the user gave it; -1: not given
     * @param thread  that holds the lock
     * @param version of the entry in memory when it was locked
     */
    private record Part(MapTransactionLogRecord record, String map, Data key, Data value,
            long ttlMs, long thread, long version, int partition) {
    }

    TransactionCommit(MemberMaps maps, UUID transaction, UUID lockOwner,
                      List<MapTransactionLogRecord> records) {
        this.maps = maps;
        this.nodeEngine = maps.member().nodeEngine();
        this.transaction = transaction;
        this.lockOwner = lockOwner;
        records.forEach(record -> parts.add(part(record)));
        this.link = link();
    }

    static boolean possible() {
        return TTL != null;
    }

    private static Part part(MapTransactionLogRecord record) {
        KeyBasedMapOperation operation = (KeyBasedMapOperation) record.newCommitOperation();
        try {
            long ttlMs = operation instanceof TxnSetOperation ? TTL.getLong(operation) : 0;
            return new Part(record, operation.getName(), operation.getKey(), operation.getValue(),
                    ttlMs, operation.getThreadId(), ((MapTxnOperation) operation).getVersion(),
                    operation.getPartitionId());
        } catch (IllegalAccessException e) {
            throw new IllegalStateException(e);
        }
    }

    /** The one agent of this member to which all of the maps are logged. */
    private AgentLink link() {
        String first = parts.get(0).map;
        AgentLink found = maps.links().of(first);
        for (Part part : parts) {
            if (maps.links().of(part.map) != found) {
                throw new NotAppended("a transaction changes maps \"" + first + "\" and \""
                        + part.map
                        + "\", which have different agents. They could not be logged together."
                        + " Nothing was changed. Change them in separate transactions, or give"
                        + " both maps the same agent", null);
            }
        }
        return found;
    }

    /** Returns when all changes are in the log. */
    void log() {
        try {
            SessionInfo session = link.connect();
            // Errors of keys and values are found before the owners block the keys.
            List<byte[]> heads = heads(session);
            link.appendWhole(changes(heads, place(session), session));
        } catch (OutcomeUnknown e) {
            unlock(parts);
            throw new OutcomeUnknown(transaction() + ": " + AgentError.reason(e)
                    + ". Either all of its changes are in the log, or none is", e);
        } catch (RuntimeException e) {
            release();
            unlock(parts);
            throw new NotAppended(transaction() + " was not logged: " + AgentError.reason(e)
                    + ". Nothing was changed; the transaction may be repeated", e);
        }
    }

    private String transaction() {
        return "a transaction of " + parts.size() + " changes";
    }

    /** Partition → the place of its changes. */
    private Map<Integer, Long> place(SessionInfo session) {
        Map<Integer, List<PlaceOperation.Item>> items = new LinkedHashMap<>();
        for (Part part : parts) {
            items.computeIfAbsent(part.partition, id -> new ArrayList<>())
                    .add(new PlaceOperation.Item(part.map, part.key, part.thread, part.version));
        }
        UUID coordinator = maps.member().cluster().member();
        Map<Integer, Future<Long>> asked = new LinkedHashMap<>();
        items.forEach((partition, each) -> asked.put(partition,
                maps.member().invoke(new PlaceOperation(transaction, lockOwner, coordinator, each,
                    session.incarnation()), partition)));
        Map<Integer, Long> places = new HashMap<>();
        RuntimeException failure = null;
        for (Map.Entry<Integer, Future<Long>> each : asked.entrySet()) {
            // Waits for all of them: no owner may give a place after the keys were released.
            try {
                places.put(each.getKey(), result(each.getValue()));
            } catch (ExecutionException | RuntimeException e) {
                Throwable cause = ExceptionUtil.peel(e);
                failure = cause instanceof RuntimeException e1 ? e1
                        : new TransactionException(cause);
            }
        }
        if (failure != null) {
            throw failure;
        }
        return places;
    }

    private List<byte[]> heads(SessionInfo session) {
        long now = System.currentTimeMillis();
        List<byte[]> heads = new ArrayList<>(parts.size());
        long bytes = 0;
        for (Part part : parts) {
            byte[] key = part.key.toByteArray();
            byte[] value = part.value == null ? null : part.value.toByteArray();
            link.requireSize(part.map, key, value);
            heads.add(Change.head(part.map.getBytes(StandardCharsets.UTF_8), key, label(part.key),
                    value, label(part.value), now, expiresAtMs(part, now), part.partition));
            bytes += heads.get(heads.size() - 1).length + ORDER_BYTES;
        }
        if (session.maxMessageBytes() > 0 && bytes > session.maxMessageBytes()) {
            throw new NotAppended(transaction() + " has " + bytes + " bytes, more than the "
                    + session.maxMessageBytes()
                    + " that " + link.agent() + " accepts at once. Nothing was changed", null);
        }
        return heads;
    }

    private List<Change> changes(List<byte[]> heads, Map<Integer, Long> places,
            SessionInfo session) {
        List<Change> changes = new ArrayList<>(parts.size());
        for (int i = 0; i < parts.size(); i++) {
            Part part = parts.get(i);
            PartitionStamp stamp = new PartitionStamp(session.clusterId(), session.member(),
                    part.partition, 0, places.get(part.partition), session.incarnation());
            changes.add(new Change(part.map, part.key, heads.get(i), stamp, transaction));
        }
        return changes;
    }

    private byte[] label(Data data) {
        try {
            return data == null ? ClassNames.NONE : ClassNames.of(nodeEngine.toObject(data));
        } catch (RuntimeException | LinkageError e) {
            // The class name is only a label. Perhaps only other members have the class.
            return ClassNames.NONE;
        }
    }

    private long expiresAtMs(Part part, long now) {
        if (part.value == null || part.ttlMs == 0) {
            return 0;
        }
        int seconds = nodeEngine.getConfig().findMapConfig(part.map).getTimeToLiveSeconds();
        long usualMs = seconds == Integer.MAX_VALUE ? 0 : TimeUnit.SECONDS.toMillis(seconds);
        long ttlMs = part.ttlMs > 0 ? part.ttlMs : usualMs;
        return ttlMs <= 0 || ttlMs > Long.MAX_VALUE - now ? 0 : now + ttlMs;
    }

    /** @throws OutcomeUnknown all is in the log, and the reconciler sets the rest of memory */
    void apply() {
        List<Future<Object>> futures = new ArrayList<>();
        for (Part part : parts) {
            futures.add(maps.member().invoke(operation(part), part.partition));
        }
        List<Part> failed = new ArrayList<>();
        Throwable cause = null;
        for (int i = 0; i < parts.size(); i++) {
            try {
                result(futures.get(i));
            } catch (ExecutionException | RuntimeException e) {
                failed.add(parts.get(i));
                cause = ExceptionUtil.peel(e);
            }
        }
        if (failed.isEmpty()) {
            return;
        }
        failed.forEach(part -> maps.settle(part.map, part.key, transaction));
        unlock(failed);
        throw new OutcomeUnknown(transaction()
                + ": all of it is in the log, and will be in effect. For " + failed.size()
                + " keys memory may have the former value until the plug-in has settled"
                + " them from the log: " + AgentError.reason(cause), cause);
    }

    /** An interrupt does not end the wait. */
    private static <T> T result(Future<T> future) throws ExecutionException {
        boolean interrupted = false;
        try {
            while (true) {
                try {
                    return future.get();
                } catch (InterruptedException e) {
                    interrupted = true;
                }
            }
        } finally {
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    private Operation operation(Part part) {
        KeyBasedMapOperation operation = part.value == null
                ? new LoggedDeleteOperation(transaction, part.map, part.key, part.version)
                : new LoggedSetOperation(transaction, part.map, part.key, part.value, part.version,
                    part.ttlMs);
        operation.setThreadId(part.thread);
        ((MapTxnOperation) operation).setOwnerUuid(lockOwner);
        ((MapTxnOperation) operation).setTransactionId(transaction);
        operation.setPartitionId(part.partition);
        return operation;
    }

    private void release() {
        for (Member member : nodeEngine.getClusterService().getMembers()) {
            nodeEngine.getOperationService().invokeOnTarget(MapService.SERVICE_NAME,
                    new ReleaseOperation(transaction), member.getAddress());
        }
    }

    /**
     * Otherwise the reconciler, and everything else that waits for the keys, would wait until the
     * locks expire.
     */
    private void unlock(List<Part> some) {
        for (Part part : some) {
            maps.member().invoke(part.record.newRollbackOperation(), part.partition);
        }
    }
}
