package io.imapwal.hazelcast.append;

import com.hazelcast.internal.serialization.impl.SerializationConstants;
import com.hazelcast.internal.serialization.impl.compact.FieldDescriptor;
import com.hazelcast.internal.serialization.impl.compact.Schema;
import com.hazelcast.internal.serialization.impl.compact.schema.SchemaDataSerializerHook;
import com.hazelcast.nio.serialization.FieldKind;
import io.imapwal.wire.ProtocolException;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.List;
import java.util.Set;

/**
 * The bytes of a Compact schema in the log, as Hazelcast writes them in big-endian byte order.
 *
 * <p>They are read from storage or from an agent. Hazelcast's own reader makes an object of any
 * class that the bytes name, so it runs code that their author chose. This class refuses everything
 * but a schema.
 */
final class SchemaForm {
    /** A schema of 10,000 fields has less. The agent has the same limit. */
    static final int BYTES_MAX = 256 * 1024;
    private static final byte IDENTIFIED = 1;
    /** Each field has at least the length of its name, and its kind. */
    private static final int FIELD_BYTES_MIN = 2 * Integer.BYTES;
    @SuppressWarnings("deprecation")
    private static final Set<FieldKind> NOT_COMPACT =
            EnumSet.of(FieldKind.NOT_AVAILABLE, FieldKind.CHAR, FieldKind.ARRAY_OF_CHAR,
            FieldKind.PORTABLE, FieldKind.ARRAY_OF_PORTABLE);

    private SchemaForm() {
    }

    static byte[] write(Schema schema) {
        byte[] name = schema.getTypeName().getBytes(StandardCharsets.UTF_8);
        List<byte[]> names = new ArrayList<>();
        int size = 4 * Integer.BYTES + 1 + Integer.BYTES + name.length + Integer.BYTES;
        for (FieldDescriptor field : schema.getFields()) {
            names.add(field.getFieldName().getBytes(StandardCharsets.UTF_8));
            size += FIELD_BYTES_MIN + names.get(names.size() - 1).length;
        }
        ByteBuffer to = ByteBuffer.allocate(size);
        to.putInt(0).putInt(SerializationConstants.CONSTANT_TYPE_DATA_SERIALIZABLE).put(IDENTIFIED)
                .putInt(SchemaDataSerializerHook.F_ID).putInt(SchemaDataSerializerHook.SCHEMA);
        to.putInt(name.length).put(name).putInt(names.size());
        int next = 0;
        for (FieldDescriptor field : schema.getFields()) {
            byte[] bytes = names.get(next++);
            to.putInt(bytes.length).put(bytes).putInt(field.getKind().getId());
        }
        return to.array();
    }

    /**
     * @throws ProtocolException these are not the schema with this id; the text has the reason and
     * the byte
     */
    static Schema read(long schemaId, byte[] bytes) throws ProtocolException {
        if (bytes.length > BYTES_MAX) {
            throw new ProtocolException("it has " + bytes.length + " bytes, and at most "
                    + BYTES_MAX + " are read");
        }
        ByteBuffer from = ByteBuffer.wrap(bytes);
        need(from, 4 * Integer.BYTES + 1);
        expect(from, "partition hash", 0, from.getInt());
        expect(from, "type id", SerializationConstants.CONSTANT_TYPE_DATA_SERIALIZABLE,
                from.getInt());
        expect(from, "flags", IDENTIFIED, from.get());
        if (from.getInt(from.position()) == Integer.reverseBytes(SchemaDataSerializerHook.F_ID)) {
            // A member can be configured for little-endian numbers, and early plug-ins used that.
            from.order(ByteOrder.LITTLE_ENDIAN);
        }
        expect(from, "factory id", SchemaDataSerializerHook.F_ID, from.getInt());
        expect(from, "class id", SchemaDataSerializerHook.SCHEMA, from.getInt());
        String typeName = string(from);
        need(from, Integer.BYTES);
        int count = from.getInt();
        if (count < 0 || count > from.remaining() / FIELD_BYTES_MIN) {
            throw new ProtocolException("it announces " + count + " fields in the "
                    + from.remaining() + " bytes after byte " + from.position());
        }
        List<FieldDescriptor> fields = new ArrayList<>(count);
        String last = null;
        for (int i = 0; i < count; i++) {
            String name = string(from);
            if (last != null && last.compareTo(name) >= 0) {
                throw new ProtocolException("field " + (i + 1)
                        + " is not in the order of names, before byte " + from.position());
            }
            last = name;
            fields.add(new FieldDescriptor(name, kind(from)));
        }
        if (from.hasRemaining()) {
            throw new ProtocolException(from.remaining() + " bytes follow its end at byte "
                    + from.position());
        }
        Schema schema = new Schema(typeName, fields);
        if (schema.getSchemaId() != schemaId) {
            throw new ProtocolException("its type name and fields have the id "
                    + schema.getSchemaId());
        }
        return schema;
    }

    private static void expect(ByteBuffer from, String what, int expected, int found)
            throws ProtocolException {
        if (found != expected) {
            throw new ProtocolException("the " + what + " before byte " + from.position() + " is "
                    + found + ", that of a schema is " + expected);
        }
    }

    private static void need(ByteBuffer from, int bytes) throws ProtocolException {
        if (from.remaining() < bytes) {
            throw new ProtocolException("it ends within a number, after byte " + from.position());
        }
    }

    private static String string(ByteBuffer from) throws ProtocolException {
        need(from, Integer.BYTES);
        int length = from.getInt();
        if (length < 0 || length > from.remaining()) {
            throw new ProtocolException("a name of " + length + " bytes begins at byte "
                    + from.position() + ", and " + from.remaining() + " bytes are left");
        }
        ByteBuffer text = from.slice().limit(length);
        from.position(from.position() + length);
        try {
            return StandardCharsets.UTF_8.newDecoder().decode(text).toString();
        } catch (CharacterCodingException e) {
            throw new ProtocolException("the name before byte " + from.position()
                    + " is not UTF-8");
        }
    }

    private static FieldKind kind(ByteBuffer from) throws ProtocolException {
        need(from, Integer.BYTES);
        int id = from.getInt();
        if (id < 0 || id >= FieldKind.values().length || NOT_COMPACT.contains(FieldKind.get(id))) {
            throw new ProtocolException("no field has kind " + id + ", before byte "
                    + from.position());
        }
        return FieldKind.get(id);
    }
}
