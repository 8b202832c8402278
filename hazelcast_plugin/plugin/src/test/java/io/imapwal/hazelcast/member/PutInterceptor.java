package io.imapwal.hazelcast.member;

import com.hazelcast.map.MapInterceptor;

/** An interceptor of changes only: reads and removals are as without it. */
public abstract class PutInterceptor implements MapInterceptor {
    private static final long serialVersionUID = 1L;

    @Override
    public final Object interceptGet(Object value) {
        return value;
    }

    @Override
    public final void afterGet(Object value) {
        // Only changes matter.
    }

    @Override
    public final void afterPut(Object value) {
        // Only the value matters.
    }

    @Override
    public final Object interceptRemove(Object value) {
        return value;
    }

    @Override
    public final void afterRemove(Object value) {
        // Only the value matters.
    }
}
