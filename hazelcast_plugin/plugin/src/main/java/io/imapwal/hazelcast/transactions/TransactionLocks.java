package io.imapwal.hazelcast.transactions;

import com.hazelcast.internal.locksupport.LockResource;
import com.hazelcast.internal.locksupport.LockStoreImpl;
import com.hazelcast.internal.serialization.Data;
import io.imapwal.hazelcast.engine.Reflection;

import java.lang.reflect.Field;
import java.util.UUID;

/**
 * The locks of keys that only transactions have. Used on the partition's thread.
 *
 * <p>If the answer to a transaction's request for a lock is lost, that transaction does not
 * release it. The next transaction of the same caller would get the lock once more, extend it, and
 * release it once: the key would be locked for all others as long as this caller repeats
 * transactions. A caller has one transaction at a time, so what an earlier one has left is
 * released first. If the earlier one is still being committed, the two have one lock, as they
 * would in Hazelcast alone. The first to end releases it, and the owner refuses the other one,
 * because it has no lock. XA allows a caller several transactions; those that change one key are
 * not isolated from each other anyway.
 *
 * <p>Hazelcast does not say whether a user's {@code lock()} is a part of such a lock, and a user's
 * lock must not be released. But a lock has the id of the last call that locked or unlocked it. A
 * lock that begins with a transaction gets {@link #BEGAN} instead, so it has this until another
 * call changes it, also after it has moved to another member.
 */
public final class TransactionLocks {
    /** Calls have no negative ids. */
    public static final long BEGAN = -77_002;

    /** Null: this version of Hazelcast has other fields, and locks are left alone. */
    private static final Field REFERENCE = reference();

    private TransactionLocks() {
    }

    private static Field reference() {
        try {
            return Reflection.field(
                    Class.forName(LockResource.class.getPackageName() + ".LockResourceImpl"),
                    "referenceId");
        } catch (ClassNotFoundException e) {
            return null;
        }
    }

    /** Whether only an earlier transaction of this caller has the key's lock. */
    public static boolean isLeft(LockStoreImpl locks, Data key, UUID caller, long thread) {
        if (!locks.isLocked(key)) {
            return false;
        }
        LockResource lock = locks.getLock(key);
        return lock.isTransactional() && lock.isLockedBy(caller, thread) && hasBegan(lock);
    }

    private static boolean hasBegan(LockResource lock) {
        try {
            return REFERENCE != null && REFERENCE.getLong(lock) == BEGAN;
        } catch (IllegalAccessException e) {
            return false;
        }
    }
}
