package io.imapwal.hazelcast.append;

import com.hazelcast.logging.ILogger;
import io.imapwal.wire.AgentError;
import io.imapwal.wire.Candidates;
import io.imapwal.wire.Copies;
import io.imapwal.wire.HungAgent;
import io.imapwal.wire.MsgpackWriter;
import io.imapwal.wire.SessionInfo;

import java.io.IOException;
import java.net.SocketTimeoutException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;

/**
 * The connections to the agents that get each append, as one connection: it is greeted when all
 * are, and broken when one is. The next one is made of agents that answer. So {@link AgentWriter}
 * handles an agent that fails as a connection that breaks: it sends all appends without an outcome
 * again, in their order and with their numbers. An agent that has one already acknowledges it
 * again. Acknowledged changes that it lacks are sent to it before, see {@link Backlog}.
 *
 * <pre>
 * own agent, then the others in their order, without those that a Breaker leaves out
 *    the first `copies` that greet   members: each append is sent to all of them
 *    an append is acknowledged       when `acks` members have acknowledged it
 *    a member fails, refuses, or is  it is left out for a while, and the ensemble is broken. If the
 *    slow while another can replace  others are enough for `acks`, it is only made again before the
 *    it                              next append
 *    fewer than `acks` members       no connection
 * </pre>
 */
final class Ensemble implements AppendConnection {
    private static final int ROUNDS = 3;
    /** An agent closes a connection with more than twice this many unanswered requests. */
    private static final int UNANSWERED_MAX = 32;

    private final Copies copies;
    private final Candidates agents;
    private final List<CopyAgent> all = new ArrayList<>();
    private final ILogger logger;
    private final Backlog backlog;
    private final Runnable incomplete;
    /** How long callers wait for copies of earlier changes. */
    private final long copyingNanos;
    private MsgpackWriter payload = new MsgpackWriter(1024);
    private long ticket;
    /** The appends without an outcome, by ticket. */
    private final Map<Long, Backlog.Append> open = new ConcurrentHashMap<>();
    private long written;

    private volatile List<CopyAgent> members = List.of();
    /** The session of the members; null: there are no members. */
    private volatile SessionInfo session;
    private volatile SessionInfo newest;
    private volatile IOException lastFailure;
    private volatile long welcomes;
    /** An agent that is not a member may still append what it was sent. */
    private boolean owed;
    /** A member has failed, and the others are enough for the present appends. */
    private volatile boolean worn;
    private volatile boolean recheck;
    private volatile boolean closing;

    /**
     * @param connections to the candidates, in their order
     * @param incomplete  is called when {@link #isIncomplete} has become true; it returns at once
     */
    Ensemble(Copies copies, Candidates agents, List<WriteConnection> connections,
             Runnable incomplete, ILogger logger) {
        this.copies = copies;
        this.agents = agents;
        this.incomplete = incomplete;
        this.logger = logger;
        this.backlog = new Backlog(copies.count(), copies.again());
        this.copyingNanos = TimeUnit.MILLISECONDS.toNanos(Math.min(copies.slowMs(),
                agents.own().settings().timeoutMs() / 4));
        for (int i = 0; i < connections.size(); i++) {
            Candidates.Candidate one = agents.all().get(i);
            all.add(new CopyAgent(connections.get(i),
                    new Breaker(System::nanoTime, one.identity().pulse()::turnedNanos),
                    "agent " + one.settings().agent(), backlog));
        }
    }

    @Override
    public SessionInfo newest() {
        return newest;
    }

    @Override
    public SessionInfo session() {
        return session;
    }

    @Override
    public IOException failure() {
        return lastFailure;
    }

    @Override
    public void failed(IOException cause) {
        lastFailure = cause;
    }

    /**
     * How many ensembles were greeted whose former members append nothing more of what they were
     * sent before.
     */
    @Override
    public long welcomes() {
        return welcomes;
    }

    @Override
    public void learned() {
        all.forEach(each -> each.connection.learned());
    }

    @Override
    public void recheck() {
        recheck = true;
    }

    @Override
    public void stop() {
        closing = true;
        all.forEach(each -> each.connection.stop());
    }

    @Override
    public CopyCounts counts() {
        return backlog.counts();
    }

    @Override
    public boolean isIncomplete() {
        return worn || backlog.waiting() > 0;
    }

    @Override
    public int usable() {
        return (int) all.stream().filter(each -> members.contains(each)
                || each.breaker.allows() && !each.connection.isPaused()).count();
    }

    @Override
    public boolean isReady() {
        return isWhole() && members.stream().allMatch(each -> each.connection.isReady());
    }

    /** Whether there is an ensemble, in the newest view, and no better one can be made now. */
    private boolean isWhole() {
        List<CopyAgent> now = members;
        if (now.isEmpty() || worn || recheck
                || !now.stream().allMatch(each -> each.connection.isCurrent())) {
            return false;
        }
        return now.size() == copies.count() && now.contains(all.get(0))
                || all.stream().allMatch(each -> now.contains(each) || !each.breaker.allows()
                    || now.size() == copies.count() && each != all.get(0));
    }

    @Override
    public SessionInfo greet() throws IOException {
        if (closing) {
            throw new IOException("the member is shutting down");
        }
        if (backlog.waiting() > 0 && isWhole()) {
            takeAnswers();
        }
        if (!isWhole()) {
            if (recheck) {
                recheck = false;
                all.forEach(each -> each.connection.recheck());
            }
            disconnect();
            try {
                make();
            } catch (IOException e) {
                backlog.takeBack();
                throw e;
            }
        } else if (owed) {
            settle();
        }
        return session;
    }

    /** Copies of earlier changes are acknowledged, perhaps late. */
    private void takeAnswers() {
        for (CopyAgent each : members) {
            try {
                each.takeAnswers();
            } catch (IOException e) {
                fail(each, e);
                worn = true;
            }
        }
    }

    private void make() throws IOException {
        long leftNanos = copyingNanos;
        for (int round = 0; round < ROUNDS; round++) {
            List<CopyAgent> chosen = choose();
            if (chosen.stream().allMatch(each -> each.connection.isCurrent())) {
                SessionInfo now = joined(chosen);
                backlog.decide(now);
                long from = System.nanoTime();
                if (round < ROUNDS - 1 && !copyAgain(chosen, from + leftNanos)) {
                    leftNanos -= System.nanoTime() - from;
                    continue;
                }
                backlog.finish(chosen.stream().map(each -> each.connection.session().node())
                        .collect(Collectors.toSet()));
                members = List.copyOf(chosen);
                session = newest = now;
                worn = false;
                lastFailure = null;
                owed = true;
                settle();
                logger.info("imap-wal: changes are appended by " + members + ", in session "
                        + session.session() + " of incarnation " + session.incarnation());
                return;
            }
        }
        all.forEach(CopyAgent::disconnect);
        throw lastFailure = new IOException("the agents are in different views; they may not know"
                + " the newest one yet");
    }

    /**
     * Sends the members what they lack. Callers wait meanwhile, so nothing more is sent after some
     * time. Then a member cannot get it any more, because it gets later requests.
     *
     * @return false: one has failed, and is left out
     */
    private boolean copyAgain(List<CopyAgent> chosen, long untilNanos) {
        boolean well = true;
        for (CopyAgent each : chosen) {
            try {
                int sent = each.copyAgain(ticket, untilNanos, untilNanos + copyingNanos / 2);
                if (sent > 0) {
                    logger.info("imap-wal: " + sent + " acknowledged change(s) that " + each
                            + " lacks were sent to it");
                }
            } catch (IOException e) {
                fail(each, e);
                each.disconnect();
                well = false;
            }
        }
        return well;
    }

    private void fail(CopyAgent agent, IOException cause) {
        if (!AgentError.isVoid(cause)) {  // then the agent works, in a newer view
            agent.breaker.failed();
        }
        logger.warning("imap-wal: " + agent + " is left out for a while: "
                + AgentError.reason(cause));
    }

    /**
     * Greets as many agents as there should be copies; if too few of those that the breakers allow
     * answer, also the others.
     */
    private List<CopyAgent> choose() throws IOException {
        List<CopyAgent> order = new ArrayList<>(all.stream().filter(each -> each.breaker.allows())
                .toList());
        int allowed = order.size();
        all.stream().filter(each -> !order.contains(each)).forEach(order::add);
        List<CopyAgent> chosen = new ArrayList<>();
        IOException why = null;
        for (int i = 0; i < order.size(); i++) {
            int enough = i < allowed ? copies.count() : copies.acks();
            CopyAgent each = order.get(i);
            if (chosen.size() >= enough) {
                continue;
            }
            try {
                greet(each, chosen);
            } catch (IOException e) {
                boolean waits = e instanceof AgentError && !agents.isGreeted();
                if (AgentError.isVoid(e) || waits) {
                    all.forEach(CopyAgent::disconnect);
                    throw lastFailure = e;
                }
                each.breaker.failed();
                why = why == null ? e : why;
            }
        }
        if (chosen.size() < copies.acks()) {
            chosen.forEach(CopyAgent::disconnect);
            throw lastFailure = new IOException(chosen.size() + " of " + all.size()
                    + " agents can be used, and a change needs " + copies.acks() + " (acks): "
                    + AgentError.reason(why), why);
        }
        return chosen;
    }

    private static void greet(CopyAgent agent, List<CopyAgent> chosen) throws IOException {
        String node = agent.greet().node();
        for (CopyAgent each : chosen) {
            if (each.connection.session().node().equals(node)) {
                agent.connection.disconnect();
                throw new IOException(agent + " and " + each + " are of one node, " + node
                        + ": two copies would be in one log");
            }
        }
        agent.breaker.used();
        chosen.add(agent);
    }

    /** The welcomes of the members as one: a request counts if at least `acks` members have it. */
    private SessionInfo joined(List<CopyAgent> chosen) {
        List<SessionInfo> said = chosen.stream().map(each -> each.connection.session()).toList();
        SessionInfo first = said.get(0);
        Map<Long, Long> former = new HashMap<>();
        for (SessionInfo one : said) {
            for (long earlier : one.former().keySet()) {
                former.put(earlier, counted(said.stream()
                        .map(each -> each.former().getOrDefault(earlier, -1L)).toList()));
            }
        }
        return new SessionInfo(first.membership(), first.node(), first.session(),
                first.incarnation(), counted(said.stream().map(SessionInfo::lastRequest).toList()),
                former, least(said.stream().map(SessionInfo::maxValueBytes).toList()),
                least(said.stream().map(SessionInfo::maxMessageBytes).toList()), false);
    }

    private long counted(List<Long> requests) {
        List<Long> sorted = requests.stream().sorted().toList();
        return sorted.get(sorted.size() - copies.acks());
    }

    private static long least(List<Long> limits) {
        return limits.stream().filter(each -> each > 0).min(Long::compare).orElse(0L);
    }

    /** Counts a welcome if no agent may still append what it was sent before. */
    private void settle() {
        for (CopyAgent each : all) {
            each.follow(session.incarnation());
            if (each.mayStillAppend() && !members.contains(each) && each.breaker.allows()) {
                try {
                    each.shutOut();
                } catch (IOException e) {
                    each.breaker.failed();
                }
            }
        }
        if (all.stream().noneMatch(CopyAgent::mayStillAppend)) {
            owed = false;
            welcomes++;
        }
    }

    @Override
    public void logSchemas(long deadlineNanos) throws IOException {
        for (CopyAgent each : members) {
            try {
                each.logSchemas(soon(deadlineNanos), deadlineNanos);
            } catch (IOException e) {
                each.breaker.failed();
                throw new IOException(each + ": " + AgentError.reason(e), e);
            }
        }
    }

    @Override
    public long written() {
        long now = written;
        for (CopyAgent each : members) {
            now += each.connection.written();
        }
        return now;
    }

    @Override
    public long send(SessionInfo in, List<Change> changes, long deadlineNanos) throws IOException {
        payload = WriteConnection.emptied(payload);
        WriteConnection.write(payload, in, changes);
        long until = canReplace(1) ? soon(deadlineNanos) : deadlineNanos;
        ticket++;
        Backlog.Append append = backlog.sent(in, changes);
        open.put(ticket, append);
        for (CopyAgent each : members) {
            long before = each.connection.written();
            try {
                each.sent(ticket, append);
                each.connection.send(in.session(), changes.get(0).request, changes.size(), payload,
                        until);
            } catch (IOException e) {
                each.breaker.failed();
                if (each.connection.written() == before) {
                    each.notSent();
                }
                throw new IOException(each + ": " + AgentError.reason(e), e);
            }
        }
        return ticket;
    }

    /** The answers to one append. */
    private static final class Answers {
        private final List<CopyAgent> waiting;
        private final List<AgentError> refusals = new ArrayList<>();
        private final List<CopyAgent> failed = new ArrayList<>();
        private IOException failure;
        private int acks;

        Answers(List<CopyAgent> members) {
            waiting = new ArrayList<>(members);
        }

        /** Takes answers that arrive in time, until {@code enough} of them acknowledge it. */
        void collect(long ticket, int enough, long deadlineNanos) {
            for (CopyAgent each : List.copyOf(waiting)) {
                // From agents that are not needed, only answers that have arrived are taken.
                long until = acks < enough ? deadlineNanos : System.nanoTime();
                try {
                    each.await(ticket, until);
                    acks++;
                } catch (SocketTimeoutException e) {
                    if (!(e instanceof HungAgent)) {
                        continue;
                    }
                    fail(each, e);
                } catch (AgentError e) {
                    refusals.add(e);
                    fail(each, e);
                } catch (IOException e) {
                    fail(each, e);
                }
                waiting.remove(each);
            }
        }

        void fail(CopyAgent each, IOException cause) {
            if (!AgentError.isVoid(cause)) {  // then the agent works, in a newer view
                failed.add(each);
            }
            failure = failure == null ? new IOException(each + ": " + AgentError.reason(cause),
                    cause)
                    : failure;
        }
    }

    @Override
    public void awaitAck(long wanted, long deadlineNanos) throws IOException {
        List<CopyAgent> now = members;
        Answers answers = new Answers(now);
        answers.collect(wanted, copies.acks(), soon(deadlineNanos));
        boolean slow = answers.acks < copies.acks() && !answers.waiting.isEmpty();
        if (slow && !canReplace(now.size() - answers.acks)) {
            answers.collect(wanted, copies.acks(), deadlineNanos);
        } else if (slow) {
            answers.waiting.forEach(each -> answers.fail(each, new SocketTimeoutException(
                    "no answer within " + copies.slowMs() + " ms (copy-timeout-ms)")));
        }
        boolean refused = answers.refusals.size() == now.size();
        if (!refused) {
            answers.failed.forEach(each -> each.breaker.failed());
        }
        if (answers.acks >= copies.acks()) {
            succeeded(wanted, answers);
            return;
        }
        if (refused && answers.refusals.stream().allMatch(AgentError::certain)) {
            throw answers.refusals.get(0);
        }
        throw answers.failure != null ? answers.failure
                : new SocketTimeoutException("no answer of " + answers.waiting + " in time");
    }

    /** When an agent that can be replaced counts as slow. */
    private long soon(long deadlineNanos) {
        long soon = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(copies.slowMs());
        return soon - deadlineNanos > 0 ? deadlineNanos : soon;
    }

    private void succeeded(long wanted, Answers answers) {
        Backlog.Append append = open.remove(wanted);
        if (append != null) {
            backlog.acknowledged(append);
        }
        for (CopyAgent each : answers.waiting) {
            if (each.unanswered() >= UNANSWERED_MAX) {
                each.breaker.failed();
                answers.fail(each, new IOException(UNANSWERED_MAX + " appends without an answer"));
            }
        }
        if (answers.failure != null) {
            worn = true;
            logger.warning("imap-wal: an agent is left out for a while: "
                    + AgentError.reason(answers.failure));
        }
        noteIncomplete();
    }

    private void noteIncomplete() {
        if (isIncomplete()) {
            incomplete.run();
        }
    }

    /** Whether enough agents are left without this many members. */
    private boolean canReplace(int lost) {
        long spare = all.stream()
                .filter(each -> !members.contains(each) && each.breaker.allows()).count();
        return members.size() - lost + spare >= copies.acks();
    }

    @Override
    public void sayGoodbye() {
        members.forEach(each -> each.connection.sayGoodbye());
    }

    @Override
    public void disconnect() {
        written = written();
        open.clear();
        List<CopyAgent> former = members;
        members = List.of();
        session = null;
        former.forEach(CopyAgent::disconnect);
        backlog.disconnected();
        noteIncomplete();
    }
}
