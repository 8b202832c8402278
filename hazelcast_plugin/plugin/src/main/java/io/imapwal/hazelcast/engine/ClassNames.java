package io.imapwal.hazelcast.engine;

import com.hazelcast.internal.serialization.impl.compact.CompactGenericRecord;

import java.nio.charset.StandardCharsets;

/** The names of classes that the log has with keys and values, as UTF-8. They are only labels. */
public final class ClassNames {
    public static final byte[] NONE = {};
    private static final ClassValue<byte[]> NAMES = new ClassValue<>() {
        @Override
        protected byte[] computeValue(Class<?> type) {
            return type.getName().getBytes(StandardCharsets.UTF_8);
        }
    };

    private ClassNames() {
    }

    public static byte[] of(Object object) {
        return object instanceof CompactGenericRecord record
                ? record.getSchema().getTypeName().getBytes(StandardCharsets.UTF_8)
                : NAMES.get(object.getClass());
    }
}
