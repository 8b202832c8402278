package io.imapwal.hazelcast.member;

import com.hazelcast.config.Config;
import com.hazelcast.config.MapConfig;
import com.hazelcast.config.MapStoreConfig;
import com.hazelcast.config.TcpIpConfig;
import com.hazelcast.core.Hazelcast;
import com.hazelcast.core.HazelcastInstance;

import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.util.concurrent.Callable;
import java.util.concurrent.ThreadLocalRandom;
import java.util.stream.IntStream;

/** Real members on the loopback interface, which find only each other. */
public final class Members {
    private Members() {
    }

    public static Config config(String cluster, int port, String agent) {
        Config config = new Config();
        config.setClusterName(cluster);
        config.getJetConfig().setEnabled(false);
        config.setProperty("hazelcast.phone.home.enabled", "false");
        config.setProperty("hazelcast.partition.count", "31");
        // By default, a cluster waits five seconds for more members before it lets one join.
        config.setProperty("hazelcast.wait.seconds.before.join", "0");
        // As "imap-wal plugin config" prints. A store that waits blocks one of them.
        config.setProperty("hazelcast.operation.thread.count", "16");
        // Otherwise a test gets retryable failures only after two minutes.
        config.setProperty("hazelcast.invocation.max.retry.count", "20");
        config.setProperty("hazelcast.invocation.retry.pause.millis", "100");
        config.getNetworkConfig().setPort(port).setPortAutoIncrement(false);
        config.getNetworkConfig().getInterfaces().setEnabled(true).addInterface("127.0.0.1");
        config.getNetworkConfig().getJoin().getAutoDetectionConfig().setEnabled(false);
        config.getNetworkConfig().getJoin().getMulticastConfig().setEnabled(false);
        int first = port / 10 * 10;
        config.getNetworkConfig().getJoin().getTcpIpConfig().setEnabled(true)
                .addMember("127.0.0.1:" + first).addMember("127.0.0.1:" + (first + 1))
                .addMember("127.0.0.1:" + (first + 2));
        config.addMapConfig(map("*", agent));
        return config;
    }

    public static MapConfig map(String name, String agent) {
        MapStoreConfig store = new MapStoreConfig().setEnabled(true).setOffload(false)
                .setInitialLoadMode(MapStoreConfig.InitialLoadMode.EAGER)
                .setFactoryClassName(WalMapStoreFactory.class.getName());
        store.setProperty("agent", agent);
        // Longer than a busy machine stops a process.
        store.setProperty("timeout-ms", "10000");
        store.setProperty("connect-timeout-ms", "10000");
        store.setProperty("restore-timeout-ms", "30000");
        return new MapConfig(name).setMapStoreConfig(store);
    }

    /** The first of ten free ports. Other tests may run at the same time. */
    public static int port() {
        while (true) {
            int first = ThreadLocalRandom.current().nextInt(2000, 3000) * 10;
            if (IntStream.range(first, first + 10).allMatch(Members::isFree)) {
                return first;
            }
        }
    }

    private static boolean isFree(int port) {
        try (ServerSocket socket = new ServerSocket(port, 1, InetAddress.getLoopbackAddress())) {
            return socket.isBound();
        } catch (IOException e) {
            return false;
        }
    }

    /**
     * It does not ask for a cluster where no member listens: Hazelcast would wait for an answer for
     * a second.
     */
    public static HazelcastInstance start(Config config) {
        int own = config.getNetworkConfig().getPort();
        TcpIpConfig join = config.getNetworkConfig().getJoin().getTcpIpConfig();
        join.setMembers(join.getMembers().stream().filter(member -> {
            int port = Integer.parseInt(member.substring(member.indexOf(':') + 1));
            return port == own || !isFree(port);
        }).toList());
        return Hazelcast.newHazelcastInstance(config);
    }

    /** Returns when the condition is true. Fails after a minute. */
    public static void eventually(Callable<Boolean> condition) throws Exception {
        long until = System.nanoTime() + 60_000_000_000L;
        Throwable last = null;
        while (System.nanoTime() < until) {
            try {
                if (condition.call()) {
                    return;
                }
                last = null;
            } catch (RuntimeException e) {
                last = e;
            }
            Thread.sleep(20);
        }
        throw new AssertionError("the condition was not true in time", last);
    }
}
