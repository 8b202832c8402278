package io.imapwal.hazelcast.settle;

import com.hazelcast.map.impl.MapService;
import com.hazelcast.spi.impl.operationservice.Operation;
import io.imapwal.hazelcast.engine.PartitionThreads;
import io.imapwal.hazelcast.engine.ThisMember;
import io.imapwal.hazelcast.read.AgentReader;
import io.imapwal.hazelcast.read.KeyListing;
import io.imapwal.hazelcast.read.LogEntry;
import io.imapwal.hazelcast.read.ReadWait;
import io.imapwal.wire.AgentSettings;
import io.imapwal.wire.ProtocolException;

import java.io.IOException;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

/**
 * Makes the memory of some partitions of one map agree with the log. First it compares digests: a
 * partition with equal ones is settled. Of the others it reads all keys and values, and compares
 * them on the partitions' threads while it reads more. Former owners must not be able to append any
 * more. It needs memory for the entries that it has read and not compared yet, and for the keys in
 * memory.
 */
final class Settlement {
    private static final int PART_ENTRIES = 1000;
    private static final int TRIES = 3;
    private static final int TRY_PAUSE_MS = 50;
    private static final long THREAD_WAIT_S = 10;
    private static final long IN_FLIGHT_BYTES = 32L << 20;

    private final ThisMember member;
    private final MapState state;
    private final Map<Integer, Comparison> comparisons = new HashMap<>();
    private final Map<Integer, List<LogEntry>> waiting = new HashMap<>();
    private long waitingBytes;
    private final Deque<Sent> sent = new ArrayDeque<>();
    private long sentBytes;
    private long read;
    private ExecutionException failure;

    private record Sent(Future<?> future, long bytes) {
    }

    Settlement(ThisMember member, MapState state, Map<Integer, Wholeness.Unsettled> partitions) {
        this.member = member;
        this.state = state;
        partitions.forEach((partition, reason) ->
                comparisons.put(partition, new Comparison(partition, reason)));
    }

    /**
     * Returns when all partitions are settled.
     *
     * @param reader null: the log has no entries of the map
     * @throws ExecutionException some are not settled; the others are
     */
    void run(AgentReader reader) throws IOException, InterruptedException, ExecutionException {
        if (reader != null) {
            prove(reader);
            read(reader);
        }
        List<Integer> empty = new ArrayList<>();
        for (Comparison comparison : comparisons.values()) {
            List<LogEntry> rest = waiting.remove(comparison.partition);
            if (rest == null && !comparison.sent() && state.empty(comparison.partition)) {
                // Neither the log nor memory has entries. Many maps have entries in few partitions.
                empty.add(comparison.partition);
            } else {
                send(comparison.partition, rest == null ? List.of() : rest, true);
            }
        }
        settleEmpty(empty);
        await(0);
        if (failure != null) {
            throw failure;
        }
    }

    /** Uses no operation, because an operation would make a record store in each of them. */
    private void settleEmpty(List<Integer> empty) throws InterruptedException {
        if (state.isIndexed()) {
            new PartitionThreads(member.nodeEngine()).run(empty, this::settleEmpty, THREAD_WAIT_S);
        } else {
            empty.forEach(this::settleEmpty);
        }
    }

    private void settleEmpty(int partition) {
        // Otherwise entries have arrived since then, and it is settled again.
        if (state.size(partition) == 0) {
            state.settled(comparisons.get(partition));
        }
    }

    /**
     * Settles the partitions whose memory has the digest of the log, while the agent computes the
     * digests of others. If a partition's thread is busy, this happens later: so the actions must
     * not use what this thread changes.
     */
    private void prove(AgentReader reader) throws IOException, InterruptedException {
        List<Integer> filled = comparisons.keySet().stream()
                .filter(partition -> state.size(partition) > 0).toList();
        MemoryDigests memory = state.memoryDigests();
        memory.begin(filled);
        PartitionThreads threads = new PartitionThreads(member.nodeEngine());
        Map<Integer, Comparison> asked = Map.copyOf(comparisons);
        Map<Integer, Integer> proved = new ConcurrentHashMap<>();
        List<CountDownLatch> left = new ArrayList<>();
        reader.digests(state.map(), memory.salt(), filled, (partition, digest) -> {
            if (digest != null) {
                left.add(threads.begin(List.of(partition), id -> {
                    int size = state.size(id);
                    if (state.prove(asked.get(id), memory, digest)) {
                        proved.put(id, size);
                    }
                }));
            }
        });
        long until = System.nanoTime() + TimeUnit.SECONDS.toNanos(THREAD_WAIT_S);
        for (CountDownLatch each : left) {
            each.await(until - System.nanoTime(), TimeUnit.NANOSECONDS);
        }
        Map<Integer, Integer> settled = Map.copyOf(proved);
        comparisons.keySet().removeAll(settled.keySet());
        read += settled.values().stream().mapToInt(Integer::intValue).sum();
    }

    private void read(AgentReader reader) throws IOException {
        if (comparisons.isEmpty()) {
            return;
        }
        AgentSettings settings = state.settings();
        KeyListing listing = new KeyListing(reader, state.map(), settings.restoreChunk());
        while (!listing.ended()) {
            AgentReader.Page page = listing.next(comparisons.keySet());
            take(page.live());
            reader.loadParts(state.map(), page.rest(), ReadWait.LONG, this::take);
        }
    }

    /** Entries of the log that were compared. */
    long read() {
        return read;
    }

    long set() {
        return comparisons.values().stream().mapToLong(each -> each.set).sum();
    }

    long removed() {
        return comparisons.values().stream().mapToLong(each -> each.removed).sum();
    }

    private void take(List<LogEntry> entries) throws IOException {
        for (LogEntry entry : entries) {
            int partition = member.partition(entry.key());
            if (!comparisons.containsKey(partition)) {
                throw new ProtocolException("the agent listed a key of partition " + partition
                        + ", which was not asked for");
            }
            List<LogEntry> part = waiting.computeIfAbsent(partition, id -> new ArrayList<>());
            part.add(entry);
            waitingBytes += size(entry);
            if (part.size() >= PART_ENTRIES) {
                waiting.remove(partition);
                send(partition, part, false);
            }
        }
        read += entries.size();
        state.wholeness().progress();
        if (waitingBytes > IN_FLIGHT_BYTES) {
            Map<Integer, List<LogEntry>> parts = new HashMap<>(waiting);
            waiting.clear();
            parts.forEach((partition, part) -> send(partition, part, false));
        }
        try {
            await(IN_FLIGHT_BYTES);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IOException("interrupted", e);
        }
    }

    private void send(int partition, List<LogEntry> entries, boolean last) {
        long bytes = entries.stream().mapToLong(Settlement::size).sum();
        waitingBytes -= bytes;
        sentBytes += bytes;
        Comparison comparison = comparisons.get(partition);
        int part = comparison.send();
        // To this member, not to the partition's owner: that may be another one by now.
        Operation settle = new SettleOperation(state, comparison, entries, part, last)
                .setPartitionId(partition);
        sent.add(new Sent(member.nodeEngine().getOperationService()
                .createInvocationBuilder(MapService.SERVICE_NAME, settle,
                member.nodeEngine().getThisAddress())
                .setTryCount(TRIES).setTryPauseMillis(TRY_PAUSE_MS).invoke(), bytes));
    }

    /** Waits until at most this many bytes wait to be compared. */
    private void await(long bytes) throws InterruptedException {
        while (!sent.isEmpty() && (bytes == 0 || sentBytes > bytes)) {
            Sent first = sent.poll();
            try {
                first.future.get();
            } catch (ExecutionException e) {
                // A partition that got another owner does not stop the others.
                failure = failure == null ? e : failure;
            }
            sentBytes -= first.bytes;
        }
    }

    private static long size(LogEntry entry) {
        int value = entry.value() == null ? 0 : entry.value().totalSize();
        return entry.key().totalSize() + value + 64L;
    }
}
