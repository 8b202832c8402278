package io.imapwal.hazelcast.append;

import com.hazelcast.internal.serialization.Data;
import com.hazelcast.internal.serialization.impl.HeapData;
import io.imapwal.wire.Membership;
import io.imapwal.wire.SessionInfo;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.UUID;

/** Changes, sessions and doubts for tests without a member and without a socket. */
final class Appends {
    static final UUID CLUSTER = new UUID(1, 1);
    static final UUID MEMBER = new UUID(2, 2);

    private Appends() {
    }

    static PartitionStamp stamp(int partition) {
        return new PartitionStamp(CLUSTER, MEMBER, partition, 1, 1L << 32, 0);
    }

    static Change change(int partition) {
        return change(partition, 10);
    }

    static Change change(int partition, int bytes) {
        Data key = new HeapData(("12345678" + partition).getBytes(StandardCharsets.UTF_8));
        return new Change("orders", key, new byte[bytes], stamp(partition));
    }

    static PendingAppend pending(Change... changes) {
        return new PendingAppend(List.of(changes), false);
    }

    static PendingAppend transaction(Change... changes) {
        return new PendingAppend(List.of(changes), true);
    }

    static SessionInfo session(long number, long lastRequest) {
        return session(number, lastRequest, Map.of());
    }

    static SessionInfo session(long number, long lastRequest, Map<Long, Long> former) {
        return new SessionInfo(new Membership(CLUSTER, MEMBER), "node", number, number, lastRequest,
                former, 0, 0, true);
    }

    /** An append of the changes, which have no request numbers yet. */
    static InFlightAppend unsent(List<Change> changes) {
        InFlightAppend append = new InFlightAppend();
        append.changes.addAll(changes);
        return append;
    }

    /** An append of the changes, which have the request numbers from 1 on. */
    static InFlightAppend numbered(SessionInfo session, Change... changes) {
        InFlightAppend append = unsent(List.of(changes));
        for (int i = 0; i < changes.length; i++) {
            changes[i].request = i + 1;
        }
        append.number(new ArrayList<>(append.changes), session);
        return append;
    }

    /** No member leaves, and no partition moves. */
    static final Repeats NO_REPEATS = new Repeats(0, java.util.Set::of, () -> 0);

    /** Records the changes in doubt. */
    static final class Doubts implements Outcomes.Doubts {
        final List<Change> added = new ArrayList<>();
        boolean ahead;

        @Override
        public void add(Change change, long welcomes, long session) {
            added.add(change);
        }

        @Override
        public boolean isAhead(String map, Data key) {
            return ahead;
        }
    }
}
