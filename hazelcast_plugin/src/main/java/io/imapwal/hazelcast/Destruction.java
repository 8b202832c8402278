package io.imapwal.hazelcast;

import com.hazelcast.cluster.Member;
import com.hazelcast.internal.serialization.Data;
import com.hazelcast.internal.util.ExceptionUtil;
import com.hazelcast.map.impl.MapService;
import com.hazelcast.spi.impl.operationexecutor.impl.OperationThread;
import com.hazelcast.spi.impl.operationservice.Operation;
import com.hazelcast.spi.impl.proxyservice.impl.ProxyServiceImpl;
import com.hazelcast.spi.impl.proxyservice.impl.operations.DistributedObjectDestroyOperation;

import java.io.IOException;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;

import static com.hazelcast.cluster.memberselector.MemberSelectors.DATA_MEMBER_SELECTOR;

/**
 * Logs that a map was destroyed: the owners of the partitions append a tombstone for each key that
 * the log has. One member starts and checks all of it, so that errors reach the caller: Hazelcast
 * only logs it when another member cannot destroy its part.
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
     * Whether this member has to log the destruction for which {@code MapStore.destroy} is called. If a
     * program in a member asked for it, it is that member. If a client did, it is the oldest member: every
     * member gets an operation then, and the client receives the errors of each. It is no member if Hazelcast
     * calls {@code MapStore.destroy} for a graceful shutdown, or if we call it to drop a map from memory.
     */
    static boolean isAsked(WalPlugin plugin) {
        if (isCalledIn(ProxyServiceImpl.class, "destroyDistributedObject")) {
            return true;
        }
        return isCalledIn(DistributedObjectDestroyOperation.class, "run")
                && plugin.nodeEngine().getNode().getClusterService().isMaster() && !isSentByMember(plugin);
    }

    private static boolean isCalledIn(Class<?> owner, String method) {
        return StackWalker.getInstance().walk(frames -> frames.limit(30).anyMatch(frame ->
                frame.getClassName().equals(owner.getName()) && frame.getMethodName().equals(method)));
    }

    /**
     * The member that a client asked runs its own operation at once, on the client's thread. All other
     * operations run on operation threads, and name who asked: a member, or a client.
     */
    private static boolean isSentByMember(WalPlugin plugin) {
        return Thread.currentThread() instanceof OperationThread thread
                && thread.operationRunner(Operation.GENERIC_PARTITION_ID).currentTask() instanceof Operation operation
                && operation.getCallerUuid() != null
                && plugin.nodeEngine().getClusterService().getMember(operation.getCallerUuid()) != null;
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
            throw new LogUnavailable("map \"" + map + "\" was destroyed in memory, but some of its keys could not be deleted in its log: "
                    + AgentLink.reason(cause) + ". They come back with the map; destroy it again", cause);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new LogUnavailable("map \"" + map + "\": interrupted while it was destroyed; destroy it again", e);
        }
    }

    /** Every member is told before the caller hears of it. */
    void tell(boolean complete) {
        plugin.state(map).destroyed(complete);
        List<Future<?>> told = new ArrayList<>();
        for (Member member : plugin.nodeEngine().getClusterService().getMembers(DATA_MEMBER_SELECTOR)) {
            if (!member.localMember()) {
                told.add(plugin.nodeEngine().getOperationService().invokeOnTarget(MapService.SERVICE_NAME,
                        new DestroyedOperation(map, complete), member.getAddress()));
            }
        }
        for (Future<?> each : told) {
            try {
                each.get();
            } catch (ExecutionException e) {
                // It has left: the next owners of its partitions compare them with the log.
                plugin.logger().fine("imap-wal: a member was not told that map \"" + map + "\" was destroyed", e);
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
                return;
            }
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
