package io.imapwal.hazelcast.member;

import com.hazelcast.internal.serialization.impl.HeapData;
import com.hazelcast.internal.util.HashUtil;
import io.imapwal.hazelcast.settle.EntriesDigest;
import io.imapwal.wire.MsgpackReader;
import io.imapwal.wire.MsgpackWriter;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Set;

import static io.imapwal.hazelcast.member.FakeAnswers.answer;
import static io.imapwal.hazelcast.member.FakeAnswers.error;
import static io.imapwal.hazelcast.member.FakeAnswers.header;

/** Answers the requests of one connection that read the log. */
public final class FakeReads {
    private final FakeAgent agent;
    private final FakeLog log;
    private final FakeFaults faults;
    /** Of the cluster of the plug-in. */
    public int partitionCount;
    /** The keys of the listing under way. */
    private List<byte[]> listed;

    FakeReads(FakeAgent agent) {
        this.agent = agent;
        this.log = agent.log;
        this.faults = agent.faults;
    }

    /** A page of the keys ("keys"), or of the keys with their entries ("list"). */
    public List<byte[]> list(String kind, long number, MsgpackReader header)
            throws IOException, InterruptedException {
        boolean withEntries = kind.equals("list");
        if (withEntries && stopsAtLoad()) {
            return FakeAnswers.BREAK;
        }
        if (faults.readError != null) {
            return error(number, "restore-failed", faults.readError);
        }
        String map = header.string();
        if (faults.refusedMaps.contains(map)) {
            return error(number, "bad-request", "map " + map + " is a program's");
        }
        int from = header.nil() ? -1 : (int) header.integer();
        int limit = (int) header.integer();
        Set<Integer> partitions = partitions(header);
        synchronized (log) {
            if (faults.isListingGone()) {
                return error(number, "listing-gone", "the index was built anew; begin again");
            }
            if (from < 0) {
                agent.listings++;
                listed = log.liveKeys(map);
                listed.removeIf(key -> partitions != null && !partitions.contains(partition(key)));
                from = 0;
            }
            if (faults.isPageSkipped()) {
                from = Math.min(listed.size(), from + limit);
            }
            int to = Math.min(listed.size(), from + limit);
            List<byte[]> page = listed.subList(from, to);
            Loaded loaded = withEntries ? loaded(map, page)
                    : new Loaded(new MsgpackWriter(), 0, 0, null);
            if (loaded.error != null) {
                return error(number, "restore-failed", loaded.error);
            }
            page.subList(loaded.taken, page.size()).forEach(loaded.stream::binary);
            MsgpackWriter answer = header(kind, number, withEntries ? 5 : 3);
            if (to == listed.size()) {
                answer.nil();
            } else {
                answer.integer(to);
            }
            answer.integer(to - from).integer(to);
            if (withEntries) {
                answer.integer(loaded.taken).integer(loaded.live);
            }
            return answer(answer, loaded.stream);
        }
    }

    public List<byte[]> digests(long number, MsgpackReader header) throws IOException {
        agent.digests++;
        if (faults.readError != null) {
            return error(number, "restore-failed", faults.readError);
        }
        String map = header.string();
        byte[] salt = header.binary();
        int count = header.array();
        MsgpackWriter stream = new MsgpackWriter();
        int taken = Math.min(count, faults.loadLimit);
        for (int i = 0; i < taken; i++) {
            int wanted = (int) header.integer();
            EntriesDigest digest = new EntriesDigest(salt);
            synchronized (log) {
                for (byte[] key : log.liveKeys(map)) {
                    if (partition(key) == wanted) {
                        FakeLog.Record found = log.newest(map, key);
                        digest.add(key, found.value(), found.expiresAtMs());
                    }
                }
            }
            if (faults.hasNoDigests) {
                stream.nil();
            } else {
                stream.binary(digest.bytes());
            }
        }
        return answer(header("digests", number, 1).integer(taken), stream);
    }

    public List<byte[]> maps(long number, MsgpackReader header)
            throws IOException, InterruptedException {
        agent.merges++;
        Thread.sleep(faults.mergeDelayMs);
        if (faults.readError != null) {
            return error(number, "restore-failed", faults.readError);
        }
        List<String> known = new ArrayList<>();
        synchronized (log) {
            for (int left = header.array(); left > 0; left--) {
                String map = header.string();
                if (log.maps.containsKey(map)) {
                    known.add(map);
                }
            }
        }
        faults.heldMaps.await();
        MsgpackWriter answer = header("maps", number, 2).array(known.size());
        known.forEach(answer::string);
        return answer(answer.map(0));
    }

    public List<byte[]> load(long number, MsgpackReader header, byte[] payload)
            throws IOException, InterruptedException {
        if (stopsAtLoad()) {
            return FakeAnswers.BREAK;
        }
        if (faults.readError != null) {
            return error(number, "restore-failed", faults.readError);
        }
        String map = header.string();
        MsgpackReader stream = new MsgpackReader(payload);
        List<byte[]> keys = new ArrayList<>();
        while (stream.hasMore()) {
            keys.add(stream.binary());
        }
        Loaded loaded = loaded(map, keys);
        if (loaded.error != null) {
            return error(number, "restore-failed", loaded.error);
        }
        return answer(header("entries", number, 2).integer(loaded.live).integer(loaded.taken),
                loaded.stream);
    }

    private boolean stopsAtLoad() throws IOException, InterruptedException {
        agent.loads++;
        Thread.sleep(faults.readDelayMs);
        if (agent.loads > faults.holdsAfterLoads) {
            faults.heldLoads.await();
        }
        if (faults.stopsAtLoad()) {
            agent.stop();
            return true;
        }
        return false;
    }

    /** Null: all. */
    private static Set<Integer> partitions(MsgpackReader header) throws IOException {
        if (!header.hasMore()) {
            return null;
        }
        Set<Integer> partitions = new HashSet<>();
        for (int left = header.array(); left > 0; left--) {
            partitions.add((int) header.integer());
        }
        return partitions;
    }

    private int partition(byte[] key) {
        return HashUtil.hashToIndex(new HeapData(key).getPartitionHash(), partitionCount);
    }

    /**
     * The entries of the first keys.
     *
     * @param taken how many keys these are
     * @param live how many of them have an entry
     * @param error null: none
     */
    private record Loaded(MsgpackWriter stream, int taken, int live, String error) {
    }

    private Loaded loaded(String map, List<byte[]> keys) throws IOException {
        MsgpackWriter stream = new MsgpackWriter();
        int live = 0;
        int taken = 0;
        synchronized (log) {
            for (byte[] key : keys.subList(0, Math.min(keys.size(), faults.loadLimit))) {
                taken++;
                if (Arrays.equals(key, faults.unreadable)) {
                    agent.unreadableLoads++;
                    return new Loaded(stream, 0, 0, "this key cannot be read");
                }
                FakeLog.Record found = log.newest(map, key);
                if (found != null) {
                    live++;
                    stream.array(3).binary(found.key()).binary(found.value())
                            .integer(found.expiresAtMs());
                }
            }
        }
        return new Loaded(stream, taken, live, null);
    }
}
