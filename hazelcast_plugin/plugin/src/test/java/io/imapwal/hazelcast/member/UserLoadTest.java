package io.imapwal.hazelcast.member;

import org.junit.jupiter.api.Test;

import java.util.concurrent.CompletableFuture;
import java.util.function.BiFunction;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

/** Hazelcast asks on one thread how far a load is that another thread ends. */
class UserLoadTest {
    private final UserLoad load = new UserLoad();

    /** A load that another thread ends while it is asked whether it has ended. */
    private static final class EndsWhenAsked extends CompletableFuture<Object> {
        private final CompletableFuture<Object> ends;

        private EndsWhenAsked(CompletableFuture<Object> ends) {
            this.ends = ends;
        }

        @Override
        @SuppressWarnings("unchecked")
        public <U> CompletableFuture<U> handle(
                BiFunction<? super Object, Throwable, ? extends U> action) {
            ends.handle(action);
            return (CompletableFuture<U>) this;
        }

        @Override
        public boolean isDone() {
            ends.completeExceptionally(new IllegalStateException("the disk is gone"));
            return true;
        }
    }

    @Test
    void failureIsKnownWhenTheLoadHasEnded() {
        load.add(new EndsWhenAsked(new CompletableFuture<>()));
        UserLoad.Progress progress = load.progress();
        assertTrue(progress.done());
        assertNotNull(progress.failure());
        assertEquals("the disk is gone", progress.failure().getMessage());
    }

    @Test
    void anotherLoadForgetsTheFailure() {
        load.fail(new IllegalStateException("the disk is gone"));
        load.begin();
        load.add(new CompletableFuture<>());
        assertFalse(load.progress().done());
        assertNull(load.progress().failure());
    }
}
