package io.imapwal.hazelcast.settle;

import com.hazelcast.internal.serialization.Data;
import io.imapwal.hazelcast.append.Placements;
import io.imapwal.hazelcast.engine.ThisMember;
import io.imapwal.hazelcast.read.LogEntry;
import io.imapwal.wire.Membership;

import java.util.function.Consumer;

/** The maps of a member, as operations that members send each other see them. */
public interface OwnMaps {
    ThisMember member();

    /** The keys that transactions are changing. */
    Placements placements();

    /** The log may be newer than memory in a partition that this member owns. */
    void doubt(String map, int partition);

    /** What the log has of the key; null: nothing. */
    LogEntry newest(String map, Data key);

    /** The newest view of the map's log that this member knows; 0: it knows none. */
    long knownView(String map);

    /**
     * The state of the map, for another member: see {@link StatusOperation}.
     *
     * @param whenLoaded answer when it is loaded, or cannot be
     */
    void status(String map, Membership asker, boolean whenLoaded, Consumer<String> answer);
}
