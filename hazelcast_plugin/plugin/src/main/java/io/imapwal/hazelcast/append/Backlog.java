package io.imapwal.hazelcast.append;

import io.imapwal.wire.MsgpackWriter;
import io.imapwal.wire.SessionInfo;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * The appends of the present session that fewer than {@code copies} nodes are known to have, in the
 * order of their requests. What is acknowledged is kept, up to a number of bytes, so that the
 * {@link Ensemble} can send it to a node that returns.
 *
 * <pre>
 * an append is
 *   sent          no outcome yet
 *   acknowledged  its caller has returned; other nodes were sent it, and may still answer
 *   waiting       acknowledged, and too few nodes have it: counted, and copied again to the next
 *                 member that lacks it
 * it ends when
 *   `copies` nodes have it
 *   no member of a full ensemble can get it: a node takes the requests of a session in rising
 *     order, so one that has a later request cannot get this one
 *   there is a later session: what a log gets of this one from then on is void
 *   newer ones need the space, or a node has refused it repeatedly
 * </pre>
 */
final class Backlog {
    /** Appends with consecutive requests are copied in one message, up to this size. */
    static final int MESSAGE_BYTES = 1 << 20;
    /** A node that refuses one so often would otherwise be left out again and again. */
    static final int REFUSALS_MAX = 3;
    /** The most that a message has besides its changes. */
    private static final int HEADER_BYTES = 1024;
    /** What the objects of an append take of the heap, besides its changes. */
    private static final int OBJECT_BYTES = 400;

    private final int copies;
    private final long bytesMax;
    private final Set<Append> appends = new LinkedHashSet<>();
    private final List<Append> decided = new ArrayList<>();
    private long bytes;
    private long waiting;
    private long underCopied;
    private long copiedAgain;

    /** One append; the fields are used with the lock of its backlog held. */
    static final class Append {
        private final SessionInfo session;
        private final long first;
        private final int count;
        /** Node → whether it has the append; false: it was sent it, and may have it. */
        private final Map<String, Boolean> nodes = new HashMap<>(4);
        /** Null: they are not kept, or the payload is. */
        private List<Change> changes;
        /** Of a waiting append, which must not keep the objects of its callers. */
        private byte[] payload;
        /** What it takes of the space. */
        private long bytes;
        private boolean acknowledged;
        /** Its outcome is that of an ensemble that is not made, so it may be in doubt. */
        private boolean doubtful;
        private boolean counted;
        private int refusals;

        private Append(SessionInfo session, List<Change> changes) {
            this.session = session;
            this.first = changes.get(0).request;
            this.count = changes.size();
            this.changes = changes;
        }

        private long last() {
            return first + count - 1;
        }

        private long holders() {
            return nodes.values().stream().filter(has -> has).count();
        }
    }

    /** Appends with consecutive requests, for one message. */
    static final class Message {
        final List<Append> appends = new ArrayList<>();
        private int count;
        private int bytes;

        private boolean takes(Append next) {
            return appends.isEmpty() || appends.get(appends.size() - 1).last() + 1 == next.first
                    && count + next.count <= AppendQueue.MAX_APPEND_CHANGES
                    && bytes + next.payload.length <= MESSAGE_BYTES;
        }

        private void add(Append next) {
            appends.add(next);
            count += next.count;
            bytes += next.payload.length;
        }

        long first() {
            return appends.get(0).first;
        }

        int count() {
            return count;
        }
    }

    /**
     * @param copies   how many nodes should have each append
     * @param bytesMax how many bytes of acknowledged changes it keeps; 0: none, it only counts
     */
    Backlog(int copies, long bytesMax) {
        this.copies = copies;
        this.bytesMax = bytesMax;
    }

    /** An append is about to be sent, with numbers. */
    synchronized Append sent(SessionInfo in, List<Change> changes) {
        Append append = new Append(in, changes);
        appends.add(append);
        return append;
    }

    /** A node may have these from now on. */
    synchronized void given(List<Append> some, String node) {
        some.forEach(each -> each.nodes.putIfAbsent(node, false));
    }

    /** No byte of them was sent to that node. */
    synchronized void notGiven(List<Append> some, String node) {
        some.forEach(each -> each.nodes.remove(node, false));
    }

    /** A node has acknowledged these. */
    synchronized void answered(List<Append> some, String node) {
        some.forEach(each -> has(each, node));
    }

    private void has(Append append, String node) {
        append.nodes.put(node, true);
        if (append.holders() >= copies && appends.contains(append)) {
            copiedAgain += append.counted ? append.count : 0;
            remove(append);
        }
    }

    /** As many nodes have it as its caller needs. */
    synchronized void acknowledged(Append append) {
        if (!appends.contains(append)) {
            return;
        }
        append.acknowledged = true;
        if (append.nodes.size() < copies) {
            count(append);
        } else {
            take(append, append.changes.stream().mapToLong(each -> each.head.length).sum());
            trim();
        }
    }

    private void take(Append append, long size) {
        bytes += size + OBJECT_BYTES - append.bytes;
        append.bytes = size + OBJECT_BYTES;
    }

    /** Too few nodes have it. */
    private void count(Append append) {
        append.counted = true;
        underCopied += append.count;
        if (bytesMax == 0 || append.changes == null) {
            remove(append);
            return;
        }
        MsgpackWriter written = new MsgpackWriter();
        WriteConnection.write(written, append.session, append.changes);
        append.payload = written.toByteArray();
        append.changes = null;
        take(append, append.payload.length);
        waiting += append.count;
        trim();
    }

    private void remove(Append append) {
        if (appends.remove(append)) {
            bytes -= append.bytes;
            waiting -= append.payload == null ? 0 : append.count;
        }
    }

    private void trim() {
        Iterator<Append> all = appends.iterator();
        while (bytes > bytesMax && all.hasNext()) {
            Append oldest = all.next();
            bytes -= oldest.bytes;
            oldest.bytes = 0;
            oldest.changes = oldest.acknowledged ? null : oldest.changes;
            if (oldest.counted) {  // otherwise the answers may still arrive
                all.remove();
                waiting -= oldest.count;
            }
        }
    }

    /** The connections to all members were closed: what they have not answered, they may lack. */
    synchronized void disconnected() {
        for (Append each : List.copyOf(appends)) {
            if (each.acknowledged && !each.counted) {
                count(each);
            }
        }
    }

    /**
     * A node has said what it has. Of what it was sent, it has everything up to its last request:
     * it was sent in that order.
     */
    synchronized void welcomed(SessionInfo now) {
        for (Append each : List.copyOf(appends)) {
            long last = now.counted(each.session);
            if (last < 0 || !each.nodes.containsKey(now.node())) {
                continue;
            }
            if (each.last() <= last) {
                has(each, now.node());
            } else {  // also if it acknowledged it: it has lost its disk
                each.nodes.remove(now.node());
            }
        }
    }

    /**
     * There may be members again. {@link Outcomes} decides by the same welcome: a change without an
     * outcome that enough of them have is acknowledged, without a further answer.
     *
     * @param now the welcomes of the members as one
     */
    synchronized void decide(SessionInfo now) {
        for (Append each : List.copyOf(appends)) {
            boolean has = now.counted(each.session) >= each.last();
            if (!each.acknowledged && has) {
                each.acknowledged = true;
                each.doubtful = true;
                decided.add(each);
                count(each);
            } else if (each.doubtful && !has) {
                remove(each);
            }
            if (each.session.session() != now.session()) {
                remove(each);
            }
        }
    }

    /**
     * No ensemble was made after {@link #decide}: the outcome of what it decided is in doubt again.
     * It is not copied any more, because a key in doubt must not change after it was settled.
     */
    synchronized void takeBack() {
        decided.forEach(this::remove);
        decided.clear();
    }

    /** Whether the outcome of one of these may be in doubt, although they were copied again. */
    synchronized boolean mayBeInDoubt(List<Append> copied) {
        return copied.stream().anyMatch(each -> each.doubtful);
    }

    /** What a node lacks and can get, in rising order. @param welcome its newest one */
    synchronized List<Message> lackedBy(SessionInfo welcome) {
        List<Message> messages = new ArrayList<>();
        for (Append each : appends) {
            boolean fits = each.payload != null && (welcome.maxMessageBytes() <= 0
                    || each.payload.length + HEADER_BYTES <= welcome.maxMessageBytes());
            if (!fits || each.nodes.containsKey(welcome.node())
                    || each.last() <= welcome.lastRequest()) {
                continue;
            }
            Message newest = messages.isEmpty() ? null : messages.get(messages.size() - 1);
            if (newest == null || !newest.takes(each)) {
                newest = new Message();
                messages.add(newest);
            }
            newest.add(each);
        }
        return messages;
    }

    /** Writes the changes of a message. */
    synchronized MsgpackWriter payload(Message message) {
        MsgpackWriter payload = new MsgpackWriter(message.bytes);
        message.appends.forEach(each -> payload.raw(each.payload, 0, each.payload.length));
        return payload;
    }

    /** A node has refused these copies. */
    synchronized void refused(List<Append> some) {
        for (Append each : some) {
            if (++each.refusals >= REFUSALS_MAX) {
                remove(each);
            }
        }
    }

    /**
     * The members have got what they lacked, and get new appends now. Those without an outcome are
     * sent to them again. If there are enough members, what cannot become complete ends.
     */
    synchronized void finish(Set<String> members) {
        decided.forEach(each -> each.doubtful = false);
        decided.clear();
        for (Append each : List.copyOf(appends)) {
            long possible = each.nodes.entrySet().stream()
                    .filter(node -> node.getValue() || members.contains(node.getKey())).count();
            if (!each.acknowledged || members.size() >= copies && possible < copies) {
                remove(each);
            }
        }
    }

    /** How many changes wait to be copied again. */
    synchronized long waiting() {
        return waiting;
    }

    synchronized CopyCounts counts() {
        return new CopyCounts(underCopied, copiedAgain, waiting);
    }
}
