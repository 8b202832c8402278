package io.imapwal.hazelcast.read;

import com.hazelcast.internal.serialization.Data;
import io.imapwal.wire.ListingGone;

import java.io.IOException;
import java.util.List;
import java.util.Set;

/** One listing of a map, page by page. It is complete, or fails with {@link ListingGone}. */
public final class KeyListing {
    private final AgentReader reader;
    private final String map;
    private final int limit;
    private byte[] cursor;
    private long received;
    private boolean ended;

    /** @param limit keys of a page */
    public KeyListing(AgentReader reader, String map, int limit) {
        this.reader = reader;
        this.map = map;
        this.limit = limit;
    }

    /** Whether all keys have been received. */
    public boolean ended() {
        return ended;
    }

    /** The next page; it may be empty. */
    public List<Data> next() throws IOException {
        AgentReader.Keys page = reader.keys(map, cursor, limit);
        arrived(page.count(), page.total(), page.next());
        return page.keys();
    }

    /** The next page, with entries. @param partitions the same for all pages of a listing */
    public AgentReader.Page next(Set<Integer> partitions) throws IOException {
        AgentReader.Page page = reader.entries(map, cursor, limit, partitions);
        arrived(page.count(), page.total(), page.next());
        return page;
    }

    private void arrived(long keys, long total, byte[] next) throws ListingGone {
        received += keys;
        if (received != total) {
            throw new ListingGone("the agent sent " + total + " keys of map \"" + map
                    + "\" up to this page, " + received + " have arrived", null);
        }
        cursor = next;
        ended = next == null;
    }
}
