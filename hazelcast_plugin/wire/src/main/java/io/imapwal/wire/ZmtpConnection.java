package io.imapwal.wire;

import java.io.Closeable;
import java.io.EOFException;
import java.io.IOException;
import java.net.SocketTimeoutException;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;

/**
 * The DEALER's end of one ZMTP 3.0 connection to one ROUTER. Every wait has a limit. With keys the
 * mechanism is CURVE, otherwise NULL.
 *
 * <p>It uses no ZeroMQ library. The caller's thread itself writes and reads the socket, so a map
 * operation needs no change of threads and no in-process socket pair. One thread may receive while
 * another sends.
 *
 * <pre>
 * greeting   FF 00 00 00 00 00 00 00 00 7F | 03 00 | mechanism, 20 bytes | as-server 00 | 31 zeros
 * frame      flags(1): 1 more, 2 long, 4 command | size(1, or 8 big-endian when long) | body
 * READY      command body: 05 "READY" { name-size(1) name value-size(4) value }...;
 *            with CURVE see CurveClient
 * </pre>
 */
public final class ZmtpConnection implements Closeable {
    private static final int MORE = 1;
    private static final int LONG = 2;
    private static final int COMMAND = 4;
    private static final int GREETING = 64;
    private static final int BUFFER = 64 * 1024;

    /** Whether a wait may continue after its deadline. */
    public interface Patience {
        Patience NONE = () -> 0;

        /** Milliseconds for which to wait before this is asked again; 0: the wait has failed. */
        long moreMs();
    }

    private final SocketChannel channel;
    /** Null without keys. */
    private final CurveClient curve;
    private final Waiter reader;
    private final Waiter writer;
    private final Object sending = new Object();
    private final ByteBuffer in = (ByteBuffer) ByteBuffer.allocate(BUFFER).flip();
    private final ByteBuffer out = ByteBuffer.allocateDirect(BUFFER);
    private long written;
    private volatile long pongs;
    private volatile Patience patience = Patience.NONE;

    private ZmtpConnection(SocketChannel channel, CurveClient curve) throws IOException {
        this.channel = channel;
        this.curve = curve;
        channel.configureBlocking(false);
        this.reader = new Waiter(channel);
        try {
            this.writer = new Waiter(channel);
        } catch (IOException e) {
            reader.close();
            throw e;
        }
    }

    /** Lets one thread wait for the socket. */
    private final class Waiter implements Closeable {
        private final Selector selector = Selector.open();
        private final SelectionKey key;

        Waiter(SocketChannel channel) throws IOException {
            key = channel.register(selector, 0);
        }

        public void await(int operation, long deadlineNanos) throws IOException {
            key.interestOps(operation);
            long left = TimeUnit.NANOSECONDS.toMillis(deadlineNanos - System.nanoTime());
            if (left <= 0) {
                left = patience.moreMs();
            }
            if (left <= 0) {
                throw new SocketTimeoutException("no answer in time");
            }
            selector.select(left);
            selector.selectedKeys().clear();
        }

        @Override
        public void close() throws IOException {
            selector.close();
        }
    }

    public static ZmtpConnection open(AgentEndpoint endpoint, AgentSecrets secrets,
            long deadlineNanos) throws IOException {
        return open(endpoint, secrets, deadlineNanos, () -> Patience.NONE);
    }

    /**
     * Connects. The other end's greeting must arrive in time: a busy agent sends it too.
     *
     * @param greeted returns the patience for the rest of the handshake, and for what follows: the
     *                agent itself decides whether it admits this connection, and may be busy
     */
    public static ZmtpConnection open(AgentEndpoint endpoint, AgentSecrets secrets,
            long deadlineNanos, Supplier<Patience> greeted) throws IOException {
        AgentSecrets.Own own = secrets.own();
        CurveClient curve = own == null ? null : new CurveClient(own, secrets.agentKey());
        SocketChannel channel = endpoint.open();
        ZmtpConnection connection = null;
        try {
            connection = new ZmtpConnection(channel, curve);
            connection.connect(endpoint, deadlineNanos);
            connection.handshake(deadlineNanos, greeted);
            return connection;
        } catch (IOException | RuntimeException e) {
            if (connection == null) {
                channel.close();
            } else {
                connection.close();
            }
            throw e;
        }
    }

    /** Sets the patience of later waits. */
    public void patience(Patience now) {
        patience = now;
    }

    /**
     * Bytes that the operating system has accepted since the connection was opened. They show
     * whether a part of a message may have been sent.
     */
    public long written() {
        return written;
    }

    /**
     * Sends one message of the given frames; a frame is the first {@code sizes[i]} bytes of {@code
     * frames[i]}.
     */
    public void send(byte[][] frames, int[] sizes, long deadlineNanos) throws IOException {
        synchronized (sending) {
            out.clear();
            for (int i = 0; i < frames.length; i++) {
                boolean more = i + 1 < frames.length;
                if (curve == null) {
                    frame(more ? MORE : 0, frames[i], sizes[i], deadlineNanos);
                } else {
                    byte[] sealed = curve.seal(more ? CurveClient.MORE : 0, frames[i], sizes[i]);
                    frame(0, sealed, sealed.length, deadlineNanos);
                }
            }
            flush(deadlineNanos);
        }
    }

    private void frame(int flags, byte[] body, int size, long deadlineNanos) throws IOException {
        if (out.remaining() < 9) {
            flush(deadlineNanos);
        }
        header(flags, size);
        int offset = 0;
        while (offset < size) {
            if (!out.hasRemaining()) {
                flush(deadlineNanos);
            }
            int part = Math.min(out.remaining(), size - offset);
            out.put(body, offset, part);
            offset += part;
        }
    }

    private void sendCommand(byte[] body, long deadlineNanos) throws IOException {
        synchronized (sending) {
            out.clear();
            if (curve == null) {
                frame(COMMAND, body, body.length, deadlineNanos);
            } else {
                byte[] sealed = curve.seal(CurveClient.COMMAND, body, body.length);
                frame(0, sealed, sealed.length, deadlineNanos);
            }
            flush(deadlineNanos);
        }
    }

    /**
     * Asks for a PONG, which an agent sends even if its loop is busy. {@link #receive} counts it.
     */
    void ping(long deadlineNanos) throws IOException {
        sendCommand(ascii("\4PING\0\0"), deadlineNanos);
    }

    long pongs() {
        return pongs;
    }

    /** The next message's frames. */
    public List<byte[]> receive(long deadlineNanos) throws IOException {
        List<byte[]> frames = new ArrayList<>(2);
        while (true) {
            need(2, deadlineNanos);
            int flags = in.get() & 0xff;
            long size = in.get() & 0xff;
            if ((flags & LONG) != 0) {
                need(7, deadlineNanos);
                for (int i = 0; i < 7; i++) {
                    size = size << 8 | (in.get() & 0xff);
                }
            }
            if ((flags & ~(MORE | LONG | COMMAND)) != 0 || size < 0
                    || size > Integer.MAX_VALUE - 64) {
                throw new ProtocolException("not a ZMTP frame: flags " + flags + ", size " + size);
            }
            byte[] body = body((int) size, deadlineNanos);
            boolean command = (flags & COMMAND) != 0;
            boolean more = (flags & MORE) != 0;
            if (curve != null) {
                byte[] opened = curve.open(body);
                command = (opened[0] & CurveClient.COMMAND) != 0;
                more = (opened[0] & CurveClient.MORE) != 0;
                body = Arrays.copyOfRange(opened, 1, opened.length);
            }
            if (command) {
                command(body, deadlineNanos);
                continue;
            }
            frames.add(body);
            if (!more) {
                return frames;
            }
        }
    }

    @Override
    public void close() {
        for (Closeable resource : new Closeable[] {channel, reader, writer}) {
            try {
                resource.close();
            } catch (IOException e) {
                // No thread waits for the bytes that are still in flight.
            }
        }
    }

    private void connect(AgentEndpoint endpoint, long deadlineNanos) throws IOException {
        if (!channel.connect(endpoint.address())) {
            do {
                writer.await(SelectionKey.OP_CONNECT, deadlineNanos);
            } while (!channel.finishConnect());
        }
    }

    private void handshake(long deadlineNanos, Supplier<Patience> greeted) throws IOException {
        byte[] greeting = new byte[GREETING];
        greeting[0] = (byte) 0xff;
        greeting[9] = 0x7f;
        greeting[10] = 3;
        byte[] mechanism = ascii(curve == null ? "NULL" : "CURVE");
        System.arraycopy(mechanism, 0, greeting, 12, mechanism.length);
        out.clear();
        out.put(greeting);
        flush(deadlineNanos);
        byte[] theirs = body(GREETING, deadlineNanos);
        if ((theirs[0] & 0xff) != 0xff || (theirs[9] & 1) == 0 || theirs[10] < 3) {
            throw new ProtocolException("the other side does not speak ZMTP 3: is it an agent?");
        }
        if (!Arrays.equals(Arrays.copyOfRange(greeting, 12, 32),
                Arrays.copyOfRange(theirs, 12, 32))) {
            throw new ProtocolException(curve == null
                    ? "the agent accepts only connections with keys, and ours is NULL: set"
                    + " agent-key-file and agent-public-key"
                    : "the agent uses no keys: leave agent-key-file and agent-public-key out, or"
                    + " give it a key and clients");
        }
        patience = greeted.get();
        MsgpackWriter properties = new MsgpackWriter();
        property(properties, "Socket-Type", "DEALER");
        property(properties, "Identity", "");
        byte[] metadata = Arrays.copyOf(properties.array(), properties.length());
        byte[] answer;
        if (curve == null) {
            byte[] name = ascii("\5READY");
            handshakeCommand(ByteBuffer.allocate(name.length + metadata.length).put(name)
                    .put(metadata).array(), deadlineNanos);
            answer = handshakeAnswer(deadlineNanos);
            if (!startsWith(answer, name)) {
                throw new ProtocolException("the other side refused the ZMTP handshake: "
                        + text(answer));
            }
        } else {
            handshakeCommand(curve.hello(), deadlineNanos);
            handshakeCommand(curve.initiate(handshakeAnswer(deadlineNanos), metadata),
                    deadlineNanos);
            answer = curve.ready(handshakeAnswer(deadlineNanos));
        }
        if (!text(answer).contains("ROUTER")) {
            throw new ProtocolException("the other side is not a ROUTER: " + text(answer));
        }
    }

    private void handshakeCommand(byte[] body, long deadlineNanos) throws IOException {
        out.clear();
        frame(COMMAND, body, body.length, deadlineNanos);
        flush(deadlineNanos);
    }

    private byte[] handshakeAnswer(long deadlineNanos) throws IOException {
        need(2, deadlineNanos);
        int flags = in.get() & 0xff;
        int size = in.get() & 0xff;
        byte[] answer = body(size, deadlineNanos);
        if (flags != COMMAND) {
            throw new ProtocolException("the other side refused the ZMTP handshake: "
                    + text(answer));
        }
        if (startsWith(answer, ascii("\5ERROR"))) {
            // In this form the decision of the agent's access rules arrives.
            throw new AgentError(AgentError.NOT_ALLOWED, (curve == null
                    ? "the agent does not admit the user of this process: see allow_uids in"
                    + " agent.toml"
                    : "the agent does not admit the key of this member: see its file of clients")
                    + "; the agent's log names the refused user or key (" + text(answer) + ")");
        }
        return answer;
    }

    private static void property(MsgpackWriter to, String name, String value) {
        byte[] bytes = ascii(name);
        byte[] content = ascii(value);
        to.raw(new byte[] {(byte) bytes.length}, 0, 1).raw(bytes, 0, bytes.length);
        to.raw(ByteBuffer.allocate(4).putInt(content.length).array(), 0, 4)
                .raw(content, 0, content.length);
    }

    private void command(byte[] body, long deadlineNanos) throws IOException {
        if (startsWith(body, ascii("\4PING"))) {
            // PING has a time to live (2 bytes) and a context (up to 16), which PONG repeats.
            byte[] name = ascii("\4PONG");
            int context = Math.max(0, body.length - 7);
            sendCommand(ByteBuffer.allocate(name.length + context).put(name)
                    .put(body, body.length - context, context).array(), deadlineNanos);
        } else if (startsWith(body, ascii("\4PONG"))) {
            pongs++;
        } else if (startsWith(body, ascii("\5ERROR"))) {
            throw new ProtocolException("the other side ended the connection: " + text(body));
        }
    }

    private void header(int flags, int size) {
        if (size > 255) {
            out.put((byte) (flags | LONG)).putLong(size);
        } else {
            out.put((byte) flags).put((byte) size);
        }
    }

    private void flush(long deadlineNanos) throws IOException {
        out.flip();
        while (out.hasRemaining()) {
            int count = channel.write(out);
            written += count;
            if (count == 0) {
                writer.await(SelectionKey.OP_WRITE, deadlineNanos);
            }
        }
        out.clear();
    }

    private byte[] body(int size, long deadlineNanos) throws IOException {
        byte[] body = new byte[Math.min(size, 1 << 20)];
        int have = 0;
        while (have < size) {
            if (!in.hasRemaining()) {
                need(1, deadlineNanos);
            }
            if (have == body.length) {
                // The buffer grows with what arrives, so that a wrong size cannot exhaust the heap.
                body = Arrays.copyOf(body, (int) Math.min(size, body.length * 2L));
            }
            int part = Math.min(in.remaining(), body.length - have);
            in.get(body, have, part);
            have += part;
        }
        return body;
    }

    private void need(int count, long deadlineNanos) throws IOException {
        while (in.remaining() < count) {
            in.compact();
            int read;
            try {
                read = channel.read(in);
            } finally {
                in.flip();
            }
            if (read < 0) {
                throw new EOFException("the agent closed the connection");
            }
            if (read == 0) {
                reader.await(SelectionKey.OP_READ, deadlineNanos);
            }
        }
    }

    private static boolean startsWith(byte[] body, byte[] prefix) {
        return ByteBuffer.wrap(body, 0, Math.min(body.length, prefix.length))
                .equals(ByteBuffer.wrap(prefix));
    }

    private static byte[] ascii(String text) {
        return text.getBytes(StandardCharsets.US_ASCII);
    }

    private static String text(byte[] body) {
        return new String(body, StandardCharsets.US_ASCII).replaceAll("[^\\x20-\\x7e]+", " ")
                .trim();
    }
}
