import com.hazelcast.cluster.ClusterState;
import com.hazelcast.config.Config;
import com.hazelcast.core.Hazelcast;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.internal.json.Json;
import com.hazelcast.internal.json.JsonObject;
import com.hazelcast.internal.json.JsonValue;
import com.hazelcast.internal.serialization.DataSerializerHook;
import com.hazelcast.map.EntryProcessor;
import com.hazelcast.map.IMap;
import com.hazelcast.nio.ObjectDataInput;
import com.hazelcast.nio.ObjectDataOutput;
import com.hazelcast.nio.serialization.DataSerializableFactory;
import com.hazelcast.nio.serialization.IdentifiedDataSerializable;
import com.hazelcast.partition.PartitionAware;
import com.hazelcast.query.Predicates;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.Serializable;
import java.math.BigDecimal;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.TreeMap;
import java.util.function.BiFunction;
import java.util.function.Function;

/**
 * A member that answers questions. It reads each question as one line of words with tabs between
 * them, and prints one line: "= " and JSON, or "! " and an exception.
 */
public final class TestMember {
    private TestMember() {
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err);
        HazelcastInstance member = Hazelcast.newHazelcastInstance(Config.load());
        answer(out, Json.value(true));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = in.readLine()) != null;) {
            String[] question = line.split("\t");
            try {
                answer(out, answerTo(member, question));
            } catch (Exception e) {
                out.println("! " + e.getClass().getName() + ": "
                        + String.valueOf(e.getMessage()).replace('\n', ' '));
                out.flush();
            }
            if (question[0].equals("leave")) {
                System.exit(0);
            }
        }
        Runtime.getRuntime().halt(0);
    }

    private static void answer(PrintStream out, JsonValue value) {
        out.println("= " + value);
        out.flush();
    }

    private static JsonValue answerTo(HazelcastInstance member, String[] question)
            throws Exception {
        return switch (question[0]) {
            case "members" -> Json.value(member.getCluster().getMembers().size());
            case "state" -> {
                member.getCluster().changeClusterState(ClusterState.valueOf(question[1]));
                yield Json.value(true);
            }
            case "safe" -> Json.value(member.getPartitionService().isClusterSafe());
            case "owned" -> Json.value(member.getPartitionService().getPartitions().stream()
                    .filter(each -> each.getOwner() != null && each.getOwner().localMember())
                    .count());
            case "owned-entries" -> Json.value(
                    member.getMap(question[1]).getLocalMapStats().getOwnedEntryCount());
            case "placed" -> Json.value(placed(member));
            case "leave" -> {
                member.shutdown();
                yield Json.value(true);
            }
            case "write" -> {
                write(member);
                yield Json.value(true);
            }
            case "read" -> read(member);
            case "job" -> question[1].equals("start") ? CountingJob.start(member)
                    : CountingJob.look(member);
            case "times" -> OperationTimes.of(member.getMap(question[1]),
                    Integer.parseInt(question[2]));
            default -> throw new IllegalArgumentException("unknown question " + question[0]);
        };
    }

    /** Keys of this member's partitions that transactions are changing. */
    private static int placed(HazelcastInstance member) throws Exception {
        Class<?> plugin = Class.forName("io.imapwal.hazelcast.member.WalPlugin");
        Object maps = plugin.getMethod("maps")
                .invoke(plugin.getMethod("of", HazelcastInstance.class).invoke(null, member));
        Object placements = maps.getClass().getMethod("placements").invoke(maps);
        return (int) placements.getClass().getMethod("size").invoke(placements);
    }

    // ---- Operations and values that a Python client does not have. ----

    private static void write(HazelcastInstance member) {
        IMap<String, Long> computed = member.getMap("java-compute");
        long one = 1;
        computed.compute("local", (key, value) -> value == null ? one : value + one);
        computed.compute("local", (key, value) -> value == null ? one : value + one);
        computed.compute("remote", new Increment());
        computed.compute("remote", new Increment());
        computed.set("gone", 1L);
        computed.compute("gone", (key, value) -> null);
        computed.computeIfAbsent("absent", key -> 7L);
        computed.computeIfAbsent("absent", new Eight());
        computed.set("present", 1L);
        computed.computeIfPresent("present", new Increment());
        // A lambda, because Hazelcast 5.7 calls a serializable function with null here.
        computed.computeIfPresent("never", (key, value) -> value + one);
        computed.merge("merged", 5L, Long::sum);
        computed.merge("merged", 6L, Long::sum);

        IMap<String, Object> objects = member.getMap("java-objects");
        objects.put("serializable", new Order("o-1", new BigDecimal("10.50"), new int[] {1, 2, 3}));
        objects.put("identified", new Parcel("p-1", 42));
        objects.put("compact", new Car("Wartburg", 353));
        objects.put("map", new HashMap<>(new TreeMap<>(Map.of("a", 1, "b", "zwei"))));
        objects.put("decimal", new BigDecimal("12345678901234567890.123456789"));
        objects.put("bytes", new byte[] {0, -1, 127});
        objects.put("enum", Thread.State.WAITING);
        objects.put("removed", new Parcel("p-2", 43));
        objects.remove("removed");

        IMap<Object, String> keyed = member.getMap("java-keys");
        keyed.put(new Order("k-1", BigDecimal.ONE, new int[] {9}), "serializable");
        keyed.put(new Parcel("k-2", 2), "identified");
        keyed.put(new Car("Trabant", 601), "compact");
        keyed.put(new Wheel(4, "Trabant"), "partition aware");
        keyed.put(42L, "long");
        keyed.put((short) 42, "short");

        IMap<String, Long> processed = member.getMap("java-processed");
        for (long i = 0; i < 10; i++) {
            processed.set("k" + i, i);
        }
        processed.executeOnKey("k1", new Add<>(100));
        processed.executeOnKey("k2", new Remove<>());
        processed.executeOnKeys(Set.of("k3", "k4"), new Add<>(1000));
        processed.executeOnEntries(new Remove<>(), Predicates.greaterEqual("this", 1000L));
        processed.executeOnEntries(new Add<>(10), Predicates.between("this", 5L, 6L));
        processed.executeOnKey("new", new Add<>(1));

        IMap<String, Parcel> asObjects = member.getMap("object-format");
        asObjects.put("a", new Parcel("a", 1));
        asObjects.executeOnKey("a", entry -> {
            Parcel parcel = entry.getValue();
            parcel.number++;
            entry.setValue(parcel);
            return null;
        });
    }

    private static JsonValue read(HazelcastInstance member) {
        JsonObject all = Json.object();
        all.add("compute", longs(member.getMap("java-compute")));
        all.add("processed", longs(member.getMap("java-processed")));
        IMap<String, Object> objects = member.getMap("java-objects");
        JsonObject seen = Json.object();
        for (String key : new TreeMap<>(objects).keySet()) {
            Object value = objects.get(key);
            seen.add(key, value instanceof byte[] bytes ? Arrays.toString(bytes)
                    : value.getClass().getSimpleName() + " " + value);
        }
        all.add("objects", seen);
        IMap<Object, String> keyed = member.getMap("java-keys");
        JsonObject keys = Json.object();
        keys.add("serializable", keyed.get(new Order("k-1", BigDecimal.ONE, new int[] {9})));
        keys.add("identified", keyed.get(new Parcel("k-2", 2)));
        keys.add("compact", keyed.get(new Car("Trabant", 601)));
        keys.add("aware", keyed.get(new Wheel(4, "Trabant")));
        keys.add("long", keyed.get(42L));
        keys.add("short", keyed.get((short) 42));
        keys.add("size", keyed.size());
        all.add("keys", keys);
        IMap<String, Parcel> asObjects = member.getMap("object-format");
        all.add("object", String.valueOf(asObjects.get("a")));
        return all;
    }

    private static JsonObject longs(IMap<String, Long> map) {
        JsonObject object = Json.object();
        new TreeMap<>(map).forEach((key, value) -> object.add(key, value));
        return object;
    }

    // ---- Classes of the members. A Python client knows only their factory and class ids. ----

    public static final class Increment implements BiFunction<String, Long, Long>, Serializable {
        @Override
        public Long apply(String key, Long value) {
            return value == null ? 1 : value + 1;
        }
    }

    public static final class Eight implements Function<String, Long>, Serializable {
        @Override
        public Long apply(String key) {
            return 8L;
        }
    }

    public static final class Order implements Serializable {
        private final String id;
        private final BigDecimal amount;
        private final int[] items;

        Order(String id, BigDecimal amount, int[] items) {
            this.id = id;
            this.amount = amount;
            this.items = items;
        }

        @Override
        public String toString() {
            return id + " " + amount + " " + items.length;
        }
    }

    /** Compact, without a serializer of its own. */
    public static final class Car {
        private String model;
        private int number;

        public Car() {
        }

        Car(String model, int number) {
            this.model = model;
            this.number = number;
        }

        @Override
        public String toString() {
            return model + " " + number;
        }
    }

    /** A key that is in the partition of its car. */
    public static final class Wheel implements Serializable, PartitionAware<String> {
        private final int number;
        private final String car;

        Wheel(int number, String car) {
            this.number = number;
            this.car = car;
        }

        @Override
        public String getPartitionKey() {
            return car;
        }
    }

    public static final class Parcel implements IdentifiedDataSerializable {
        private String name;
        private int number;

        public Parcel() {
        }

        Parcel(String name, int number) {
            this.name = name;
            this.number = number;
        }

        @Override
        public void writeData(ObjectDataOutput out) throws IOException {
            out.writeString(name);
            out.writeInt(number);
        }

        @Override
        public void readData(ObjectDataInput in) throws IOException {
            name = in.readString();
            number = in.readInt();
        }

        @Override
        public int getFactoryId() {
            return Hook.FACTORY;
        }

        @Override
        public int getClassId() {
            return Hook.PARCEL;
        }

        @Override
        public boolean equals(Object other) {
            return other instanceof Parcel parcel && parcel.name.equals(name)
                    && parcel.number == number;
        }

        @Override
        public int hashCode() {
            return Objects.hash(name, number);
        }

        @Override
        public String toString() {
            return name + " " + number;
        }
    }

    /** Adds to the number of a key. An absent key has the number 0. */
    public static final class Add<K> implements EntryProcessor<K, Long, Long>,
            IdentifiedDataSerializable {
        private long amount;

        public Add() {
        }

        Add(long amount) {
            this.amount = amount;
        }

        @Override
        public Long process(Map.Entry<K, Long> entry) {
            Long value = entry.getValue();
            entry.setValue(value == null ? amount : value + amount);
            return entry.getValue();
        }

        @Override
        public void writeData(ObjectDataOutput out) throws IOException {
            out.writeLong(amount);
        }

        @Override
        public void readData(ObjectDataInput in) throws IOException {
            amount = in.readLong();
        }

        @Override
        public int getFactoryId() {
            return Hook.FACTORY;
        }

        @Override
        public int getClassId() {
            return Hook.ADD;
        }
    }

    public static final class Remove<K, V> implements EntryProcessor<K, V, Object>,
            IdentifiedDataSerializable {
        @Override
        public Object process(Map.Entry<K, V> entry) {
            entry.setValue(null);
            return null;
        }

        @Override
        public void writeData(ObjectDataOutput out) {
        }

        @Override
        public void readData(ObjectDataInput in) {
        }

        @Override
        public int getFactoryId() {
            return Hook.FACTORY;
        }

        @Override
        public int getClassId() {
            return Hook.REMOVE;
        }
    }

    public static final class Hook implements DataSerializerHook {
        static final int FACTORY = 9001;
        static final int PARCEL = 1;
        static final int ADD = 2;
        static final int REMOVE = 3;

        @Override
        public int getFactoryId() {
            return FACTORY;
        }

        @Override
        public DataSerializableFactory createFactory() {
            return id -> switch (id) {
                case PARCEL -> new Parcel();
                case ADD -> new Add<>();
                case REMOVE -> new Remove<>();
                default -> null;
            };
        }
    }
}
