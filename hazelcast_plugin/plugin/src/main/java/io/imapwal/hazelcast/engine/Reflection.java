package io.imapwal.hazelcast.engine;

import java.lang.reflect.Field;

/** Access to parts of Hazelcast that have no public API. */
public final class Reflection {

    private Reflection() {
    }

    /** A field of a class, or of one that it extends; null if it cannot be reached. */
    public static Field field(Class<?> type, String name) {
        for (Class<?> declaring = type; declaring != null; declaring = declaring.getSuperclass()) {
            try {
                Field field = declaring.getDeclaredField(name);
                field.setAccessible(true);
                return field;
            } catch (NoSuchFieldException e) {
                // Perhaps its superclass has it.
            } catch (RuntimeException e) {
                return null;
            }
        }
        return null;
    }
}
