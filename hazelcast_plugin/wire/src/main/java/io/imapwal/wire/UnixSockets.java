package io.imapwal.wire;

import java.io.IOException;
import java.lang.reflect.Method;
import java.net.ProtocolFamily;
import java.net.SocketAddress;
import java.net.StandardProtocolFamily;
import java.nio.channels.SocketChannel;

/**
 * Unix domain sockets, which Java has since 16. They are looked up by name, because this code is
 * compiled for Java 8.
 */
final class UnixSockets {
    private static final Method OPEN = method(SocketChannel.class.getName(), "open",
            ProtocolFamily.class);
    private static final Method ADDRESS = method("java.net.UnixDomainSocketAddress", "of",
            String.class);
    static final boolean POSSIBLE = OPEN != null && ADDRESS != null;

    private UnixSockets() {
    }

    static SocketChannel open() throws IOException {
        return (SocketChannel) call(OPEN, StandardProtocolFamily.valueOf("UNIX"));
    }

    static SocketAddress address(String path) throws IOException {
        return (SocketAddress) call(ADDRESS, path);
    }

    /** Null: this Java does not have it. */
    private static Method method(String type, String name, Class<?> parameter) {
        try {
            return Class.forName(type).getMethod(name, parameter);
        } catch (ReflectiveOperationException e) {
            return null;
        }
    }

    private static Object call(Method method, Object argument) throws IOException {
        try {
            return method.invoke(null, argument);
        } catch (ReflectiveOperationException e) {
            Throwable cause = e.getCause();
            throw cause instanceof IOException ? (IOException) cause
                    : new IOException("a Unix domain socket cannot be used: " + cause, e);
        }
    }
}
