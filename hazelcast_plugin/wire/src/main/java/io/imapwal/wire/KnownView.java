package io.imapwal.wire;

import java.util.Collections;
import java.util.HashSet;
import java.util.Set;
import java.util.UUID;

/**
 * The newest view of one log that this member knows for its cluster. Each hello has its number: a
 * member that joined after the view was claimed is not in the view's list, but may write because it
 * knows the view.
 *
 * <p>It is valid for one cluster id and one member UUID. Hazelcast gives new ones to members that
 * merge, and for those no view is known.
 */
public final class KnownView {
    private UUID clusterId;
    private UUID member;
    private long number;
    private Set<UUID> without = Collections.emptySet();
    private UUID barred;
    private String why;

    /**
     * This member was left out, and has dropped its maps. It sends no hello until it has another
     * UUID.
     */
    public synchronized void bar(UUID out, String reason) {
        barred = out;
        why = reason;
    }

    /** Why this member must not say hello; null: it may. */
    public synchronized String barred(UUID ofMember) {
        return ofMember.equals(barred) ? why : null;
    }

    /** 0: unknown. */
    public synchronized long of(UUID ofCluster, UUID ofMember) {
        return ofCluster != null && ofCluster.equals(clusterId) && ofMember.equals(member) ? number
                : 0;
    }

    public synchronized void learn(UUID ofCluster, UUID ofMember, long view) {
        if (of(ofCluster, ofMember) == 0) {
            without = Collections.emptySet();
        }
        number = Math.max(view, of(ofCluster, ofMember));
        clusterId = ofCluster;
        member = ofMember;
    }

    /**
     * The view was claimed, or found, without these members. They cannot return with their UUIDs.
     */
    public synchronized void learnWithout(UUID ofCluster, UUID ofMember, Set<UUID> lost) {
        if (of(ofCluster, ofMember) != 0) {
            without = new HashSet<>(lost);
        }
    }

    public synchronized boolean without(UUID ofCluster, UUID ofMember, Set<UUID> lost) {
        return of(ofCluster, ofMember) != 0 && without.containsAll(lost);
    }
}
