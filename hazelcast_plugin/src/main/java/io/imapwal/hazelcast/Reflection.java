package io.imapwal.hazelcast;

import java.lang.reflect.Field;

/** Access to what Hazelcast has no public API for. */
final class Reflection {

    private Reflection() {
    }

    /** Null if this version of Hazelcast has no such field. */
    static Field field(Class<?> type, String name) {
        try {
            Field field = type.getDeclaredField(name);
            field.setAccessible(true);
            return field;
        } catch (NoSuchFieldException | RuntimeException e) {
            return null;
        }
    }
}
