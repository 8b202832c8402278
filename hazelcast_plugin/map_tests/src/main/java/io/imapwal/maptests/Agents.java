package io.imapwal.maptests;

import com.hazelcast.spi.impl.NodeEngine;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;

/** The agents of the members: `python -m tests.hazelcast_maps` starts and stops them. */
final class Agents {
    private final Path socket;
    /** Members by number: the UUID of a member may change. */
    private final Map<NodeEngine, Integer> numbers = new ConcurrentHashMap<>();
    private final Map<NodeEngine, String> endpoints = new ConcurrentHashMap<>();
    private final AtomicInteger last = new AtomicInteger();

    Agents(Path socket) {
        this.socket = socket;
    }

    /** The endpoint of the member's agent. The agents of a cluster have a log together. */
    String of(NodeEngine member, UUID cluster) {
        return endpoints.computeIfAbsent(member, each ->
                ask("start " + cluster + " n" + number(each)));
    }

    void release(NodeEngine member) {
        if (endpoints.remove(member) != null) {
            ask("stop n" + number(member));
        }
    }

    private int number(NodeEngine member) {
        return numbers.computeIfAbsent(member, each -> last.incrementAndGet());
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
