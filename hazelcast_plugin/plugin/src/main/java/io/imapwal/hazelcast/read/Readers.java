package io.imapwal.hazelcast.read;

import java.io.Closeable;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentLinkedDeque;
import java.util.function.Supplier;

/**
 * The readers of one agent. A few idle ones are kept for the next user, because a new connection
 * costs more than most reads.
 */
public final class Readers implements Closeable {
    private static final int IDLE_MAX = 8;

    private final Supplier<AgentReader> make;
    /** For single keys. */
    private final AgentReader shared;
    /** For questions about maps. The first one may wait until the agent has merged all logs. */
    private final AgentReader questions;
    private final Deque<AgentReader> idle = new ConcurrentLinkedDeque<>();
    private List<Question> waiting = new ArrayList<>();
    /** A request is under way. */
    private boolean asking;
    private volatile boolean closed;

    public Readers(Supplier<AgentReader> make) {
        this.make = make;
        this.shared = make.get();
        this.questions = make.get();
    }

    public AgentReader shared() {
        return shared;
    }

    /** A reader for long tasks. No other caller uses it until it is closed. */
    public Loan borrow() {
        AgentReader reader = idle.poll();
        return new Loan(reader == null ? make.get() : reader);
    }

    /** A borrowed reader. */
    public final class Loan implements Closeable {
        private final AgentReader reader;

        private Loan(AgentReader reader) {
            this.reader = reader;
        }

        public AgentReader reader() {
            return reader;
        }

        @Override
        public void close() {
            if (idle.size() < IDLE_MAX) {
                idle.push(reader);
            } else {
                reader.close();
            }
            if (closed) {
                closeIdle();
            }
        }
    }

    private static final class Question {
        private final String map;
        /** Null: not answered yet. */
        private volatile Boolean known;
        private volatile String wrong;

        private Question(String map) {
            this.map = map;
        }
    }

    /**
     * Whether the log has anything of a map. Thousands of maps may be opened at the same time, so
     * one request asks for all maps whose callers waited during the request before it.
     */
    public boolean known(String map) throws IOException {
        Question mine = new Question(map);
        boolean interrupted = false;
        synchronized (this) {
            waiting.add(mine);
            while (mine.known == null && asking) {
                try {
                    wait();
                } catch (InterruptedException e) {
                    interrupted = true;
                }
            }
            asking |= mine.known == null;
        }
        try {
            if (mine.known == null) {
                answer(mine);
            }
        } finally {
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
        if (mine.wrong != null) {
            throw new IOException(mine.wrong);
        }
        return mine.known;
    }

    /** If the agent cannot be asked, each other caller asks again, and gets the error itself. */
    private void answer(Question mine) throws IOException {
        List<Question> together;
        synchronized (this) {
            together = waiting;
            waiting = new ArrayList<>();
        }
        Set<String> maps = new HashSet<>();
        together.forEach(each -> maps.add(each.map));
        boolean answered = false;
        try {
            AgentReader.Maps found = questions.maps(maps);
            together.forEach(each -> {
                each.wrong = found.wrong().get(each.map);
                each.known = found.known().contains(each.map);
            });
            answered = true;
        } finally {
            synchronized (this) {
                if (!answered) {
                    together.remove(mine);
                    waiting.addAll(together);
                }
                asking = false;
                notifyAll();
            }
        }
    }

    @Override
    public void close() {
        closed = true;
        shared.close();
        questions.close();
        closeIdle();
    }

    private void closeIdle() {
        for (AgentReader reader; (reader = idle.poll()) != null;) {
            reader.close();
        }
    }
}
