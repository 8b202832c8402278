package io.imapwal.hazelcast.append;

import com.hazelcast.config.Config;
import com.hazelcast.config.InMemoryFormat;
import com.hazelcast.config.IndexConfig;
import com.hazelcast.config.IndexType;
import com.hazelcast.config.MapConfig;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.core.HazelcastJsonValue;
import com.hazelcast.internal.serialization.impl.HeapData;
import com.hazelcast.internal.serialization.impl.compact.FieldDescriptor;
import com.hazelcast.internal.serialization.impl.compact.Schema;
import com.hazelcast.map.IMap;
import com.hazelcast.nio.serialization.FieldKind;
import com.hazelcast.nio.serialization.genericrecord.GenericRecord;
import com.hazelcast.nio.serialization.genericrecord.GenericRecordBuilder;
import io.imapwal.hazelcast.member.FakeAgent;
import io.imapwal.hazelcast.member.FakeLog;
import io.imapwal.hazelcast.member.Members;
import io.imapwal.hazelcast.member.WalPlugin;
import io.imapwal.wire.ProtocolException;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

import java.io.ObjectInputStream;
import java.io.Serializable;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

/** Attack: the log has other bytes in place of a Compact schema. */
class HostileSchemaTest {
    private static final AtomicInteger RUN = new AtomicInteger();

    private FakeLog log;
    private FakeAgent agent;

    /** Code of the attacker. */
    static final class Gadget implements Serializable {
        private static final long serialVersionUID = 1L;

        private void readObject(ObjectInputStream from) {
            RUN.incrementAndGet();
        }
    }

    @BeforeEach
    void start() throws Exception {
        log = new FakeLog();
        agent = new FakeAgent(log).start();
        RUN.set(0);
    }

    @AfterEach
    void stop() throws Exception {
        agent.close();
    }

    private Config config(String name) {
        Config config = Members.config(name, Members.port(), agent.endpoint());
        MapConfig objects = Members.map("objects", agent.endpoint());
        config.addMapConfig(objects.setInMemoryFormat(InMemoryFormat.OBJECT));
        MapConfig indexed = Members.map("indexed", agent.endpoint());
        config.addMapConfig(indexed.addIndexConfig(new IndexConfig(IndexType.SORTED, "state")));
        return config;
    }

    private static HazelcastJsonValue text(int i) {
        return new HazelcastJsonValue("{\"state\": \"" + i + "\"}");
    }

    @Timeout(value = 90, threadMode = Timeout.ThreadMode.SEPARATE_THREAD)
    @ParameterizedTest
    @ValueSource(strings = {"plain", "objects", "indexed"})
    void codeInSchemaDoesNotRun(String map) throws Exception {
        Config config = config("hostile-" + map);
        GenericRecord order = GenericRecordBuilder.compact("order").setString("state", "paid")
                .build();
        GenericRecord other = GenericRecordBuilder.compact("other").setInt32("n", 7).build();
        HazelcastInstance first = Members.start(config);
        byte[] gadget;
        try {
            first.getMap(map).set("order", order);
            first.getMap(map).set("other", other);
            for (int i = 0; i < 100; i++) {
                first.getMap(map).set(i, text(i));
            }
            gadget = WalPlugin.of(first).member().nodeEngine().toData(new Gadget()).toByteArray();
        } finally {
            first.getLifecycleService().terminate();
        }
        long attacked = 0;
        synchronized (log) {
            for (Map.Entry<Long, byte[]> each : log.schemas.entrySet()) {
                if (new String(each.getValue(), StandardCharsets.ISO_8859_1).contains("order")) {
                    attacked = each.getKey();
                }
            }
            Map<Long, byte[]> sound = new LinkedHashMap<>(log.schemas);
            log.schemas.clear();
            log.schemas.put(attacked, gadget);
            log.schemas.put(1L, new byte[] {1});
            sound.forEach(log.schemas::putIfAbsent);
        }
        HazelcastInstance second = Members.start(config);
        try {
            IMap<Object, Object> found = second.getMap(map);
            assertEquals(7, ((GenericRecord) found.get("other")).getInt32("n"));
            for (int i = 0; i < 100; i++) {
                assertEquals(text(i), found.get(i));
            }
            assertEquals(0, RUN.get(), "code of the log ran in the member");
            String text = assertThrows(RuntimeException.class, () -> found.get("order")).toString();
            assertTrue(text.contains("" + attacked) || text.contains("schema"), text);
            assertEquals(0, RUN.get());
        } finally {
            second.shutdown();
        }
    }

    /** Without this, the other test would show nothing. */
    @Test
    void attackCodeRunsInOrdinaryReader() throws Exception {
        HazelcastInstance member = Members.start(config("gadget"));
        try {
            byte[] gadget = WalPlugin.of(member).member().nodeEngine().toData(new Gadget())
                    .toByteArray();
            WalPlugin.of(member).member().nodeEngine().toObject(new HeapData(gadget));
            assertEquals(1, RUN.get());
        } finally {
            member.shutdown();
        }
    }

    @Test
    void refusedSchemaBlocksNoOtherChange() throws Exception {
        HazelcastInstance member = Members.start(config("refused"));
        try {
            agent.faults.refusedType = "order";
            IMap<Object, Object> map = member.getMap("plain");
            map.set("order", GenericRecordBuilder.compact("order").setString("state", "paid")
                    .build());
            map.set("other", GenericRecordBuilder.compact("other").setInt32("n", 7).build());
            map.set("text", "text");
            assertEquals(3, log.size("plain"));
            assertEquals(1, log.schemas.size());
        } finally {
            member.shutdown();
        }
    }

    @Test
    void schemaIsWrittenAsHazelcastWritesIt() throws Exception {
        HazelcastInstance member = Members.start(config("form"));
        try {
            List<FieldDescriptor> fields = new ArrayList<>();
            fields.add(new FieldDescriptor("z\u00e4hler", FieldKind.INT64));
            fields.add(new FieldDescriptor("\ud83d\ude00", FieldKind.ARRAY_OF_NULLABLE_FLOAT64));
            fields.add(new FieldDescriptor("\uff5e", FieldKind.BOOLEAN));
            for (Schema schema : List.of(new Schema("com.acme.Order", fields),
                    new Schema("", new ArrayList<>()))) {
                byte[] bytes = SchemaForm.write(schema);
                assertArrayEquals(WalPlugin.of(member).member().nodeEngine().toData(schema)
                        .toByteArray(),
                        bytes);
                assertEquals(schema, SchemaForm.read(schema.getSchemaId(), bytes));
            }
        } finally {
            member.shutdown();
        }
    }

    @Test
    void wrongBytesAreRefusedWithPosition() throws Exception {
        List<FieldDescriptor> fields = new ArrayList<>();
        fields.add(new FieldDescriptor("a", FieldKind.INT64));
        fields.add(new FieldDescriptor("b", FieldKind.STRING));
        Schema schema = new Schema("t", fields);
        long id = schema.getSchemaId();
        byte[] sound = SchemaForm.write(schema);
        assertEquals(schema, SchemaForm.read(id, sound));
        for (int length = 0; length < sound.length; length++) {
            byte[] cut = Arrays.copyOf(sound, length);
            assertThrows(ProtocolException.class, () -> SchemaForm.read(id, cut));
        }
        for (int bit = 0; bit < sound.length * 8; bit++) {
            byte[] flipped = sound.clone();
            flipped[bit / 8] ^= (byte) (1 << (bit % 8));
            assertThrows(ProtocolException.class, () -> SchemaForm.read(id, flipped), "bit " + bit);
        }
        assertThrows(ProtocolException.class, () ->
                SchemaForm.read(id, Arrays.copyOf(sound, sound.length + 1)));
        assertThrows(ProtocolException.class, () -> SchemaForm.read(id + 1, sound));
        assertThrows(ProtocolException.class, () ->
                SchemaForm.read(id, new byte[SchemaForm.BYTES_MAX + 1]));
        for (int kind : new int[] {-1, 0, 5, 6, 31, 32, 47, Integer.MAX_VALUE}) {
            byte[] other = sound.clone();
            ByteBuffer.wrap(other).putInt(sound.length - 4, kind);
            assertTrue(assertThrows(ProtocolException.class, () -> SchemaForm.read(id, other))
                    .getMessage().contains("kind " + kind));
        }
        byte[] twice = sound.clone();
        twice[sound.length - 5] = 'a';
        assertTrue(assertThrows(ProtocolException.class, () -> SchemaForm.read(id, twice))
                .getMessage().contains("order of names"));
        byte[] many = sound.clone();
        ByteBuffer.wrap(many).putInt(22, Integer.MAX_VALUE);
        assertTrue(assertThrows(ProtocolException.class, () -> SchemaForm.read(id, many))
                .getMessage().contains("fields"));
    }

    @Test
    void littleEndianSchemaOfOlderPlugInIsRead() throws Exception {
        Schema schema = new Schema("t",
                new ArrayList<>(List.of(new FieldDescriptor("a", FieldKind.INT64))));
        ByteBuffer bytes = ByteBuffer.wrap(SchemaForm.write(schema));
        ByteBuffer little = ByteBuffer.allocate(bytes.capacity()).order(ByteOrder.BIG_ENDIAN);
        little.putInt(bytes.getInt()).putInt(bytes.getInt()).put(bytes.get())
                .order(ByteOrder.LITTLE_ENDIAN);
        little.putInt(bytes.getInt()).putInt(bytes.getInt()).putInt(bytes.getInt()).put(bytes.get())
                .putInt(bytes.getInt());
        little.putInt(bytes.getInt()).put(bytes.get()).putInt(bytes.getInt());
        assertEquals(schema, SchemaForm.read(schema.getSchemaId(), little.array()));
    }
}
