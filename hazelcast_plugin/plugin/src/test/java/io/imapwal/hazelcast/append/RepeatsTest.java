package io.imapwal.hazelcast.append;

import io.imapwal.hazelcast.LogUnavailable;
import io.imapwal.hazelcast.OutcomeUnknown;
import org.junit.jupiter.api.Test;

import java.util.HashSet;
import java.util.Set;
import java.util.UUID;

import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertTrue;

class RepeatsTest {
    private static final UUID FIRST = new UUID(0, 1);
    private static final UUID SECOND = new UUID(0, 2);
    private final Set<UUID> present = new HashSet<>(Set.of(FIRST));
    private long now = Long.MAX_VALUE - 10;
    private final Repeats repeats = new Repeats(100, () -> present, () -> now);

    @Test
    void noOperationIsRepeatedWhileMembersOnlyJoin() {
        assertFalse(repeats.possible());
        present.add(SECOND);
        repeats.look();
        assertFalse(repeats.possible());
    }

    @Test
    void operationsAreRepeatedForSomeTimeAfterBegin() {
        repeats.begin();
        now += 99;
        assertTrue(repeats.possible());
        now += 1;
        assertFalse(repeats.possible());
    }

    @Test
    void memberThatLeftIsNoticedBeforeItIsReported() {
        present.add(SECOND);
        repeats.look();
        present.remove(SECOND);
        assertTrue(repeats.possible());
    }

    @Test
    void refusalOfRepeatedOperationIsAnUnknownOutcome() {
        LogUnavailable refusal = new LogUnavailable("no agent", null);
        assertSame(refusal, repeats.outcome("orders", refusal));
        repeats.begin();
        RuntimeException outcome = repeats.outcome("orders", refusal);
        assertInstanceOf(OutcomeUnknown.class, outcome);
        assertSame(refusal, outcome.getCause());
        assertTrue(outcome.getMessage().contains("The last attempt: no agent"),
                outcome.getMessage());
        RuntimeException other = new IllegalStateException();
        assertSame(other, repeats.outcome("orders", other));
    }
}
