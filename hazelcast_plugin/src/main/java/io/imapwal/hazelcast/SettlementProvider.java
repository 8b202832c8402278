package io.imapwal.hazelcast;

import com.hazelcast.spi.impl.NodeEngine;
import com.hazelcast.spi.impl.servicemanager.ServiceDescriptor;
import com.hazelcast.spi.impl.servicemanager.ServiceDescriptorProvider;

/** Named in META-INF/services, so that each member with the plug-in's jar has the service. */
public final class SettlementProvider implements ServiceDescriptorProvider {

    @Override
    public ServiceDescriptor[] createServiceDescriptors() {
        return new ServiceDescriptor[] {new ServiceDescriptor() {
            @Override
            public String getServiceName() {
                return SettlementService.NAME;
            }

            @Override
            public Object getService(NodeEngine nodeEngine) {
                return new SettlementService(nodeEngine);
            }
        }};
    }
}
