package io.imapwal.hazelcast.member;

import com.hazelcast.cluster.Member;
import com.hazelcast.config.Config;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.internal.serialization.Data;
import com.hazelcast.map.IMap;
import com.hazelcast.spi.impl.NodeEngineImpl;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import java.util.UUID;
import java.util.stream.Collectors;
import java.util.stream.Stream;

import static io.imapwal.hazelcast.member.Members.eventually;

/** Members of one cluster. Each has an agent of its own. All agents have the same log. */
public final class TestCluster {
    public final FakeLog log = new FakeLog();
    public final List<FakeAgent> agents = new ArrayList<>();
    public final List<HazelcastInstance> members = new ArrayList<>();
    public final int port = Members.port();
    /** A part of a cluster that is smaller than the lost one lets that claim a view first. */
    public int heartbeatS = 5;
    private final String name;

    public TestCluster(String name) {
        this.name = name;
    }

    public FakeAgent startAgent() throws Exception {
        FakeAgent agent = new FakeAgent(log).start();
        agents.add(agent);
        return agent;
    }

    /** Operations are retried for 25 s, which is longer than a partition waits to be settled. */
    public Config config(int number, FakeAgent agent) {
        Config config = Members.config(name, port + number, agent.endpoint());
        config.setProperty("hazelcast.invocation.max.retry.count", "250");
        config.setProperty("hazelcast.heartbeat.interval.seconds", String.valueOf(heartbeatS));
        return config;
    }

    public HazelcastInstance start(Config config) {
        HazelcastInstance member = Members.start(config);
        members.add(member);
        return member;
    }

    /** The log and its agents stay. */
    public void terminateAll() {
        members.forEach(member -> member.getLifecycleService().terminate());
        members.clear();
    }

    public void stop() throws Exception {
        terminateAll();
        for (FakeAgent agent : agents) {
            agent.close();
        }
    }

    /**
     * Returns when each partition has its backups. Hazelcast would repeat a question to a member
     * that has left, or that a table of partitions still names, for 25 s.
     */
    public void awaitSafe() throws Exception {
        eventually(() -> running().allMatch(this::knowsOnlyRunning));
        eventually(() -> running().allMatch(each -> each.getPartitionService().isClusterSafe()));
    }

    private Stream<HazelcastInstance> running() {
        return members.stream().filter(each -> each.getLifecycleService().isRunning());
    }

    private boolean knowsOnlyRunning(HazelcastInstance member) {
        NodeEngineImpl engine = WalPlugin.of(member).member().nodeEngine();
        Set<UUID> present = running().map(each -> each.getCluster().getLocalMember().getUuid())
                .collect(Collectors.toSet());
        if (!member.getCluster().getMembers().stream().map(Member::getUuid)
                .allMatch(present::contains)) {
            return false;
        }
        return Arrays.stream(engine.getPartitionService().getInternalPartitions())
                .flatMap(partition -> Arrays.stream(partition.getReplicasCopy()))
                .allMatch(replica -> replica == null || present.contains(replica.uuid()));
    }

    /**
     * Puts a change of map "orders" into the log only, as if its owner had died before it answered.
     *
     * @param value null: the key is deleted
     */
    public void logOnly(HazelcastInstance member, Object key, Object value, long expiresAtMs) {
        Data data = WalPlugin.of(member).member().nodeEngine().toData(key);
        byte[] bytes = value == null ? null
                : WalPlugin.of(member).member().nodeEngine().toData(value).toByteArray();
        int partition = member.getPartitionService().getPartition(key).getPartitionId();
        log.put("orders", new FakeLog.Record(data.toByteArray(), "", bytes, "", value == null,
                expiresAtMs, partition, List.of(1L, 1_000_000L << 32, 1L, 1L)));
    }

    /** Sets each number below count to itself. */
    public static void fill(IMap<Integer, Integer> map, int count) {
        for (int i = 0; i < count; i++) {
            map.set(i, i);
        }
    }

    /** The first keys of the partitions that a member owns. */
    public static List<Integer> owned(HazelcastInstance member, int count) {
        Member local = member.getCluster().getLocalMember();
        List<Integer> keys = new ArrayList<>();
        for (int key = 0; keys.size() < count; key++) {
            if (local.equals(member.getPartitionService().getPartition(key).getOwner())) {
                keys.add(key);
            }
        }
        return keys;
    }
}
