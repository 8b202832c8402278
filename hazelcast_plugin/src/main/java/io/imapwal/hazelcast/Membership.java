package io.imapwal.hazelcast;

import com.hazelcast.internal.util.UUIDSerializationUtil;
import com.hazelcast.nio.ObjectDataInput;
import com.hazelcast.nio.ObjectDataOutput;

import java.io.IOException;
import java.util.UUID;

/**
 * The cluster that a member is in, and its UUID there. A member that joins another cluster, or the
 * same one again, has no entries, and gets a new UUID. What it learned or sent before does not
 * count then.
 *
 * @param clusterId null while the member has not joined a cluster
 */
record Membership(UUID clusterId, UUID member) {
    void write(ObjectDataOutput out) throws IOException {
        UUIDSerializationUtil.writeUUID(out, clusterId);
        UUIDSerializationUtil.writeUUID(out, member);
    }

    static Membership read(ObjectDataInput in) throws IOException {
        return new Membership(UUIDSerializationUtil.readUUID(in),
                UUIDSerializationUtil.readUUID(in));
    }
}
