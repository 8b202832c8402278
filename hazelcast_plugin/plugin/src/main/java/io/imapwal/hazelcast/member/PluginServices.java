package io.imapwal.hazelcast.member;

import com.hazelcast.spi.impl.NodeEngine;
import com.hazelcast.spi.impl.servicemanager.ServiceDescriptor;
import com.hazelcast.spi.impl.servicemanager.ServiceDescriptorProvider;
import io.imapwal.hazelcast.engine.Composed;
import io.imapwal.hazelcast.settle.PartitionMoves;

import java.util.function.Function;

/**
 * Makes the services of each member that has the plug-in's jar: META-INF/services names this class.
 */
public final class PluginServices implements ServiceDescriptorProvider {

    @Override
    public ServiceDescriptor[] createServiceDescriptors() {
        return new ServiceDescriptor[] {
            service(Composed.NAME, nodeEngine -> Composed.install(nodeEngine, WalPlugin::compose)),
            service(Durability.NAME, Durability::new),
            service(PartitionMoves.NAME, PartitionMoves::new),
            service(MapServiceHooks.NAME, nodeEngine -> new MapServiceHooks())};
    }

    private static ServiceDescriptor service(String name, Function<NodeEngine, Object> make) {
        return new ServiceDescriptor() {
            @Override
            public String getServiceName() {
                return name;
            }

            @Override
            public Object getService(NodeEngine nodeEngine) {
                return make.apply(nodeEngine);
            }
        };
    }
}
