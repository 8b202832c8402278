package io.imapwal.hazelcast.engine;

import com.hazelcast.logging.Logger;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;

import static io.imapwal.hazelcast.member.Members.eventually;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;

class CheckLoopTest {
    private final AtomicInteger checks = new AtomicInteger();
    private CheckLoop loop;

    private void start(CheckLoop.Check check) {
        loop = new CheckLoop("test", 1, Logger.getLogger(CheckLoopTest.class))
                .of(check);
        loop.request();
    }

    @AfterEach
    void close() {
        loop.close();
    }

    @Test
    void repeatsUntilThereIsNothingToDo() throws Exception {
        start(() -> checks.incrementAndGet() < 3);
        eventually(() -> !loop.isRunning());
        assertEquals(3, checks.get());
    }

    @Test
    void failedCheckIsRepeated() throws Exception {
        assertRepeatedAfter(() -> {
            throw new IllegalStateException("the member has no connections");
        });
    }

    /** Otherwise no later request would start another thread. */
    @Test
    void checkWithAnErrorIsRepeated() throws Exception {
        assertRepeatedAfter(() -> {
            throw new NoClassDefFoundError("of another version");
        });
    }

    private void assertRepeatedAfter(CheckLoop.Check failing) throws Exception {
        start(() -> checks.incrementAndGet() < 3 && failing.look());
        eventually(() -> !loop.isRunning());
        assertEquals(3, checks.get());
    }

    @Test
    void requestDuringTheLastCheckCausesAnother() throws Exception {
        CountDownLatch requested = new CountDownLatch(1);
        start(() -> {
            checks.incrementAndGet();
            requested.await();
            return false;
        });
        eventually(() -> checks.get() == 1);
        loop.request();
        requested.countDown();
        eventually(() -> !loop.isRunning());
        assertEquals(2, checks.get());
    }

    @Test
    void closedLoopEnds() throws Exception {
        start(() -> checks.incrementAndGet() > 0);
        eventually(() -> checks.get() > 0);
        loop.close();
        eventually(() -> !loop.isRunning());
        int before = checks.get();
        loop.request();
        assertFalse(loop.isRunning());
        assertEquals(before, checks.get());
    }
}
