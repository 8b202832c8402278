package io.imapwal.hazelcast;

import com.hazelcast.spi.impl.NodeEngine;
import com.hazelcast.spi.impl.servicemanager.ServiceDescriptor;
import com.hazelcast.spi.impl.servicemanager.ServiceDescriptorProvider;

/**
 * Makes {@link PartitionOwnership} a service of each member that has the plug-in's jar:
 * META-INF/services names this class.
 */
public final class OwnershipProvider implements ServiceDescriptorProvider {

    @Override
    public ServiceDescriptor[] createServiceDescriptors() {
        return new ServiceDescriptor[] {new ServiceDescriptor() {
            @Override
            public String getServiceName() {
                return PartitionOwnership.NAME;
            }

            @Override
            public Object getService(NodeEngine nodeEngine) {
                return new PartitionOwnership(nodeEngine);
            }
        }};
    }
}
