package io.imapwal.hazelcast.structures;

import com.hazelcast.internal.serialization.Data;

import java.util.Collection;
import java.util.Map;

/** The map store of a map that has the items of a structure. */
public interface ItemLog {
    /** @param expiresAtMs 0: never */
    record Item(Data bytes, long expiresAtMs) {
    }

    /**
     * Returns when all changes are in the log. Memory is not changed.
     *
     * @param set     entries of one partition, in the order in which they are logged
     * @param deleted keys of the same partition, logged after them
     * @throws io.imapwal.hazelcast.NotAppended    none of them is in the log
     * @throws io.imapwal.hazelcast.OutcomeUnknown some may be; memory will get what the log has
     */
    void log(Map<Data, Item> set, Collection<Data> deleted);
}
