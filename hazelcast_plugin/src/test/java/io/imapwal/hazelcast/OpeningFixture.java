package io.imapwal.hazelcast;

import com.hazelcast.config.Config;
import com.hazelcast.config.MapConfig;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.map.impl.MapService;
import com.hazelcast.map.impl.MapServiceContext;
import org.junit.jupiter.api.AfterEach;

import java.util.List;

/** Members of one cluster whose maps give up a restore after a few seconds. */
abstract class OpeningFixture {
    final TestCluster cluster = new TestCluster("opening");
    final List<FakeAgent> agents = cluster.agents;
    final int port = cluster.port;
    boolean lite;

    HazelcastInstance start(int number) throws Exception {
        FakeAgent agent = cluster.startAgent();
        Config config = cluster.config(number, agent);
        config.setLiteMember(lite);
        MapConfig map = Members.map("orders", agent.endpoint());
        map.getMapStoreConfig().setProperty("restore-timeout-ms", "3000");
        map.getMapStoreConfig().setProperty("connect-timeout-ms", "1000");
        config.addMapConfig(map);
        return cluster.start(config);
    }

    static MapServiceContext context(HazelcastInstance member) {
        MapService service = WalPlugin.of(member).nodeEngine().getService(MapService.SERVICE_NAME);
        return service.getMapServiceContext();
    }

    @AfterEach
    void stop() throws Exception {
        cluster.stop();
    }
}
