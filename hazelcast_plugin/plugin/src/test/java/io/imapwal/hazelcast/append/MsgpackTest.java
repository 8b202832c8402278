package io.imapwal.hazelcast.append;

import com.hazelcast.internal.json.Json;
import com.hazelcast.internal.json.JsonArray;
import com.hazelcast.internal.json.JsonObject;
import com.hazelcast.internal.json.JsonValue;
import io.imapwal.wire.MsgpackReader;
import io.imapwal.wire.MsgpackWriter;
import io.imapwal.wire.ProtocolException;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.stream.Stream;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

/** The bytes on the wire, compared with files that another implementation of msgpack wrote. */
class MsgpackTest {
    private static final Path GOLDEN = Path.of("..", "..", "tests", "golden");

    static Stream<String> messages() throws IOException {
        try (Stream<Path> files = Files.list(GOLDEN)) {
            List<String> names = files.map(file -> file.getFileName().toString())
                    .filter(name -> name.startsWith("wire-") && name.endsWith(".json"))
                    .map(name -> name.substring(0, name.length() - ".json".length())).sorted()
                    .toList();
            assertTrue(names.size() >= 10, "golden files: " + names);
            return names.stream();
        }
    }

    private static byte[][] bytes(String name) throws IOException {
        List<String> lines = Files.readAllLines(GOLDEN.resolve(name + ".hex"));
        return new byte[][] {HexFormat.of().parseHex(lines.get(0)),
                HexFormat.of().parseHex(lines.size() > 1 ? lines.get(1) : "")};
    }

    private static JsonObject content(String name) throws IOException {
        return Json.parse(Files.readString(GOLDEN.resolve(name + ".json"))).asObject();
    }

    @ParameterizedTest
    @MethodSource("messages")
    void goldenFilesAreWritten(String name) throws IOException {
        MsgpackWriter header = new MsgpackWriter(1);
        write(header, content(name).get("header"));
        assertArrayEquals(bytes(name)[0], header.toByteArray());
        MsgpackWriter payload = new MsgpackWriter(1);
        content(name).get("payload").asArray().forEach(value -> write(payload, value));
        assertArrayEquals(bytes(name)[1], payload.toByteArray());
    }

    @ParameterizedTest
    @MethodSource("messages")
    void goldenFilesAreRead(String name) throws IOException {
        MsgpackReader header = new MsgpackReader(bytes(name)[0]);
        same(content(name).get("header"), header.value());
        assertFalse(header.hasMore());
        MsgpackReader payload = new MsgpackReader(bytes(name)[1]);
        for (JsonValue value : content(name).get("payload").asArray()) {
            same(value, payload.value());
        }
        assertFalse(payload.hasMore());
    }

    @Test
    void changesAreEncodedAsGoldenAppend() throws IOException {
        JsonObject append = content("wire-append");
        MsgpackWriter to = new MsgpackWriter();
        for (JsonValue value : append.get("payload").asArray()) {
            JsonArray entry = value.asArray();
            JsonArray order = entry.get(9).asArray();
            byte[] head = Change.head(utf8(entry.get(0)), binary(entry.get(1)), utf8(entry.get(2)),
                    entry.get(3).isNull() ? null : binary(entry.get(3)), utf8(entry.get(4)),
                    entry.get(6).asLong(), entry.get(7).asLong(),
                    entry.get(8).asInt());
            Change change = new Change(entry.get(0).asString(), null, head,
                    new PartitionStamp(UUID.randomUUID(), UUID.randomUUID(), entry.get(8).asInt(),
                        1, order.get(1).asInt(), 0));
            change.request = order.get(3).asLong();
            change.write(to, order.get(0).asLong(), order.get(2).asLong());
        }
        assertArrayEquals(bytes("wire-append")[1], to.toByteArray());
    }

    @Test
    void truncatedMessageIsAnError() throws IOException {
        byte[] header = bytes("wire-welcome")[0];
        for (int size = 0; size < header.length; size++) {
            MsgpackReader reader = new MsgpackReader(header, 0, size);
            assertThrows(ProtocolException.class, reader::value, "cut at " + size);
        }
    }

    @Test
    void wrongTypeIsAnError() {
        byte[] text = new MsgpackWriter().string("x").toByteArray();
        assertThrows(ProtocolException.class, () -> new MsgpackReader(text).integer());
        assertThrows(ProtocolException.class, () -> new MsgpackReader(text).binary());
        assertThrows(ProtocolException.class, () -> new MsgpackReader(text).array());
        assertThrows(ProtocolException.class, () -> new MsgpackReader(text).bool());
        assertThrows(ProtocolException.class, () ->
                new MsgpackReader(new byte[] {(byte) 0xc1}).value());
        // A length that no message can have must not exhaust the heap.
        assertThrows(ProtocolException.class, () ->
                new MsgpackReader(new byte[] {(byte) 0xc6, -1, -1, -1, -1}).binary());
    }

    @Test
    void cursorIsSentUnchanged() throws IOException {
        byte[] cursor = new MsgpackWriter().array(2).string("page").binary(new byte[] {1})
                .toByteArray();
        byte[] message = new MsgpackWriter().raw(cursor, 0, cursor.length).integer(5).toByteArray();
        MsgpackReader reader = new MsgpackReader(message);
        assertArrayEquals(cursor, reader.raw());
        assertEquals(5, reader.integer());
    }

    private static void write(MsgpackWriter to, JsonValue value) {
        if (value.isNull()) {
            to.nil();
        } else if (value.isBoolean()) {
            to.bool(value.asBoolean());
        } else if (value.isNumber()) {
            to.integer(value.asLong());
        } else if (value.isString()) {
            to.string(value.asString());
        } else if (value.isArray()) {
            to.array(value.asArray().size());
            value.asArray().forEach(item -> write(to, item));
        } else if (value.asObject().get("bin") != null) {
            to.binary(binary(value));
        } else {
            to.map(value.asObject().size());
            value.asObject().forEach(member -> {
                to.string(member.getName());
                write(to, member.getValue());
            });
        }
    }

    private static void same(JsonValue wanted, Object found) {
        if (wanted.isNull()) {
            assertNull(found);
        } else if (wanted.isBoolean()) {
            assertEquals(wanted.asBoolean(), found);
        } else if (wanted.isNumber()) {
            assertEquals(wanted.asLong(), found);
        } else if (wanted.isString()) {
            assertEquals(wanted.asString(), found);
        } else if (wanted.isArray()) {
            List<?> list = (List<?>) found;
            assertEquals(wanted.asArray().size(), list.size());
            for (int i = 0; i < list.size(); i++) {
                same(wanted.asArray().get(i), list.get(i));
            }
        } else if (wanted.asObject().get("bin") != null) {
            assertArrayEquals(binary(wanted), (byte[]) found);
        } else {
            Map<?, ?> map = (Map<?, ?>) found;
            assertEquals(wanted.asObject().size(), map.size());
            wanted.asObject().forEach(member -> same(member.getValue(), map.get(member.getName())));
        }
    }

    private static byte[] binary(JsonValue value) {
        return HexFormat.of().parseHex(value.asObject().getString("bin", null));
    }

    private static byte[] utf8(JsonValue value) {
        return value.asString().getBytes(StandardCharsets.UTF_8);
    }
}
