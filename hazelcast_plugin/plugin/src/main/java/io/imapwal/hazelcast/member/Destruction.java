package io.imapwal.hazelcast.member;

import com.hazelcast.cluster.Member;
import com.hazelcast.internal.util.ExceptionUtil;
import com.hazelcast.map.impl.MapService;
import com.hazelcast.spi.impl.operationexecutor.impl.OperationThread;
import com.hazelcast.spi.impl.operationservice.Operation;
import com.hazelcast.spi.impl.proxyservice.impl.ProxyServiceImpl;
import com.hazelcast.spi.impl.proxyservice.impl.operations.DistributedObjectDestroyOperation;
import io.imapwal.hazelcast.LogUnavailable;
import io.imapwal.hazelcast.engine.ThisMember;
import io.imapwal.hazelcast.read.AgentReader;
import io.imapwal.hazelcast.settle.MemberMaps;
import io.imapwal.wire.AgentError;
import io.imapwal.wire.AgentSettings;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.FutureTask;

import static com.hazelcast.cluster.memberselector.MemberSelectors.DATA_MEMBER_SELECTOR;

/**
 * Logs that a map was destroyed: the owner of each partition appends a clear. One member starts and
 * checks all of it, so that errors reach the caller. If another member cannot destroy its part,
 * Hazelcast only logs that.
 */
final class Destruction {
    private final MemberMaps maps;
    private final String map;
    private final AgentSettings settings;

    Destruction(MemberMaps maps, String map, AgentSettings settings) {
        this.maps = maps;
        this.map = map;
        this.settings = settings;
    }

    /**
     * Whether this member has to log the destruction for which {@code MapStore.destroy} is called.
     * If a program in a member with data destroys the map, that member does. If a client or a lite
     * member destroys it, every member gets an operation, and the oldest member with data logs it.
     * The caller gets no error if that fails: Hazelcast logs the errors of other members. No member
     * does if Hazelcast calls {@code MapStore.destroy} for a graceful shutdown, or if the plug-in
     * calls it to drop a map from memory.
     */
    static boolean isAsked(ThisMember member) {
        if (member.nodeEngine().getLocalMember().isLiteMember()) {
            return false;
        }
        if (isCalledIn(ProxyServiceImpl.class, "destroyDistributedObject")) {
            return true;
        }
        return isCalledIn(DistributedObjectDestroyOperation.class, "run")
                && member.nodeEngine().getClusterService().getMembers(DATA_MEMBER_SELECTOR)
                .iterator().next().localMember()
                && !isSentByDataMember(member);
    }

    private static boolean isCalledIn(Class<?> owner, String method) {
        return StackWalker.getInstance().walk(frames -> frames.limit(30).anyMatch(frame ->
                frame.getClassName().equals(owner.getName())
                        && frame.getMethodName().equals(method)));
    }

    /**
     * The member that serves the client runs its own operation directly, on the thread that serves
     * the client. All other operations run on operation threads, and have the caller: a member or a
     * client.
     */
    private static boolean isSentByDataMember(ThisMember member) {
        return Thread.currentThread() instanceof OperationThread thread
                && thread.operationRunner(Operation.GENERIC_PARTITION_ID).currentTask()
                instanceof Operation operation
                && operation.getCallerUuid() != null
                && isDataMember(member.nodeEngine().getClusterService()
                .getMember(operation.getCallerUuid()));
    }

    private static boolean isDataMember(Member member) {
        return member != null && !member.isLiteMember();
    }

    /**
     * Waits on another thread, because Hazelcast may not allow the caller's thread to wait.
     *
     * @throws LogUnavailable some of it is not in the log; destroying the map again logs the rest
     */
    void run() {
        try {
            onAnotherThread(this::log);
        } catch (ExecutionException e) {
            Throwable cause = ExceptionUtil.peel(e);
            throw new LogUnavailable("map \"" + map
                    + "\" was destroyed in memory, but some of it could not be deleted in its log: "
                    + AgentError.reason(cause)
                    + ". These entries return when the map is opened; destroy it again", cause);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new LogUnavailable("map \"" + map
                    + "\": interrupted while it was destroyed; destroy it again", e);
        }
    }

    private void onAnotherThread(Callable<Void> work)
            throws ExecutionException, InterruptedException {
        FutureTask<Void> task = new FutureTask<>(work);
        Thread thread = new Thread(task, "imap-wal-destroy-" + map);
        thread.setDaemon(true);
        thread.start();
        task.get();
    }

    private Void log() throws IOException, ExecutionException, InterruptedException {
        if (!isEmpty()) {
            List<Future<?>> sent = new ArrayList<>();
            for (int partition = 0; partition < maps.member().partitionCount(); partition++) {
                sent.add(maps.member().invoke(new ForgetOperation(map), partition));
            }
            for (Future<?> each : sent) {
                each.get();
            }
        }
        return null;
    }

    /** Informs every member, before the caller gets the outcome. */
    void informMembers() {
        maps.state(map).destroyed();
        try {
            // A member that has left is not informed: the next owners of its partitions compare
            // them with the log.
            onAnotherThread(() -> {
                informOthers();
                return null;
            });
        } catch (ExecutionException e) {
            maps.member().logger().warning("imap-wal: map \"" + map
                    + "\" was destroyed, but the other members were not informed", e);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private void informOthers() throws InterruptedException {
        List<Future<?>> sent = new ArrayList<>();
        for (Member member : maps.member().others()) {
            sent.add(maps.member().nodeEngine().getOperationService().invokeOnTarget(
                    MapService.SERVICE_NAME, new DestroyedOperation(map), member.getAddress()));
        }
        for (Future<?> answer : sent) {
            try {
                answer.get();
            } catch (ExecutionException e) {
                maps.member().logger().fine("imap-wal: a member was not informed", e);
            }
        }
    }

    /**
     * Whether the log has none of its keys. Then nothing is logged: the map may never have been
     * written.
     */
    private boolean isEmpty() throws IOException {
        try (AgentReader reader = maps.readers().make(settings)) {
            return reader.keys(map, null, 1).count() == 0;
        }
    }
}
