package io.imapwal.hazelcast;

import com.hazelcast.internal.serialization.Data;

import java.io.IOException;
import java.util.List;
import java.util.Set;

/** One listing of a map's keys, page by page: complete when it ends, or it fails with {@link ListingGone}. */
final class KeyListing {
    private final AgentReader reader;
    private final String map;
    private final int limit;
    private final Set<Integer> partitions;
    private byte[] cursor;
    private long received;
    private boolean ended;

    KeyListing(AgentReader reader, String map, int limit) {
        this(reader, map, limit, null);
    }

    /** @param partitions only keys of these; null: all */
    KeyListing(AgentReader reader, String map, int limit, Set<Integer> partitions) {
        this.reader = reader;
        this.map = map;
        this.limit = limit;
        this.partitions = partitions;
    }

    /** Whether all keys have been received. */
    boolean ended() {
        return ended;
    }

    /** The next page; it may be empty. */
    List<Data> next() throws IOException {
        AgentReader.Keys page = reader.keys(map, cursor, limit, partitions);
        received += page.keys().size();
        if (received != page.total()) {
            throw new ListingGone("the agent sent " + page.total() + " keys of map \"" + map + "\" up to this page, "
                    + received + " have arrived", null);
        }
        cursor = page.next();
        ended = cursor == null;
        return page.keys();
    }
}
