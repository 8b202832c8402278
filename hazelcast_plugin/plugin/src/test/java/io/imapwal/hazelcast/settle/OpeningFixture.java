package io.imapwal.hazelcast.settle;

import com.hazelcast.config.Config;
import com.hazelcast.config.MapConfig;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.map.impl.MapService;
import com.hazelcast.map.impl.MapServiceContext;
import io.imapwal.hazelcast.member.FakeAgent;
import io.imapwal.hazelcast.member.Members;
import io.imapwal.hazelcast.member.TestCluster;
import io.imapwal.hazelcast.member.WalPlugin;
import org.junit.jupiter.api.AfterEach;

import java.util.List;

/** Members of one cluster whose maps give up a restore after a few seconds. */
public abstract class OpeningFixture {
    public final TestCluster cluster = new TestCluster("opening");
    public final List<FakeAgent> agents = cluster.agents;
    public final int port = cluster.port;
    public boolean lite;

    public HazelcastInstance start(int number) throws Exception {
        FakeAgent agent = cluster.startAgent();
        Config config = cluster.config(number, agent);
        config.setLiteMember(lite);
        MapConfig map = Members.map("orders", agent.endpoint());
        map.getMapStoreConfig().setProperty("restore-timeout-ms", "3000");
        map.getMapStoreConfig().setProperty("connect-timeout-ms", "1000");
        config.addMapConfig(map);
        return cluster.start(config);
    }

    public static MapServiceContext context(HazelcastInstance member) {
        MapService service = WalPlugin.of(member).member().nodeEngine()
                .getService(MapService.SERVICE_NAME);
        return service.getMapServiceContext();
    }

    @AfterEach
    public void stop() throws Exception {
        cluster.stop();
    }
}
