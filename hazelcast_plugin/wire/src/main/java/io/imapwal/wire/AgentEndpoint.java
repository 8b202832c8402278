package io.imapwal.wire;

import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.net.StandardSocketOptions;
import java.net.UnknownHostException;
import java.nio.channels.SocketChannel;
import java.nio.file.InvalidPathException;
import java.nio.file.Paths;

/**
 * The address of an agent, {@code ipc:///path} or {@code tcp://host:port}. Its host is resolved at
 * each connect.
 */
public final class AgentEndpoint {
    private final String text;
    private final String path;
    final String host;
    final int port;

    private AgentEndpoint(String text, String path, String host, int port) {
        this.text = text;
        this.path = path;
        this.host = host;
        this.port = port;
    }

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
            if (!UnixSockets.POSSIBLE) {
                throw new IllegalArgumentException("\"" + text + "\" needs Java 16 or newer, and"
                        + " this is Java " + System.getProperty("java.version")
                        + ": use tcp://127.0.0.1:port, and let the agent listen there");
            }
            try {
                Paths.get(path);
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

    /** The socket's; null: it is {@code tcp://}. */
    public String path() {
        return path;
    }

    /** Whether the text names an endpoint that only this machine can reach. */
    public boolean isLocal() {
        return path != null || host.equals("localhost") || host.startsWith("127.")
                || host.equals("::1");
    }

    public SocketChannel open() throws IOException {
        if (path != null) {
            return UnixSockets.open();
        }
        SocketChannel channel = SocketChannel.open();
        channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
        return channel;
    }

    SocketAddress address() throws IOException {
        if (path != null) {
            return UnixSockets.address(path);
        }
        InetSocketAddress address = new InetSocketAddress(host, port);
        if (address.isUnresolved()) {
            throw new UnknownHostException(host);
        }
        return address;
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof AgentEndpoint && text.equals(((AgentEndpoint) other).text);
    }

    @Override
    public int hashCode() {
        return text.hashCode();
    }

    @Override
    public String toString() {
        return text;
    }
}
