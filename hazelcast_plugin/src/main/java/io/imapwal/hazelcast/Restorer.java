package io.imapwal.hazelcast;

import com.hazelcast.core.HazelcastInstanceNotActiveException;
import com.hazelcast.internal.partition.IPartitionService;
import com.hazelcast.internal.serialization.Data;
import com.hazelcast.internal.util.ExceptionUtil;
import com.hazelcast.map.EntryLoader.MetadataAwareValue;
import com.hazelcast.map.impl.MapService;
import com.hazelcast.spi.impl.NodeEngineImpl;

import java.io.IOException;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

import static com.hazelcast.cluster.memberselector.MemberSelectors.DATA_MEMBER_SELECTOR;

/**
 * Brings a whole map from the log into the cluster's memory, on the one member that Hazelcast chose to load it.
 *
 * <p>Reading goes on while earlier entries travel to their partitions. It returns only when every owner, with its
 * backups, has taken every entry; whatever fails is begun again, since until then no member accepts a change of the map. A
 * member that leaves meanwhile may take entries with it that it had acknowledged: begun again as well.
 */
final class Restorer {
    private static final int PARTITION_ENTRIES = 1000;
    private static final long IN_FLIGHT_BYTES = 64L << 20;
    private static final long MAX_PAUSE_MS = 2000;

    private final WalPlugin plugin;
    private final NodeEngineImpl nodeEngine;
    private final String map;
    private final AgentSettings settings;
    private final MapState state;
    private final int generation;
    private final Membership membership;
    private final Data never;

    private final Map<Integer, List<Data>> waiting = new HashMap<>();
    private long waitingBytes;
    private final Deque<Sent> sent = new ArrayDeque<>();
    private long sentBytes;
    private long count;

    private record Sent(Future<?> future, long bytes) {
    }

    Restorer(WalPlugin plugin, String map, AgentSettings settings, MapState state) {
        this.plugin = plugin;
        this.nodeEngine = plugin.nodeEngine();
        this.map = map;
        this.settings = settings;
        this.state = state;
        this.generation = state.generation();
        this.membership = plugin.guard().membership();
        this.never = nodeEngine.toData(MetadataAwareValue.NO_TIME_SET);
    }

    void run() {
        long pauseMs = 100;
        String said = "";
        while (true) {
            check();
            try {
                if (restore()) {
                    return;
                }
            } catch (IOException | ExecutionException | RuntimeException e) {
                check();
                String why = AgentLink.reason(ExceptionUtil.peel(e));
                if (!why.equals(said)) {
                    plugin.logger().warning("imap-wal: restoring map \"" + map + "\" is begun again: " + why, e);
                    said = why;
                }
                pause(pauseMs);
                pauseMs = Math.min(MAX_PAUSE_MS, pauseMs * 2);
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
                throw new HazelcastInstanceNotActiveException("interrupted while restoring map \"" + map + "\"");
            }
        }
    }

    private boolean restore() throws IOException, InterruptedException, ExecutionException {
        MapState.Peers peers = state.peers(membership);
        if (peers.restored()) {
            state.setRestored(generation, membership);
            return true;
        } else if (peers.missing() != null) {
            throw new IOException(peers.missing());
        }
        waiting.clear();
        sent.clear();
        waitingBytes = 0;
        sentBytes = 0;
        count = 0;
        long from = System.nanoTime();
        Map<Integer, Wholeness.Unsettled> before = state.wholeness().unsettled();
        Set<UUID> members = members();
        // After both: who is lost later makes this restore begin again.
        plugin.link(settings).viewWithout(plugin.partitions().departed());
        try (AgentReader reader = plugin.newReader(settings)) {
            reader.schemas(plugin.schemas()::register);
            KeyListing listing = new KeyListing(reader, map, settings.restoreChunk());
            while (!listing.ended()) {
                List<Data> keys = listing.next();
                if (!keys.isEmpty()) {
                    reader.loadParts(map, keys, settings.restoreTimeoutMs(), this::take);
                }
                check();
            }
        }
        sendAll();
        await(0);
        if (!members().containsAll(members)) {
            plugin.logger().warning("imap-wal: a member left while map \"" + map + "\" was restored: begun again");
            return false;
        }
        before.forEach(state.wholeness()::settle);
        announce();
        plugin.logger().info(String.format("imap-wal: map \"%s\" restored from %s: %,d entries in %,d ms", map,
                plugin.link(settings).agent(), count, TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - from)));
        return true;
    }

    private void take(List<AgentReader.Entry> entries) throws IOException {
        IPartitionService partitions = nodeEngine.getPartitionService();
        for (AgentReader.Entry entry : entries) {
            int partition = partitions.getPartitionId(entry.key());
            List<Data> sequence = waiting.computeIfAbsent(partition, id -> new ArrayList<>());
            sequence.add(entry.key());
            sequence.add(entry.value());
            sequence.add(entry.expiresAtMs() == 0 ? never : nodeEngine.toData(entry.expiresAtMs()));
            waitingBytes += size(entry.key()) + size(entry.value());
            if (sequence.size() >= PARTITION_ENTRIES * 3) {
                waiting.remove(partition);
                send(partition, sequence);
            }
        }
        if (waitingBytes > IN_FLIGHT_BYTES) {
            sendAll();
        }
        count += entries.size();
        try {
            await(IN_FLIGHT_BYTES);
        } catch (ExecutionException e) {
            throw new IOException(AgentLink.reason(ExceptionUtil.peel(e)), e);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new HazelcastInstanceNotActiveException("interrupted while restoring map \"" + map + "\"");
        }
    }

    private void sendAll() {
        waiting.forEach(this::send);
        waiting.clear();
        waitingBytes = 0;
    }

    private void send(int partition, List<Data> sequence) {
        long bytes = 0;
        for (int i = 0; i < sequence.size(); i += 3) {
            bytes += size(sequence.get(i)) + size(sequence.get(i + 1));
        }
        waitingBytes -= bytes;
        sentBytes += bytes;
        sent.add(new Sent(nodeEngine.getOperationService().invokeOnPartition(MapService.SERVICE_NAME,
                new RestoreOperation(map, sequence, membership), partition), bytes));
    }

    /** Until no more than so many bytes are on their way to their partitions. */
    private void await(long bytes) throws InterruptedException, ExecutionException {
        while (!sent.isEmpty() && (bytes == 0 || sentBytes > bytes)) {
            Sent first = sent.poll();
            first.future.get();
            sentBytes -= first.bytes;
        }
    }

    /** This member first: whoever joins now and asks it is told, whoever has joined already is in the list. */
    private void announce() throws InterruptedException {
        state.setRestored(generation, membership);
        // One that is not told has left, or asks us itself when it is about to change something.
        plugin.tellOthers(() -> new RestoredOperation(map, membership));
    }

    private Set<UUID> members() {
        Set<UUID> uuids = new HashSet<>();
        nodeEngine.getClusterService().getMembers(DATA_MEMBER_SELECTOR).forEach(member -> uuids.add(member.getUuid()));
        return uuids;
    }

    private void check() {
        if (plugin.closed() || !nodeEngine.isRunning() || state.generation() != generation || !plugin.guard().isPresent(membership)) {
            throw new HazelcastInstanceNotActiveException("restoring map \"" + map
                    + "\" was given up: the member has stopped or joins another cluster, or the map was destroyed");
        }
    }

    private static long size(Data data) {
        return data.totalSize() + 64L;
    }

    private static void pause(long ms) {
        try {
            Thread.sleep(ms);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new HazelcastInstanceNotActiveException("interrupted");
        }
    }
}
