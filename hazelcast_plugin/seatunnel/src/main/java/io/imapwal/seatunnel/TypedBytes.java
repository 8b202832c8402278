package io.imapwal.seatunnel;

import org.apache.seatunnel.engine.serializer.protobuf.ProtoStuffSerializer;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;

/**
 * The bytes of a key or a value.
 *
 * <pre>
 * length(2, big-endian) | name of the class, in UTF-8 | bytes by SeaTunnel's serializer
 * </pre>
 *
 * The serializer does not write the class, and an agent returns none
 * (decision 98 in docs/decisions/deployments.md).
 */
final class TypedBytes {
    private static final ProtoStuffSerializer SERIALIZER = new ProtoStuffSerializer();
    private static final int LENGTH_BYTES = 2;

    private TypedBytes() {
    }

    static byte[] of(Object object) {
        byte[] name = object.getClass().getName().getBytes(StandardCharsets.UTF_8);
        byte[] content = SERIALIZER.serialize(object);
        return ByteBuffer.allocate(LENGTH_BYTES + name.length + content.length)
                .putShort((short) name.length).put(name).put(content).array();
    }

    /** @throws IOException these bytes are not an object of a class of this process */
    static Object object(byte[] bytes) throws IOException {
        ByteBuffer buffer = ByteBuffer.wrap(bytes);
        int size = bytes.length < LENGTH_BYTES ? -1 : Short.toUnsignedInt(buffer.getShort());
        if (size < 0 || size > buffer.remaining()) {
            throw new IOException(bytes.length + " bytes do not begin with the name of a class");
        }
        byte[] name = new byte[size];
        buffer.get(name);
        byte[] content = new byte[buffer.remaining()];
        buffer.get(content);
        String className = new String(name, StandardCharsets.UTF_8);
        try {
            return SERIALIZER.deserialize(content, Class.forName(className, false, loader()));
        } catch (ReflectiveOperationException | RuntimeException | LinkageError e) {
            throw new IOException("it is not a " + className + " of this process: " + e, e);
        }
    }

    private static ClassLoader loader() {
        ClassLoader ofThread = Thread.currentThread().getContextClassLoader();
        return ofThread == null ? TypedBytes.class.getClassLoader() : ofThread;
    }
}
