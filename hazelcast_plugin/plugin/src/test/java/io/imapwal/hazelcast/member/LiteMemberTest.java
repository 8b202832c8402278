package io.imapwal.hazelcast.member;

import com.hazelcast.client.HazelcastClient;
import com.hazelcast.client.config.ClientConfig;
import com.hazelcast.core.HazelcastInstance;
import io.imapwal.hazelcast.settle.OpeningFixture;
import org.junit.jupiter.api.Test;

import static org.junit.jupiter.api.Assertions.assertEquals;

/** Clusters with a lite member, which has no agent. */
class LiteMemberTest extends OpeningFixture {
    @Test
    void mapDestroyedByLiteMemberStaysEmpty() throws Exception {
        HazelcastInstance a = start(0);
        lite = true;
        HazelcastInstance b = start(1);
        agents.get(1).stop();
        TestCluster.fill(a.getMap("orders"), 50);
        b.getMap("orders").destroy();
        assertEquals(0, a.getMap("orders").size());
        assertEquals(0, cluster.log.size("orders"));
    }

    @Test
    void mapDestroyedByClientWithLiteMasterStaysEmpty() throws Exception {
        lite = true;
        start(0);
        agents.get(0).stop();
        lite = false;
        HazelcastInstance b = start(1);
        TestCluster.fill(b.getMap("orders"), 50);
        ClientConfig config = new ClientConfig();
        config.setClusterName(b.getConfig().getClusterName());
        config.getNetworkConfig().addAddress("127.0.0.1:" + (port + 1));
        HazelcastInstance client = HazelcastClient.newHazelcastClient(config);
        try {
            client.getMap("orders").destroy();
        } finally {
            client.shutdown();
        }
        assertEquals(0, b.getMap("orders").size());
        assertEquals(0, cluster.log.size("orders"));
    }
}
