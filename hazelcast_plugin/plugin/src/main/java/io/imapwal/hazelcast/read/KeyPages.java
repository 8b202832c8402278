package io.imapwal.hazelcast.read;

import com.hazelcast.internal.serialization.Data;
import io.imapwal.wire.ListingGone;

import java.io.Closeable;
import java.io.IOException;
import java.util.Iterator;
import java.util.List;
import java.util.NoSuchElementException;
import java.util.function.Function;

/**
 * All keys of a map, fetched page by page when they are needed. Hazelcast closes it. When a listing
 * cannot continue, a new one is begun. A key may then be returned twice, and is loaded twice, with
 * no other effect.
 */
public final class KeyPages implements Iterator<Object>, Closeable {
    private static final int LISTINGS_MAX = 8;

    private final AgentReader reader;
    private final String map;
    private final int limit;
    private final Function<IOException, RuntimeException> failure;
    private Iterator<Data> page = List.<Data>of().iterator();
    private KeyListing listing;
    private int begun = 1;

    public KeyPages(AgentReader reader, String map, int limit,
            Function<IOException, RuntimeException> failure) {
        this.reader = reader;
        this.map = map;
        this.limit = limit;
        this.failure = failure;
        this.listing = new KeyListing(reader, map, limit);
    }

    @Override
    public boolean hasNext() {
        while (!page.hasNext() && !listing.ended()) {
            try {
                page = listing.next().iterator();
            } catch (ListingGone e) {
                if (begun++ == LISTINGS_MAX) {
                    reader.close();
                    throw failure.apply(e);
                }
                listing = new KeyListing(reader, map, limit);
            } catch (IOException e) {
                reader.close();
                throw failure.apply(e);
            }
        }
        if (listing.ended() && !page.hasNext()) {
            reader.close();
        }
        return page.hasNext();
    }

    @Override
    public Object next() {
        if (!hasNext()) {
            throw new NoSuchElementException();
        }
        return page.next();
    }

    @Override
    public void close() {
        reader.close();
    }
}
