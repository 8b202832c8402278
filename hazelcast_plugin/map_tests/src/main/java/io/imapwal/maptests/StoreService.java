package io.imapwal.maptests;

import com.hazelcast.internal.services.ManagedService;
import com.hazelcast.spi.impl.NodeEngine;
import com.hazelcast.spi.impl.servicemanager.ServiceDescriptor;
import com.hazelcast.spi.impl.servicemanager.ServiceDescriptorProvider;

import java.util.Properties;

/** Tells {@link Stores} of members that start or end. META-INF/services names the provider. */
public final class StoreService implements ManagedService {
    private final NodeEngine nodeEngine;

    StoreService(NodeEngine nodeEngine) {
        this.nodeEngine = nodeEngine;
        // The configuration of a map may be asked for before the services are initialised.
        Stores.started(nodeEngine);
    }

    @Override
    public void init(NodeEngine nodeEngine, Properties properties) {
    }

    @Override
    public void reset() {
    }

    @Override
    public void shutdown(boolean terminate) {
        Stores.ended(nodeEngine);
    }

    /** Makes this a service of each member. */
    public static final class Provider implements ServiceDescriptorProvider {
        @Override
        public ServiceDescriptor[] createServiceDescriptors() {
            return new ServiceDescriptor[] {new ServiceDescriptor() {
                @Override
                public String getServiceName() {
                    return "map-tests";
                }

                @Override
                public Object getService(NodeEngine nodeEngine) {
                    return new StoreService(nodeEngine);
                }
            }};
        }
    }
}
