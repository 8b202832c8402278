import com.hazelcast.config.Config;
import com.hazelcast.config.MapStoreConfig;
import com.hazelcast.core.Hazelcast;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.map.IMap;
import com.hazelcast.map.MapLoaderLifecycleSupport;
import com.hazelcast.map.MapStore;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.Collection;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import java.util.ServiceLoader;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import org.apache.seatunnel.engine.imap.storage.api.IMapStorage;
import org.apache.seatunnel.engine.imap.storage.api.IMapStorageFactory;

/**
 * Members of Hazelcast 5.1 with the two map stores: {@code engine_factory} has the one that is
 * given its member, {@code engine_type} that of SeaTunnel's interface. A request on each
 * line of standard input, an answer on each line of the output.
 *
 * <pre>
 * start PORT AGENT        a member; the others are found by their ports
 * fill MAP COUNT VALUE    the keys 0 to COUNT - 1
 * put MAP KEY VALUE [TTL in s]
 * remove MAP KEY
 * get MAP KEY
 * sum MAP                 how many entries have each value
 * ttl MAP KEY             the rest of its life in s; -1: no end
 * kill                    all members, without a word
 * </pre>
 */
public final class StoreMember {
    private static HazelcastInstance last;

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = lines.readLine()) != null;) {
            try {
                answers.println("ok " + answer(line.split(" ")));
            } catch (Throwable e) {
                e.printStackTrace();
                answers.println("error " + String.valueOf(e).replace('\n', ' '));
            }
        }
        System.exit(0);
    }

    private static Object answer(String[] words) {
        if (words[0].equals("start")) {
            last = Hazelcast.newHazelcastInstance(config(Integer.parseInt(words[1]), words[2]));
            return last.getCluster().getMembers().size();
        } else if (words[0].equals("kill")) {
            Hazelcast.getAllHazelcastInstances().forEach(one ->
                    one.getLifecycleService().terminate());
            return "";
        }
        IMap<Object, Object> map = last.getMap(words[1]);
        switch (words[0]) {
            case "fill":
                for (long key = 0; key < Long.parseLong(words[2]); key++) {
                    map.set(key, words[3]);
                }
                return "";
            case "put":
                return words.length < 5 ? map.put(Long.parseLong(words[2]), words[3])
                        : map.put(Long.parseLong(words[2]), words[3], Long.parseLong(words[4]),
                                TimeUnit.SECONDS);
            case "remove":
                return map.remove(Long.parseLong(words[2]));
            case "get":
                return map.get(Long.parseLong(words[2]));
            case "sum":
                Map<Object, Integer> counts = new TreeMap<>();
                map.values().forEach(value -> counts.merge(value, 1, Integer::sum));
                return counts;
            default:
                long until = map.getEntryView(Long.parseLong(words[2])).getExpirationTime();
                return until == Long.MAX_VALUE ? -1 : (until - System.currentTimeMillis()) / 1000;
        }
    }

    private static Config config(int port, String agent) {
        Config config = new Config().setClusterName("seatunnel");
        config.setProperty("hazelcast.logging.type", "jdk");
        config.setProperty("hazelcast.phone.home.enabled", "false");
        config.setProperty("hazelcast.partition.count", "31");
        config.setProperty("hazelcast.wait.seconds.before.join", "0");
        config.getNetworkConfig().setPort(port).setPortAutoIncrement(false);
        config.getNetworkConfig().getJoin().getMulticastConfig().setEnabled(false);
        config.getNetworkConfig().getJoin().getAutoDetectionConfig().setEnabled(false);
        config.getNetworkConfig().getJoin().getTcpIpConfig().setEnabled(true);
        Hazelcast.getAllHazelcastInstances().forEach(one -> config.getNetworkConfig().getJoin()
                .getTcpIpConfig().addMember("127.0.0.1:" + one.getConfig().getNetworkConfig()
                        .getPort()));
        MapStoreConfig store = new MapStoreConfig().setEnabled(true)
                .setInitialLoadMode(MapStoreConfig.InitialLoadMode.EAGER)
                .setProperty("agent", agent);
        config.getMapConfig("engine_factory").setMapStoreConfig(new MapStoreConfig(store)
                .setFactoryClassName("io.imapwal.seatunnel.ImapWalMapStoreFactory"));
        config.getMapConfig("engine_type").setMapStoreConfig(new MapStoreConfig(store)
                .setProperty("type", "imap-wal").setProperty("fs.defaultFS", "file:///")
                .setClassName(FileMapStore.class.getName()));
        return config;
    }

    /** What SeaTunnel's class of this name does with a storage: it drops all results. */
    public static final class FileMapStore
            implements MapStore<Object, Object>, MapLoaderLifecycleSupport {
        private IMapStorage storage;

        @Override
        public void init(HazelcastInstance instance, Properties properties, String name) {
            Map<String, Object> all = new HashMap<>();
            properties.stringPropertyNames().forEach(each ->
                    all.put(each, properties.getProperty(each)));
            all.put("businessName", name);
            for (IMapStorageFactory each : ServiceLoader.load(IMapStorageFactory.class)) {
                if (each.factoryIdentifier().equals(all.get("type"))) {
                    storage = each.create(all);
                }
            }
        }

        @Override
        public void destroy() {
            storage.destroy(false);
        }

        @Override
        public void store(Object key, Object value) {
            storage.store(key, value);
        }

        @Override
        public void storeAll(Map<Object, Object> entries) {
            storage.storeAll(entries);
        }

        @Override
        public void delete(Object key) {
            storage.delete(key);
        }

        @Override
        public void deleteAll(Collection<Object> keys) {
            storage.deleteAll(keys);
        }

        @Override
        public Object load(Object key) {
            return null;
        }

        @Override
        public Map<Object, Object> loadAll(Collection<Object> keys) {
            Map<Object, Object> some = new HashMap<>();
            try {
                Map<Object, Object> all = storage.loadAll();
                keys.forEach(key -> some.put(key, all.get(key)));
            } catch (java.io.IOException e) {
                throw new java.io.UncheckedIOException(e);
            }
            return some;
        }

        @Override
        public Iterable<Object> loadAllKeys() {
            return storage.loadAllKeys();
        }
    }
}
