package io.imapwal.hazelcast;

import com.hazelcast.cluster.Member;
import com.hazelcast.config.Config;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.internal.serialization.Data;
import com.hazelcast.map.IMap;

import java.util.ArrayList;
import java.util.List;

import static io.imapwal.hazelcast.Members.eventually;

/** Members of one cluster. Each has an agent of its own. All agents have the same log. */
final class TestCluster {
    final FakeLog log = new FakeLog();
    final List<FakeAgent> agents = new ArrayList<>();
    final List<HazelcastInstance> members = new ArrayList<>();
    final int port = Members.port();
    private final String name;

    TestCluster(String name) {
        this.name = name;
    }

    FakeAgent startAgent() throws Exception {
        FakeAgent agent = new FakeAgent(log).start();
        agents.add(agent);
        return agent;
    }

    /** Operations are retried for 25 s, which is longer than a partition waits to be settled. */
    Config config(int number, FakeAgent agent) {
        Config config = Members.config(name, port + number, agent.endpoint());
        config.setProperty("hazelcast.invocation.max.retry.count", "250");
        return config;
    }

    HazelcastInstance start(Config config) {
        HazelcastInstance member = Members.start(config);
        members.add(member);
        return member;
    }

    void stop() throws Exception {
        members.forEach(member -> member.getLifecycleService().terminate());
        for (FakeAgent agent : agents) {
            agent.close();
        }
    }

    /** Returns when each partition has its backups. */
    void awaitSafe() throws Exception {
        eventually(() -> members.stream().filter(each -> each.getLifecycleService().isRunning())
                .allMatch(each -> each.getPartitionService().isClusterSafe()));
    }

    /**
     * Puts a change of map "orders" into the log only, as if its owner had died before it answered.
     *
     * @param value null: the key is deleted
     */
    void logOnly(HazelcastInstance member, Object key, Object value, long expiresAtMs) {
        Data data = WalPlugin.of(member).nodeEngine().toData(key);
        byte[] bytes = value == null ? null
                : WalPlugin.of(member).nodeEngine().toData(value).toByteArray();
        int partition = member.getPartitionService().getPartition(key).getPartitionId();
        log.put("orders", new FakeLog.Record(data.toByteArray(), "", bytes, "", value == null,
                expiresAtMs, partition, List.of(1L, 1_000_000L << 32, 1L, 1L)));
    }

    /** Sets each number below count to itself. */
    static void fill(IMap<Integer, Integer> map, int count) {
        for (int i = 0; i < count; i++) {
            map.set(i, i);
        }
    }

    /** The first keys of the partitions that a member owns. */
    static List<Integer> owned(HazelcastInstance member, int count) {
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
