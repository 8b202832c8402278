package io.imapwal.hazelcast.member;

import com.hazelcast.internal.serialization.InternalSerializationService;
import com.hazelcast.internal.serialization.impl.AbstractSerializationService;
import com.hazelcast.logging.ILogger;
import com.hazelcast.nio.ObjectDataInput;
import com.hazelcast.nio.ObjectDataOutput;
import com.hazelcast.nio.serialization.Serializer;
import com.hazelcast.nio.serialization.StreamSerializer;
import io.imapwal.wire.AgentError;

import java.io.IOException;
import java.lang.reflect.Method;
import java.util.Arrays;

/**
 * A dict, tuple, set or object of a Python client. hazelcast-python-client pickles values of types
 * that Java does not have.
 *
 * <p>A member without a map store handles such a value as bytes. With a map store, Hazelcast first
 * makes an object of it, and has no serializer for that. This is that object: the same bytes, which
 * are never decoded.
 */
final class PythonPickle {
    /** As in hazelcast-python-client: {@code PYTHON_TYPE_PICKLE}. */
    private static final int TYPE_ID = -120;

    private final byte[] pickle;

    private PythonPickle(byte[] pickle) {
        this.pickle = pickle;
    }

    /** Called once per member. If the user has a serializer for this type, it is kept. */
    static void register(InternalSerializationService serialization, ILogger logger) {
        try {
            // The public method accepts positive type ids only.
            Method register = AbstractSerializationService.class.getDeclaredMethod("safeRegister",
                    Class.class, Serializer.class);
            register.setAccessible(true);
            register.invoke(serialization, PythonPickle.class, new Codec());
        } catch (ReflectiveOperationException | RuntimeException e) {
            logger.warning(
                    "imap-wal: values that Python clients pickle (dict, tuple, set) will be"
                    + " refused: " + AgentError.reason(e));
        }
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof PythonPickle same && Arrays.equals(pickle, same.pickle);
    }

    @Override
    public int hashCode() {
        return Arrays.hashCode(pickle);
    }

    @Override
    public String toString() {
        return "a Python pickle of " + pickle.length + " bytes";
    }

    private static final class Codec implements StreamSerializer<PythonPickle> {
        @Override
        public int getTypeId() {
            return TYPE_ID;
        }

        /** The client writes a string in the form of a byte array: a length and bytes. */
        @Override
        public PythonPickle read(ObjectDataInput in) throws IOException {
            return new PythonPickle(in.readByteArray());
        }

        @Override
        public void write(ObjectDataOutput out, PythonPickle object) throws IOException {
            out.writeByteArray(object.pickle);
        }
    }
}
