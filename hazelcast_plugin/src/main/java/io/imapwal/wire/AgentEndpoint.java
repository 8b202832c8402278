package io.imapwal.wire;

import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.net.StandardProtocolFamily;
import java.net.StandardSocketOptions;
import java.net.UnixDomainSocketAddress;
import java.net.UnknownHostException;
import java.nio.channels.SocketChannel;
import java.nio.file.InvalidPathException;

/**
 * The address of an agent, {@code ipc:///path} or {@code tcp://host:port}. Its host is resolved at
 * each connect.
 */
public record AgentEndpoint(String text, String path, String host, int port) {

    /**
     * @throws IllegalArgumentException the text has neither form; the message has the reason,
     *         without the name of the property
     */
    public static AgentEndpoint parse(String text) {
        if (text.startsWith("ipc://")) {
            String path = text.substring("ipc://".length());
            if (!path.startsWith("/")) {
                throw new IllegalArgumentException("\"" + text
                        + "\" needs an absolute path: ipc:///path/to/socket");
            }
            try {
                UnixDomainSocketAddress.of(path);
            } catch (InvalidPathException e) {
                throw new IllegalArgumentException("\"" + text + "\" is not a path: "
                        + e.getMessage());
            }
            return new AgentEndpoint(text, path, null, 0);
        }
        if (text.startsWith("tcp://")) {
            String rest = text.substring("tcp://".length());
            int colon = rest.lastIndexOf(':');
            if (colon > 0) {
                String host = rest.substring(0, colon);
                if (host.startsWith("[") && host.endsWith("]")) {
                    host = host.substring(1, host.length() - 1);
                }
                try {
                    int port = Integer.parseInt(rest.substring(colon + 1));
                    if (port > 0 && port < 65536 && !host.isEmpty()) {
                        return new AgentEndpoint(text, null, host, port);
                    }
                } catch (NumberFormatException e) {
                    // Falls through to the message below.
                }
            }
        }
        throw new IllegalArgumentException("\"" + text
                + "\" is neither ipc:///path/to/socket nor tcp://host:port");
    }

    /** Whether the text names an endpoint that only this machine can reach. */
    public boolean isLocal() {
        return path != null || host.equals("localhost") || host.startsWith("127.")
                || host.equals("::1");
    }

    public SocketChannel open() throws IOException {
        if (path != null) {
            return SocketChannel.open(StandardProtocolFamily.UNIX);
        }
        SocketChannel channel = SocketChannel.open();
        channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
        return channel;
    }

    SocketAddress address() throws IOException {
        if (path != null) {
            return UnixDomainSocketAddress.of(path);
        }
        InetSocketAddress address = new InetSocketAddress(host, port);
        if (address.isUnresolved()) {
            throw new UnknownHostException(host);
        }
        return address;
    }

    @Override
    public String toString() {
        return text;
    }
}
