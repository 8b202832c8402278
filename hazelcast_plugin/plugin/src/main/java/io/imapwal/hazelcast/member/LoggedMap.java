package io.imapwal.hazelcast.member;

import com.hazelcast.internal.serialization.Data;

/** The map store of a durable map, as its record stores see it. */
interface LoggedMap {
    /**
     * Whether a transaction has logged this change already, with the bytes that memory gets. If so,
     * the key's place ends.
     */
    boolean endIfLogged(Data key, Object value);

    /** Memory has no key of the partition that could be cleared. The log may have some. */
    void clearEvicted(int partition);
}
