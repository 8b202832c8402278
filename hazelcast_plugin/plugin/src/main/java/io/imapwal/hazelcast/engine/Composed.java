package io.imapwal.hazelcast.engine;

import com.hazelcast.spi.impl.NodeEngine;

import java.util.List;
import java.util.function.Function;

/**
 * The objects of the plug-in on one member, for what Hazelcast makes itself: operations, entry
 * processors, record stores. All other objects get what they need in their constructors. They are
 * made together, when the first map with a log is used.
 */
public final class Composed {
    /** A service of this name is made before all operations. */
    public static final String NAME = "io.imapwal:composed";

    private final NodeEngine nodeEngine;
    private final Function<NodeEngine, List<?>> compose;
    private volatile List<?> objects;

    private Composed(NodeEngine nodeEngine, Function<NodeEngine, List<?>> compose) {
        this.nodeEngine = nodeEngine;
        this.compose = compose;
    }

    /** @param compose makes the objects */
    public static Composed install(NodeEngine nodeEngine, Function<NodeEngine, List<?>> compose) {
        Composed composed = new Composed(nodeEngine, compose);
        nodeEngine.getHazelcastInstance().getUserContext().put(NAME, composed);
        return composed;
    }

    /** Not by {@code getService}, which fails while a member shuts down. */
    private static Composed of(NodeEngine nodeEngine) {
        return (Composed) nodeEngine.getHazelcastInstance().getUserContext().get(NAME);
    }

    public static <T> T of(NodeEngine nodeEngine, Class<T> type) {
        return of(nodeEngine).made().stream().filter(type::isInstance).map(type::cast).findFirst()
                .orElseThrow();
    }

    /** Null if no map with a log was used yet. */
    public static <T> T existing(NodeEngine nodeEngine, Class<T> type) {
        return of(nodeEngine).objects == null ? null : of(nodeEngine, type);
    }

    private List<?> made() {
        List<?> made = objects;
        if (made == null) {
            synchronized (this) {
                made = objects;
                if (made == null) {
                    made = objects = compose.apply(nodeEngine);
                }
            }
        }
        return made;
    }
}
