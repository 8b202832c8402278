package io.imapwal.hazelcast.engine;

import com.hazelcast.spi.impl.AllowedDuringPassiveState;
import com.hazelcast.spi.impl.operationservice.UrgentSystemOperation;

/**
 * A short operation of the plug-in on a member, not on a partition. It does not wait for a generic
 * thread. A destroy of a map occupies one until no partition is being migrated, at most 30 s, and a
 * migration may wait until a member has opened a map with the help of these operations. Members
 * that are leaving the cluster send and run them too.
 */
public interface MemberOperation extends UrgentSystemOperation, AllowedDuringPassiveState {
}
