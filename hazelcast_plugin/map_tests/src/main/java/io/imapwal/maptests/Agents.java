package io.imapwal.maptests;

import com.hazelcast.spi.impl.NodeEngine;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Collections;
import java.util.Map;
import java.util.UUID;
import java.util.WeakHashMap;
import java.util.concurrent.atomic.AtomicInteger;

/** The agents of the members: `python -m tests.hazelcast_maps` starts and stops them. */
final class Agents {
    private final Path socket;
    private final AtomicInteger last = new AtomicInteger();
    /** Also of members that have ended: they may still be asked for the configuration of a map. */
    private final Map<NodeEngine, Agent> agents = Collections.synchronizedMap(new WeakHashMap<>());

    /** The name is not the member's UUID, which may change. */
    private record Agent(String name, String endpoint) {
    }

    Agents(Path socket) {
        this.socket = socket;
    }

    /** The endpoint of the member's agent. The agents of a cluster have a log together. */
    String of(NodeEngine member, UUID cluster) {
        return agents.computeIfAbsent(member, each -> {
            String name = "n" + last.incrementAndGet();
            return new Agent(name, ask("start " + cluster + " " + name));
        }).endpoint;
    }

    void release(NodeEngine member) {
        Agent agent = agents.get(member);
        if (agent != null) {
            ask("stop " + agent.name);
        }
    }

    private String ask(String question) {
        try (SocketChannel channel = SocketChannel.open(UnixDomainSocketAddress.of(socket))) {
            channel.write(ByteBuffer.wrap((question + "\n").getBytes(StandardCharsets.UTF_8)));
            ByteBuffer answer = ByteBuffer.allocate(1024);
            while (channel.read(answer) >= 0) {
                // Until the other end has closed the connection.
            }
            return new String(answer.array(), 0, answer.position(), StandardCharsets.UTF_8);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }
}
