package io.imapwal.hazelcast.settle;

import org.junit.jupiter.api.Test;

import java.util.Set;
import java.util.UUID;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

class DeparturesTest {
    private static final long GRACE = 1_500_000_000;
    private static final long QUIET = 200_000_000;
    private int present = 3;
    private long now = 7;
    private final Departures departures = new Departures(GRACE, () -> present, () -> now);

    @Test
    void withoutDeparturesThereIsNoWait() {
        assertTrue(departures.turnNanos() <= 0);
    }

    @Test
    void largerPartWaitsOnlyForMoreDepartures() {
        present = 5;
        lose(1);
        assertEquals(QUIET, departures.turnNanos());
        now += QUIET / 2;
        lose(1);
        assertEquals(QUIET, departures.turnNanos(), "one more has left");
        now += QUIET;
        assertEquals(0, departures.turnNanos());
    }

    @Test
    void smallerPartLetsOthersClaimFirst() {
        lose(1);
        now += 1_000;
        lose(1);
        assertEquals(GRACE, departures.turnNanos());
        now += GRACE;
        assertEquals(0, departures.turnNanos(), "no part claimed");
    }

    @Test
    void equalHalvesDoNotWaitForEachOther() {
        present = 4;
        lose(2);
        assertEquals(QUIET, departures.turnNanos());
    }

    @Test
    void earlierDeparturesAreNotCounted() {
        lose(1);
        now += 2 * GRACE;
        present = 2;
        lose(1);
        assertEquals(QUIET, departures.turnNanos(),
                "one of two is left, and the other one was lost before");
    }

    @Test
    void memberIsCountedFromItsFirstReport() {
        UUID member = UUID.randomUUID();
        departures.add(Set.of(member));
        now += QUIET;
        departures.add(Set.of(member));
        assertEquals(0, departures.turnNanos());
        assertEquals(Set.of(member), departures.members());
        departures.clear();
        assertEquals(Set.of(), departures.members());
    }

    private void lose(int count) {
        for (int i = 0; i < count; i++) {
            departures.add(Set.of(UUID.randomUUID()));
            present--;
        }
    }
}
