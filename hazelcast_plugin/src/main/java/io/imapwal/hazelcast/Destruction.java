package io.imapwal.hazelcast;

import com.hazelcast.internal.serialization.Data;
import com.hazelcast.internal.util.ExceptionUtil;
import com.hazelcast.map.impl.MapService;

import java.io.IOException;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;

/**
 * Logs that a map was destroyed: a tombstone for each of its keys in the log, by the owners of
 * their partitions. The member that the user's call came to sees to all of it and hears of what
 * fails; Hazelcast only logs it when another member cannot destroy its part.
 */
final class Destruction {
    private static final int PART_KEYS = 1000;
    private static final int LISTINGS_MAX = 8;
    private static final int UNDER_WAY = 64;

    private final WalPlugin plugin;
    private final String map;
    private final AgentSettings settings;
    private final Map<Integer, List<Data>> waiting = new HashMap<>();
    private final Deque<Future<?>> sent = new ArrayDeque<>();

    Destruction(WalPlugin plugin, String map, AgentSettings settings) {
        this.plugin = plugin;
        this.map = map;
        this.settings = settings;
    }

    /**
     * Whether the caller of {@code MapStore.destroy} is a user's {@code destroy} that came to this member. Hazelcast calls it
     * also at a graceful shutdown, and on the other members.
     */
    static boolean isAsked() {
        return StackWalker.getInstance().walk(frames -> frames.limit(30)
                .anyMatch(frame -> frame.getClassName().endsWith(".ProxyServiceImpl") && frame.getMethodName().equals("destroyDistributedObject")));
    }

    /** @throws LogUnavailable some of it is not in the log; destroying the map again logs the rest */
    void run() {
        try {
            for (int begun = 1; !list(); begun++) {
                if (begun == LISTINGS_MAX) {
                    throw new IOException("its keys could not be listed");
                }
            }
            List<Integer> partitions = new ArrayList<>(waiting.keySet());
            partitions.forEach(this::send);
            await(0);
        } catch (IOException | ExecutionException | RuntimeException e) {
            Throwable cause = ExceptionUtil.peel(e);
            throw new LogUnavailable("map \"" + map + "\" was destroyed in memory, but not wholly in its log: " + AgentLink.reason(cause)
                    + ". What is left there comes back with the map; destroy it again", cause);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new LogUnavailable("map \"" + map + "\": interrupted while it was destroyed; destroy it again", e);
        }
    }

    /** Whether the listing was complete. */
    private boolean list() throws IOException, InterruptedException, ExecutionException {
        try (AgentReader reader = plugin.newReader(settings)) {
            KeyListing listing = new KeyListing(reader, map, settings.restoreChunk());
            while (!listing.ended()) {
                for (Data key : listing.next()) {
                    int partition = plugin.nodeEngine().getPartitionService().getPartitionId(key);
                    List<Data> keys = waiting.computeIfAbsent(partition, id -> new ArrayList<>());
                    keys.add(key);
                    if (keys.size() == PART_KEYS) {
                        send(partition);
                    }
                }
                await(UNDER_WAY);
            }
            return true;
        } catch (ListingGone e) {
            return false;
        }
    }

    private void send(int partition) {
        sent.add(plugin.nodeEngine().getOperationService().invokeOnPartition(MapService.SERVICE_NAME,
                new ForgetOperation(map, waiting.remove(partition)), partition));
    }

    private void await(int left) throws InterruptedException, ExecutionException {
        while (sent.size() > left) {
            sent.poll().get();
        }
    }
}
