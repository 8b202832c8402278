package io.imapwal.hazelcast;

import com.hazelcast.internal.serialization.Data;

import java.io.Closeable;
import java.io.IOException;
import java.util.Iterator;
import java.util.List;
import java.util.NoSuchElementException;
import java.util.function.Function;

/** All keys of a map, fetched page by page as they are asked for. Hazelcast closes it. */
final class KeyPages implements Iterator<Object>, Closeable {
    private final AgentReader reader;
    private final String map;
    private final int limit;
    private final Function<IOException, RuntimeException> failure;
    private Iterator<Data> page = List.<Data>of().iterator();
    private byte[] cursor;
    private boolean last;

    KeyPages(AgentReader reader, String map, int limit, Function<IOException, RuntimeException> failure) {
        this.reader = reader;
        this.map = map;
        this.limit = limit;
        this.failure = failure;
    }

    @Override
    public boolean hasNext() {
        while (!page.hasNext() && !last) {
            try {
                AgentReader.Keys keys = reader.keys(map, cursor, limit);
                page = keys.keys().iterator();
                cursor = keys.next();
                last = cursor == null;
            } catch (IOException e) {
                reader.close();
                throw failure.apply(e);
            }
        }
        if (last && !page.hasNext()) {
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
