package io.imapwal.hazelcast.transactions;

import com.hazelcast.internal.nearcache.impl.RemoteCallHook;
import com.hazelcast.internal.serialization.Data;
import com.hazelcast.internal.services.TransactionalService;
import com.hazelcast.map.impl.MapService;
import com.hazelcast.map.impl.operation.KeyBasedMapOperation;
import com.hazelcast.map.impl.operation.MapOperation;
import com.hazelcast.map.impl.tx.MapTransactionLogRecord;
import com.hazelcast.map.impl.tx.MapTxnOperation;
import com.hazelcast.map.impl.tx.TxnDeleteOperation;
import com.hazelcast.map.impl.tx.TxnSetOperation;
import com.hazelcast.map.impl.tx.TxnUnlockOperation;
import com.hazelcast.spi.impl.NodeEngine;
import com.hazelcast.spi.impl.operationservice.Operation;
import com.hazelcast.transaction.TransactionalObject;
import com.hazelcast.transaction.impl.Transaction;
import com.hazelcast.transaction.impl.TransactionImpl;
import com.hazelcast.transaction.impl.TransactionLog;
import com.hazelcast.transaction.impl.TransactionLogRecord;
import io.imapwal.hazelcast.engine.Composed;
import io.imapwal.hazelcast.engine.Reflection;
import io.imapwal.hazelcast.engine.ThisMember;
import io.imapwal.hazelcast.settle.MemberMaps;

import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.Future;

/**
 * Makes transactions of maps with a log commit as a whole ({@link TransactionCommit}). Hazelcast
 * has no public API for this. So this class replaces the map service's part in transactions, and
 * with it the list in which a transaction keeps its changes. A transaction of one change is logged
 * by the map store, like any other change.
 */
public final class LoggedTransactions implements TransactionalService {
    private static final Field SERVICE = Reflection.field(MapService.class, "transactionalService");
    private static final Field LOG = Reflection.field(TransactionImpl.class, "transactionLog");

    private final TransactionalService hazelcasts;
    private final NodeEngine nodeEngine;

    private LoggedTransactions(TransactionalService hazelcasts, NodeEngine nodeEngine) {
        this.hazelcasts = hazelcasts;
        this.nodeEngine = nodeEngine;
    }

    public static void install(NodeEngine nodeEngine) {
        if (SERVICE == null || LOG == null || !TransactionCommit.possible()) {
            nodeEngine.getLogger(ThisMember.LOGGER)
                    .severe("imap-wal: this version of Hazelcast is not known: transactions are"
                    + " logged key by key, and one that fails in its commit may leave some of its"
                    + " changes");
            return;
        }
        MapService service = nodeEngine.getService(MapService.SERVICE_NAME);
        try {
            TransactionalService hazelcasts = (TransactionalService) SERVICE.get(service);
            SERVICE.set(service, new LoggedTransactions(hazelcasts, nodeEngine));
        } catch (IllegalAccessException e) {
            throw new IllegalStateException(e);
        }
    }

    @Override
    public <T extends TransactionalObject> T createTransactionalObject(String name,
                                                                       Transaction transaction) {
        // XA transactions have another class. They are logged key by key.
        if (transaction instanceof TransactionImpl) {
            try {
                TransactionLog log = (TransactionLog) LOG.get(transaction);
                if (!(log instanceof Log)) {
                    LOG.set(transaction, new Log(transaction, log.getRecords()));
                }
            } catch (IllegalAccessException e) {
                throw new IllegalStateException(e);
            }
        }
        return hazelcasts.createTransactionalObject(name, transaction);
    }

    @Override
    public void rollbackTransaction(UUID transactionId) {
        hazelcasts.rollbackTransaction(transactionId);
    }

    /** The changes of a transaction, and how they are committed. */
    private final class Log extends TransactionLog {
        private final Transaction transaction;

        private Log(Transaction transaction, Collection<TransactionLogRecord> records) {
            super(records);
            this.transaction = transaction;
        }

        /** The changes of maps with a log, if there are several. */
        private List<MapTransactionLogRecord> logged() {
            List<MapTransactionLogRecord> logged = new ArrayList<>();
            for (TransactionLogRecord each : super.getRecords()) {
                if (each instanceof MapTransactionLogRecord record
                        && isLogged(record.newCommitOperation())) {
                    logged.add(record);
                }
            }
            return logged.size() > 1 ? logged : List.of();
        }

        private boolean isLogged(Operation operation) {
            return (operation instanceof TxnSetOperation || operation instanceof TxnDeleteOperation)
                    && Composed.of(nodeEngine, MemberMaps.class).links()
                    .of(((MapOperation) operation).getName()) != null;
        }

        /**
         * What another member does if this one is lost while it commits. It unlocks the keys of
         * maps with a log. Their owners read the outcome in the log.
         */
        @Override
        public Collection<TransactionLogRecord> getRecords() {
            List<MapTransactionLogRecord> logged = logged();
            if (logged.isEmpty()) {
                return super.getRecords();
            }
            List<TransactionLogRecord> records = new ArrayList<>(super.getRecords());
            records.removeAll(logged);
            for (MapTransactionLogRecord each : logged) {
                records.add(unlocking((KeyBasedMapOperation) each.newCommitOperation()));
            }
            return records;
        }

        private MapTransactionLogRecord unlocking(KeyBasedMapOperation operation) {
            String map = operation.getName();
            Data key = operation.getKey();
            Operation unlock = new TxnUnlockOperation(map, key,
                    ((MapTxnOperation) operation).getVersion());
            return new MapTransactionLogRecord(map, key, operation.getPartitionId(), unlock,
                    transaction.getOwnerUuid(), transaction.getTxnId(), RemoteCallHook.EMPTY_HOOK);
        }

        /**
         * A member that joins another cluster first rolls back the transactions of its clients.
         * Then it has no connections, so Hazelcast would wait for each until its operations time
         * out. The former cluster ends the locks of its lost members itself.
         */
        @Override
        public List<Future<Object>> rollback(NodeEngine engine) {
            List<TransactionLogRecord> records = new ArrayList<>(super.getRecords());
            MemberMaps maps = Composed.existing(nodeEngine, MemberMaps.class);
            if (maps != null && maps.member().merging()
                    && !nodeEngine.getClusterService().isJoined()) {
                records.removeIf(MapTransactionLogRecord.class::isInstance);
            }
            return new TransactionLog(records).rollback(engine);
        }

        @Override
        public List<Future<Object>> commit(NodeEngine engine) {
            List<MapTransactionLogRecord> logged = logged();
            if (logged.isEmpty()) {
                return super.commit(engine);
            }
            TransactionInquiry inquiry = Composed.of(nodeEngine, TransactionInquiry.class);
            TransactionCommit commit = new TransactionCommit(
                    Composed.of(nodeEngine, MemberMaps.class), transaction.getTxnId(),
                    transaction.getOwnerUuid(), logged);
            inquiry.begin(transaction.getTxnId());
            try {
                commit.log();
                List<TransactionLogRecord> others = new ArrayList<>(super.getRecords());
                others.removeAll(logged);
                List<Future<Object>> futures = new TransactionLog(others).commit(engine);
                commit.apply();
                return futures;
            } finally {
                inquiry.end(transaction.getTxnId());
            }
        }
    }
}
