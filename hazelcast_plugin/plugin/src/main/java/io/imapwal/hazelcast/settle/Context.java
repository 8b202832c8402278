package io.imapwal.hazelcast.settle;

import io.imapwal.hazelcast.append.AgentLinks;
import io.imapwal.hazelcast.append.Placements;
import io.imapwal.hazelcast.engine.ThisMember;
import io.imapwal.hazelcast.read.AgentReaders;

/** What the state of each map of a member needs. It is made once. */
public record Context(ThisMember member, AgentLinks links, AgentReaders readers,
        Placements placements, PartitionOwnership ownership, Reconciler reconciler) {
}
