package io.imapwal.hazelcast.append;

import org.junit.jupiter.api.Test;

import java.util.List;
import java.util.stream.IntStream;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;

class AppendQueueTest {
    private static final int MANY = AppendQueue.MAX_APPEND_CHANGES;
    private final AppendQueue queue = new AppendQueue();

    private static Change[] changes(int count) {
        return IntStream.range(0, count).mapToObj(Appends::change).toArray(Change[]::new);
    }

    private InFlightAppend take() {
        InFlightAppend append = new InFlightAppend();
        queue.moveTo(append);
        return append;
    }

    @Test
    void appendTakesCallersInTheirOrder() {
        Change[] changes = changes(3);
        queue.add(Appends.pending(changes[0]));
        queue.add(Appends.pending());
        queue.add(Appends.pending(changes[1], changes[2]));
        assertEquals(3, queue.changes());
        assertEquals(30, queue.bytes());
        InFlightAppend append = take();
        assertEquals(List.of(changes), append.changes);
        assertEquals(30, append.bytes);
        assertEquals(1, append.greetings.size());
        assertEquals(0, queue.changes() + queue.bytes());
        assertNull(queue.oldest());
    }

    @Test
    void tooLargeBatchIsSplit() {
        PendingAppend batch = Appends.pending(changes(MANY + 5));
        queue.add(batch);
        assertEquals(MANY, take().changes.size());
        assertSame(batch, queue.oldest());
        assertEquals(5, queue.changes());
        assertEquals(5, take().changes.size());
    }

    @Test
    void transactionIsNeverSplit() {
        queue.add(Appends.pending(changes(1)));
        queue.add(Appends.transaction(changes(MANY + 5)));
        assertEquals(1, take().changes.size());
        assertEquals(MANY + 5, take().changes.size());
    }

    @Test
    void largeChangeHasItsOwnAppend() {
        queue.add(Appends.pending(Appends.change(0)));
        queue.add(Appends.pending(Appends.change(1, AppendQueue.MAX_APPEND_BYTES + 1)));
        queue.add(Appends.pending(Appends.change(2)));
        for (int i = 0; i < 3; i++) {
            assertEquals(1, take().changes.size());
        }
    }

    @Test
    void removedCallerLeavesNoChangeInQueue() {
        PendingAppend batch = Appends.pending(changes(MANY + 5));
        queue.add(batch);
        take();
        queue.add(Appends.pending(changes(2)));
        queue.remove(batch);
        queue.remove(batch);
        assertEquals(2, queue.changes());
        assertEquals(20, queue.bytes());
    }
}
