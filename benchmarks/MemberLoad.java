import com.hazelcast.config.Config;
import com.hazelcast.config.InMemoryFormat;
import com.hazelcast.config.MapStoreConfig;
import com.hazelcast.config.NetworkConfig;
import com.hazelcast.core.Hazelcast;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.map.IMap;
import com.hazelcast.map.MapLoader;
import com.hazelcast.map.MapStore;

import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.Random;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;

/**
 * One member under load, in one JVM. It prints one line of JSON. Run it as a source file:
 *
 * <pre>
 * java -cp hazelcast.jar:plugin.jar MemberLoad.java mode=set store=wal \
 *     property.agent=ipc:///… callers=64 seconds=10 bytes=100
 *
 * mode   set     callers set random keys
 *        fill    putAll of {@code entries} entries
 *        load    measures the time until the map is loaded
 * rate   sets in a second by all callers together; 0: as many as they can
 * store  none    no map store
 *        noop    a map store that does nothing
 *        madeup  a loader that generates the entries
 *        wal     the plug-in
 *        the class name of another factory of map stores
 * </pre>
 */
public final class MemberLoad {
    /** Options with this prefix are properties of the map store. */
    private static final String PROPERTY = "property.";

    public static void main(String[] args) throws Exception {
        Map<String, String> options = new HashMap<>();
        for (String arg : args) {
            options.put(arg.substring(0, arg.indexOf('=')), arg.substring(arg.indexOf('=') + 1));
        }
        String mode = options.getOrDefault("mode", "set");
        int entries = Integer.parseInt(options.getOrDefault("entries", "1000000"));
        int bytes = Integer.parseInt(options.getOrDefault("bytes", "100"));
        HazelcastInstance member = Hazelcast.newHazelcastInstance(config(options, entries, bytes));
        String result = switch (mode) {
            case "set" -> set(member, options, bytes);
            case "fill" -> fill(member, entries, bytes);
            case "load" -> load(member, entries, bytes);
            default -> throw new IllegalArgumentException(mode);
        };
        System.out.println(result);
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private static Config config(Map<String, String> options, int entries, int bytes) {
        Config config = new Config();
        String port = options.getOrDefault("port", "5801");
        config.setClusterName("bench-" + port);
        config.setProperty("hazelcast.logging.type", "none")
                .setProperty("hazelcast.phone.home.enabled", "false");
        if (options.containsKey("operationThreads")) {
            config.setProperty("hazelcast.operation.thread.count", options.get("operationThreads"));
        }
        NetworkConfig network = config.getNetworkConfig().setPort(Integer.parseInt(port));
        network.getJoin().getAutoDetectionConfig().setEnabled(false);
        network.getJoin().getMulticastConfig().setEnabled(false);
        network.getInterfaces().setEnabled(true).addInterface("127.0.0.1");
        String store = options.getOrDefault("store", "none");
        MapStoreConfig storeConfig = config.getMapConfig("bench").setBackupCount(0)
                .setInMemoryFormat(InMemoryFormat.BINARY).getMapStoreConfig();
        storeConfig.setOffload(Boolean.parseBoolean(options.getOrDefault("offload", "false")))
                .setInitialLoadMode(MapStoreConfig.InitialLoadMode.EAGER);
        switch (store) {
            case "none" -> storeConfig.setEnabled(false);
            case "noop" -> storeConfig.setEnabled(true).setImplementation(new NoopStore());
            case "madeup" -> storeConfig.setEnabled(true)
                    .setImplementation(new MadeUpLoader(entries, bytes));
            default -> {
                storeConfig.setEnabled(true).setFactoryClassName(
                        store.equals("wal")
                                ? "io.imapwal.hazelcast.member.WalMapStoreFactory" : store);
                options.forEach((key, value) -> {
                    if (key.startsWith(PROPERTY)) {
                        storeConfig.setProperty(key.substring(PROPERTY.length()), value);
                    }
                });
            }
        }
        return config;
    }

    private static String set(HazelcastInstance member, Map<String, String> options, int bytes)
            throws Exception {
        int callers = Integer.parseInt(options.getOrDefault("callers", "64"));
        long warmupNanos = Long.parseLong(options.getOrDefault("warmup", "5")) * 1_000_000_000L;
        long nanos = Long.parseLong(options.getOrDefault("seconds", "10")) * 1_000_000_000L;
        IMap<Long, Object> map = member.getMap("bench");
        // Some other map stores accept no byte arrays. A string of letters has as many bytes.
        Object value = "string".equals(options.get("values")) ? "v".repeat(bytes) : value(1, bytes);
        int keys = Integer.parseInt(options.getOrDefault("keys", "100000"));
        long rate = Long.parseLong(options.getOrDefault("rate", "0"));
        long pauseNanos = rate == 0 ? 0 : callers * 1_000_000_000L / rate;
        AtomicBoolean counting = new AtomicBoolean();
        AtomicBoolean stop = new AtomicBoolean();
        AtomicLong errors = new AtomicLong();
        long[][] latencies = new long[callers][];
        Thread[] threads = new Thread[callers];
        for (int caller = 0; caller < callers; caller++) {
            int number = caller;
            threads[caller] = new Thread(() -> {
                Random random = new Random(number);
                long[] seen = new long[4_000_000 / callers + 100_000];
                int count = 0;
                long due = System.nanoTime() + number * pauseNanos / callers;
                while (!stop.get()) {
                    if (pauseNanos > 0) {
                        LockSupport.parkNanos(due - System.nanoTime());
                        due += pauseNanos;
                    }
                    long start = System.nanoTime();
                    try {
                        map.set((long) random.nextInt(keys), value);
                    } catch (RuntimeException error) {
                        errors.incrementAndGet();
                    }
                    if (counting.get() && !stop.get() && count < seen.length) {
                        seen[count++] = System.nanoTime() - start;
                    }
                }
                latencies[number] = Arrays.copyOf(seen, count);
            });
            threads[caller].start();
        }
        Thread.sleep(warmupNanos / 1_000_000);
        long start = System.nanoTime();
        long cpuStart = cpuNanos();
        counting.set(true);
        Thread.sleep(nanos / 1_000_000);
        stop.set(true);
        double seconds = (System.nanoTime() - start) / 1e9;
        double cpuSeconds = (cpuNanos() - cpuStart) / 1e9;
        int hung = 0;
        for (Thread thread : threads) {
            thread.join(10_000);
            hung += thread.isAlive() ? 1 : 0;
        }
        long[] all = Arrays.stream(latencies).filter(each -> each != null)
                .flatMapToLong(Arrays::stream).sorted().toArray();
        return String.format("{\"sets_per_second\": %.0f, \"p50_ms\": %.3f, \"p99_ms\": %.3f,"
                + " \"max_ms\": %.1f, \"errors\": %d, \"hung\": %d, \"sets\": %d,"
                + " \"cpu_seconds\": %.3f}", all.length / seconds, at(all, 0.5), at(all, 0.99),
                at(all, 1), errors.get(), hung, all.length, cpuSeconds);
    }

    /** Processor time of this process so far. */
    private static long cpuNanos() {
        return ((com.sun.management.OperatingSystemMXBean)
                java.lang.management.ManagementFactory.getOperatingSystemMXBean())
                .getProcessCpuTime();
    }

    /** A quantile of latencies, in milliseconds. */
    private static double at(long[] sorted, double quantile) {
        if (sorted.length == 0) {
            return 0;
        }
        return sorted[(int) Math.min(sorted.length - 1, quantile * sorted.length)] / 1e6;
    }

    private static String fill(HazelcastInstance member, int entries, int bytes) {
        IMap<Long, byte[]> map = member.getMap("bench");
        long start = System.nanoTime();
        for (int first = 0; first < entries; first += 10_000) {
            Map<Long, byte[]> batch = new HashMap<>();
            for (long key = first; key < Math.min(entries, first + 10_000); key++) {
                batch.put(key, value(key, bytes));
            }
            map.putAll(batch);
        }
        double seconds = (System.nanoTime() - start) / 1e9;
        return String.format("{\"seconds\": %.3f, \"entries\": %d}", seconds, map.size());
    }

    private static String load(HazelcastInstance member, int entries, int bytes) {
        long start = System.nanoTime();
        IMap<Long, byte[]> map = member.getMap("bench");
        int size = map.size();
        double seconds = (System.nanoTime() - start) / 1e9;
        int middle = entries / 2;
        boolean same = size == entries
                && Arrays.equals(map.get((long) middle), value(middle, bytes));
        return String.format("{\"seconds\": %.3f, \"entries\": %d, \"right\": %b}", seconds, size,
                same);
    }

    static byte[] value(long key, int bytes) {
        byte[] value = new byte[bytes];
        new Random(key).nextBytes(value);
        return value;
    }

    private static final class NoopStore implements MapStore<Long, byte[]> {
        @Override public void store(Long key, byte[] value) { }
        @Override public void storeAll(Map<Long, byte[]> map) { }
        @Override public void delete(Long key) { }
        @Override public void deleteAll(Collection<Long> keys) { }
        @Override public byte[] load(Long key) {
            return null;
        }
        @Override public Map<Long, byte[]> loadAll(Collection<Long> keys) {
            return Map.of();
        }
        @Override public Iterable<Long> loadAllKeys() {
            return null;
        }
    }

    private record MadeUpLoader(int entries, int bytes) implements MapLoader<Long, byte[]> {
        @Override public byte[] load(Long key) {
            return value(key, bytes);
        }
        @Override public Map<Long, byte[]> loadAll(Collection<Long> keys) {
            Map<Long, byte[]> found = new HashMap<>();
            keys.forEach(key -> found.put(key, value(key, bytes)));
            return found;
        }
        @Override public Iterable<Long> loadAllKeys() {
            return () -> new Iterator<>() {
                private long next;
                @Override public boolean hasNext() {
                    return next < entries;
                }
                @Override public Long next() {
                    if (next >= entries) {
                        throw new NoSuchElementException();
                    }
                    return next++;
                }
            };
        }
    }
}
