package io.imapwal.hazelcast.member;

import io.imapwal.wire.MsgpackReader;
import io.imapwal.wire.MsgpackWriter;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

import static io.imapwal.hazelcast.member.FakeAnswers.ack;
import static io.imapwal.hazelcast.member.FakeAnswers.error;
import static io.imapwal.hazelcast.member.FakeAnswers.header;

/**
 * Answers the requests of one connection of a plug-in. {@link FakeReads} answers those that read.
 */
final class FakeConnection {
    private final FakeAgent agent;
    private final FakeLog log;
    private final FakeFaults faults;
    /** Requests that arrived after the one that is answered. */
    private final Queue<List<byte[]>> requests;
    private final FakeReads reads;
    private String plugin;
    private String member;
    private long view;
    /** Which connection of the plug-in this is, if it writes. */
    private int writer;
    /** An append of this connection was refused, so all later ones are too. */
    private boolean refused;

    FakeConnection(FakeAgent agent, Queue<List<byte[]>> requests) {
        this.agent = agent;
        this.log = agent.log;
        this.faults = agent.faults;
        this.requests = requests;
        this.reads = new FakeReads(agent);
    }

    /** Null: no answer. {@link FakeAnswers#BREAK}: the connection is closed. */
    List<byte[]> answer(byte[] headerBytes, byte[] payload)
            throws IOException, InterruptedException {
        MsgpackReader header = new MsgpackReader(headerBytes);
        header.array();
        String kind = header.string();
        long number = header.integer();
        if (kind.equals("stat")) {
            return stat(number);
        }
        if (kind.equals("beat") && faults.loopHangs) {
            return null;
        }
        if (plugin == null && !kind.equals("hello")) {
            return error(number, "not-ready", "send hello first");
        }
        switch (kind) {
            case "hello":
                Map<?, ?> fields = (Map<?, ?>) header.value();
                long delayMs = faults.helloDelayMs;
                agent.hellos++;
                Thread.sleep(delayMs);
                List<byte[]> welcome = hello(number, fields);
                faults.heldHellos.await();
                return welcome;
            case "append":
                return append(number, header, payload);
            case "metadata":
                return metadata(number, header, payload);
            case "schemas":
                return schemas(number);
            case "keys":
            case "list":
                return reads.list(kind, number, header);
            case "digests":
                return reads.digests(number, header);
            case "maps":
                return reads.maps(number, header);
            case "load":
                return reads.load(number, header, payload);
            case "beat":
                agent.beats++;
                agent.settling = header.hasMore() ? header.integer() : -1;
                return FakeAnswers.answer(header("beat", number, 1).integer(agent.parts()));
            case "bye":
                agent.byes++;
                return FakeAnswers.answer(header("bye", number, 0));
            case "view":
                return view(number, (Map<?, ?>) header.value());
            default:
                return error(number, "bad-request", kind);
        }
    }

    private List<byte[]> stat(long number) {
        synchronized (log) {
            return FakeAnswers.answer(header("stat", number, 1).map(1).string("claim").map(3)
                    .string("cluster_id").string(log.newestCluster())
                    .string("incarnation").integer(log.newestView)
                    .string("alive").bool(!log.silent));
        }
    }

    private List<byte[]> hello(long number, Map<?, ?> fields) {
        String cluster = (String) fields.get("cluster_id");
        String from = (String) fields.get("plugin_uuid");
        member = (String) fields.get("member_uuid");
        view = (Long) fields.get("view");
        reads.partitionCount = ((Long) fields.get("partition_count")).intValue();
        synchronized (log) {
            if (log.followed) {
                return error(number, "void-incarnation",
                        "this cluster was followed by another one");
            } else if (!cluster.equals(log.newestCluster())) {
                log.claimCluster(cluster);
            } else if (!log.mayWrite(cluster, member, view)) {
                return error(number, "void-incarnation", "this member was left out of view "
                        + log.newestView + ": it must join the cluster again as a new member");
            }
            plugin = from;
            if (fields.get("purpose").equals("write")) {
                writer = agent.writers.merge(plugin, 1, Integer::sum);
            }
            view = log.newestView;
            return welcome(number, log.session(plugin, fields.get("shared") != null));
        }
    }

    private List<byte[]> welcome(long number, long session) {
        MsgpackWriter answer = header("welcome", number, 1).map(10);
        answer.string("protocol").integer(1);
        answer.string("settling").bool(true);
        answer.string("durable").bool(true);
        answer.string("node").string(agent.node);
        answer.string("session").integer(session);
        answer.string("incarnation").integer(log.newestView);
        answer.string("last_request").integer(agent.lastRequests.getOrDefault(session, 0L));
        Map<Long, Long> former = log.former(plugin, agent.lastRequests);
        answer.string("former").array(former.size());
        former.forEach((earlier, last) -> answer.array(2).integer(earlier).integer(last));
        answer.string("max_value_bytes").integer(1 << 20);
        answer.string("agent_version").string("fake");
        return FakeAnswers.answer(answer);
    }

    private List<byte[]> view(long number, Map<?, ?> fields) {
        synchronized (log) {
            List<?> lost = (List<?>) fields.get("lost");
            if (!log.mayWrite((String) fields.get("cluster_id"), member, view)) {
                return error(number, "void-incarnation", "this member was left out of view "
                        + log.newestView);
            }
            if (log.viewMembers == null || !log.viewMembers.contains(member)
                    || log.viewMembers.stream().anyMatch(lost::contains)) {
                Set<String> members = ConcurrentHashMap.newKeySet();
                ((List<?>) fields.get("members")).forEach(each -> members.add((String) each));
                log.claimView(members);
            }
            MsgpackWriter answer = header("view", number, 2).integer(log.newestView)
                    .array(log.viewMembers.size());
            log.viewMembers.forEach(answer::string);
            return FakeAnswers.answer(answer);
        }
    }

    private List<byte[]> metadata(long number, MsgpackReader header, byte[] payload)
            throws IOException {
        MsgpackReader stream = new MsgpackReader(payload);
        Map<Long, byte[]> schemas = new LinkedHashMap<>();
        while (stream.hasMore()) {
            stream.array();
            stream.string();
            schemas.put(stream.integer(), stream.binary());
        }
        String type = faults.refusedType;
        if (type != null && schemas.values().stream().anyMatch(each ->
                new String(each, StandardCharsets.UTF_8).contains(type))) {
            return error(number, "schema-refused", "a schema of type " + type);
        }
        synchronized (log) {
            log.schemas.putAll(schemas);
        }
        header.integer();
        return ack(number, 0, header.integer());
    }

    private List<byte[]> schemas(long number) {
        MsgpackWriter stream = new MsgpackWriter();
        synchronized (log) {
            log.schemas.forEach((id, bytes) -> stream.array(2).integer(id).binary(bytes));
            return FakeAnswers.answer(header("schemas", number, 1).integer(log.schemas.size()),
                    stream);
        }
    }

    private List<byte[]> append(long number, MsgpackReader header, byte[] payload)
            throws IOException, InterruptedException {
        OnAppend fault = faults.onAppend;
        agent.appends++;
        awaitFaults();
        if (refused) {
            agent.refusedAfterAnother++;
            return error(number, "not-ready", "an earlier append was refused");
        }
        if (writer != agent.writers.get(plugin)) {
            return error(number, "superseded", "another hello came");
        }
        long session = header.integer();
        long first = header.integer();
        long count = header.integer();
        if (fault == OnAppend.FULL_LATER) {
            faults.onAppend = OnAppend.FULL;
        }
        if (fault == OnAppend.FULL || fault == OnAppend.FULL_ONCE) {
            if (fault == OnAppend.FULL_ONCE) {
                faults.onAppend = OnAppend.ACK;
            }
            return refuse(number, "full", "no room");
        } else if (log.isVoid(session)) {
            return refuse(number, "void-incarnation", "this session's view was followed by "
                    + log.newestView);
        } else if (fault == OnAppend.VIEW_BEFORE) {
            return claimView(number);
        } else if (fault == OnAppend.BREAK_BEFORE) {
            faults.onAppend = OnAppend.ACK;
            return FakeAnswers.BREAK;
        } else if (fault == OnAppend.SILENT_BEFORE) {
            return null;
        }
        appendEntries(session, first, count, new MsgpackReader(payload));
        switch (fault) {
            case DIE_AFTER:
                faults.onAppend = OnAppend.ACK;
                agent.stop();
                return FakeAnswers.BREAK;
            case BREAK_AFTER:
                faults.onAppend = OnAppend.ACK;
                return FakeAnswers.BREAK;
            case SILENT_AFTER:
                return null;
            case VIEW_AFTER:
                return claimView(number);
            case UNKNOWN_AFTER:
                return refuse(number, "outcome-unknown", "the disk said no");
            default:
                return ack(number, first, count);
        }
    }

    private void awaitFaults() throws InterruptedException {
        Thread.sleep(faults.delayMs);
        if (faults.holdsForNext) {
            faults.holdsForNext = false;
            long end = System.nanoTime() + 10_000_000_000L;
            while (requests.isEmpty() && System.nanoTime() < end) {
                Thread.sleep(1);
            }
        }
        faults.hold.await();
    }

    private List<byte[]> refuse(long number, String code, String text) {
        refused = true;
        return error(number, code, text);
    }

    private List<byte[]> claimView(long number) {
        faults.onAppend = OnAppend.ACK;
        log.claimView(Set.of(member));
        return refuse(number, "outcome-unknown", "a newer view was claimed");
    }

    private void appendEntries(long session, long first, long count, MsgpackReader stream)
            throws IOException {
        synchronized (log) {
            long last = agent.lastRequests.getOrDefault(session, 0L);
            for (long i = 0; i < count; i++) {
                appendEntry(session, first + i, last, stream);
            }
            if (stream.hasMore()) {
                agent.violations.add("bytes after the last entry");
            }
            agent.lastRequests.put(session, Math.max(last, first + count - 1));
        }
    }

    /** Checks an entry. Appends it, if its request number is above the last one in the log. */
    private void appendEntry(long session, long request, long last, MsgpackReader stream)
            throws IOException {
        if (stream.array() != 10) {
            agent.violations.add("an entry that is not ten fields");
        }
        String map = stream.string();
        byte[] key = stream.nil() ? null : stream.binary();
        String keyClass = stream.string();
        byte[] value = stream.nil() ? null : stream.binary();
        String valueClass = stream.string();
        boolean deleted = stream.bool();
        long timestamp = stream.integer();
        long expires = stream.integer();
        int partition = (int) stream.integer();
        stream.array();
        List<Long> order = List.of(stream.integer(), stream.integer(), stream.integer(),
                stream.integer());
        if (order.get(3) != request || order.get(2) != session || deleted != (value == null)
                || Math.abs(timestamp - System.currentTimeMillis()) > 60_000) {
            agent.violations.add("entry of request " + request + " of session " + session
                    + ": order " + order);
        }
        if (order.get(3) <= last) {
            return;
        }
        log.noteCopy(agent.node, order);
        FakeLog.Record record = new FakeLog.Record(key, keyClass, value, valueClass, deleted,
                expires, partition, order);
        if (key == null) {
            log.clear(map, record);
        } else {
            log.put(map, record);
        }
    }
}
