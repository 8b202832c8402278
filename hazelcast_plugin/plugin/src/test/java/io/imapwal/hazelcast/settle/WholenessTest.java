package io.imapwal.hazelcast.settle;

import org.junit.jupiter.api.Test;

import java.util.UUID;

import static org.junit.jupiter.api.Assertions.assertEquals;

class WholenessTest {
    /** Until a former owner has left, the log may get changes that it or its places allow. */
    @Test
    void partitionWaitsForLeavingOwnerAlsoAfterALaterReason() {
        Wholeness wholeness = new Wholeness("orders", 10);
        UUID leaving = UUID.randomUUID();
        wholeness.doubt(3, leaving, false);
        wholeness.doubt(3, null, false);
        assertEquals(leaving, wholeness.unsettled(3).leaving);
        UUID later = UUID.randomUUID();
        wholeness.doubt(3, later, false);
        assertEquals(later, wholeness.unsettled(3).leaving);
    }
}
