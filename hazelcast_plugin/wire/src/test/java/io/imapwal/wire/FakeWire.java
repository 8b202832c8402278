package io.imapwal.wire;

import java.io.BufferedInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.nio.channels.Channels;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;

/** The agent's end of ZMTP (a ROUTER without a security mechanism), written by hand. */
public final class FakeWire {

    public interface Command {
        void accept(byte[] command) throws IOException;
    }

    private FakeWire() {
    }

    public static DataInputStream input(SocketChannel channel) {
        return new DataInputStream(
                new BufferedInputStream(Channels.newInputStream(channel), 1 << 16));
    }

    /** The stream of Channels would wait for a read under way (Java 17). */
    public static OutputStream output(SocketChannel channel) {
        return new OutputStream() {
            @Override
            public void write(int one) throws IOException {
                write(new byte[] {(byte) one}, 0, 1);
            }

            @Override
            public void write(byte[] bytes, int from, int length) throws IOException {
                ByteBuffer left = ByteBuffer.wrap(bytes, from, length);
                while (left.hasRemaining()) {
                    channel.write(left);
                }
            }
        };
    }

    /** @param admissionDelayMs how long the agent takes to admit the connection */
    public static void handshake(DataInputStream in, OutputStream out, long admissionDelayMs)
            throws IOException, InterruptedException {
        byte[] greeting = new byte[64];
        greeting[0] = (byte) 0xff;
        greeting[9] = 0x7f;
        greeting[10] = 3;
        greeting[11] = 1;
        System.arraycopy("NULL".getBytes(StandardCharsets.US_ASCII), 0, greeting, 12, 4);
        out.write(greeting);
        in.readFully(new byte[64]);
        Thread.sleep(admissionDelayMs);
        byte[] ready = "\5READY\13Socket-Type\0\0\0\6ROUTER\10Identity\0\0\0\0".getBytes(
                StandardCharsets.ISO_8859_1);
        out.write(new byte[] {4, (byte) ready.length});
        out.write(ready);
        if (in.read() != 4) {
            throw new EOFException("no READY");
        }
        in.readFully(new byte[in.read()]);
    }

    public static List<byte[]> receive(DataInputStream in) throws IOException {
        return receive(in, command -> { });
    }

    /** The frames of the next message. Commands before it are handed to the other argument. */
    public static List<byte[]> receive(DataInputStream in, Command commands) throws IOException {
        List<byte[]> frames = new ArrayList<>();
        while (true) {
            int flags = in.readUnsignedByte();
            long size = (flags & 2) != 0 ? in.readLong() : in.readUnsignedByte();
            byte[] body = new byte[(int) size];
            in.readFully(body);
            if ((flags & 4) != 0) {
                commands.accept(body);
                continue;
            }
            frames.add(body);
            if ((flags & 1) == 0) {
                return frames;
            }
        }
    }

    public static void send(OutputStream out, List<byte[]> frames) throws IOException {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        for (int i = 0; i < frames.size(); i++) {
            byte[] frame = frames.get(i);
            int more = i + 1 < frames.size() ? 1 : 0;
            if (frame.length > 255) {
                bytes.write(more | 2);
                bytes.write(ByteBuffer.allocate(8).putLong(frame.length).array());
            } else {
                bytes.write(more);
                bytes.write(frame.length);
            }
            bytes.write(frame);
        }
        out.write(bytes.toByteArray());
    }

    /** An answer is one frame: the size of its header, the header, the payload. */
    public static void sendAnswer(OutputStream out, List<byte[]> answer) throws IOException {
        byte[] header = answer.get(0);
        byte[] payload = answer.get(1);
        send(out, List.of(ByteBuffer.allocate(4 + header.length + payload.length)
                .putInt(header.length).put(header).put(payload).array()));
    }

    public static boolean isPing(byte[] command) {
        return new String(command, StandardCharsets.ISO_8859_1).startsWith("\4PING");
    }

    public static void sendPong(OutputStream out) throws IOException {
        out.write(new byte[] {4, 5, 4, 'P', 'O', 'N', 'G'});
    }
}
