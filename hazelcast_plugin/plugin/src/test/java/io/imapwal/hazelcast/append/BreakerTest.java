package io.imapwal.hazelcast.append;

import org.junit.jupiter.api.Test;

import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

class BreakerTest {
    private long nowNanos = 1;
    private long answeredNanos;
    private final Breaker breaker = new Breaker(() -> nowNanos, () -> answeredNanos);

    private void pass(long ms) {
        nowNanos += ms * 1_000_000;
    }

    private boolean allowsAfter(long ms) {
        pass(ms);
        answeredNanos = nowNanos;
        return breaker.allows();
    }

    @Test
    void agentWithoutFailureIsUsed() {
        assertTrue(breaker.allows());
        breaker.used();
        assertTrue(breaker.allows());
    }

    @Test
    void failedAgentIsUsedAfterPauseIfItAnswers() {
        breaker.failed();
        pass(10 * Breaker.PAUSE_MAX_MS);
        assertFalse(breaker.allows(), "it has not answered since");
        answeredNanos = nowNanos;
        assertTrue(breaker.allows());
    }

    @Test
    void pauseGrowsWhileItFails() {
        breaker.failed();
        assertFalse(allowsAfter(2 * Breaker.PAUSE_MIN_MS));
        assertTrue(allowsAfter(1));
        breaker.used();
        breaker.failed();
        assertFalse(allowsAfter(4 * Breaker.PAUSE_MIN_MS));
        assertTrue(allowsAfter(1));
        for (int i = 0; i < 30; i++) {
            breaker.failed();
        }
        assertFalse(allowsAfter(Breaker.PAUSE_MAX_MS));
        assertTrue(allowsAfter(1));
    }

    @Test
    void agentThatWasUsedLongHasShortPause() {
        for (int i = 0; i < 30; i++) {
            breaker.failed();
        }
        assertTrue(allowsAfter(Breaker.PAUSE_MAX_MS + 1));
        breaker.used();
        pass(Breaker.WELL_MS + 1);
        breaker.failed();
        assertTrue(allowsAfter(Breaker.PAUSE_MIN_MS + 1));
    }
}
