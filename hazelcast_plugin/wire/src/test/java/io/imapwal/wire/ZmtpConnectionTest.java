package io.imapwal.wire;

import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

import java.io.DataInputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.SocketTimeoutException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTimeoutPreemptively;
import static org.junit.jupiter.api.Assertions.assertTrue;

/** The plug-in's end of ZMTP over TCP. The other end is written by hand. */
class ZmtpConnectionTest {
    private ServerSocket server;
    private CompletableFuture<Object> outcome;

    private interface OtherEnd {
        Object talk(DataInputStream in, OutputStream out) throws Exception;
    }

    private ZmtpConnection connect(OtherEnd other) throws IOException {
        server = new ServerSocket(0, 1, InetAddress.getLoopbackAddress());
        outcome = CompletableFuture.supplyAsync(() -> {
            try (Socket socket = server.accept()) {
                return other.talk(new DataInputStream(socket.getInputStream()),
                        socket.getOutputStream());
            } catch (Exception e) {
                return e;
            }
        });
        return ZmtpConnection.open(AgentEndpoint.parse("tcp://127.0.0.1:" + server.getLocalPort()),
                AgentSecrets.NONE, in(2000));
    }

    private static long in(long ms) {
        return System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(ms);
    }

    @AfterEach
    void close() throws IOException {
        if (server != null) {
            server.close();
        }
    }

    private static byte[] pattern(int size) {
        byte[] bytes = new byte[size];
        for (int i = 0; i < size; i++) {
            bytes[i] = (byte) (i * 31 + i / 251);
        }
        return bytes;
    }

    @Test
    void messagesOfAllSizesGoBothWays() throws Exception {
        int[] sizes = {0, 1, 255, 256, 65_530, 65_536, 3_000_000, 9_000_000};
        try (ZmtpConnection connection = connect((in, out) -> {
            FakeWire.handshake(in, out, 0);
            for (int i = 0; i < sizes.length; i++) {
                FakeWire.send(out, FakeWire.receive(in));
            }
            return "done";
        })) {
            for (int size : sizes) {
                byte[] header = pattern(17);
                byte[] payload = pattern(size + 5);
                connection.send(new byte[][] {header, payload}, new int[] {17, size}, in(5000));
                List<byte[]> back = connection.receive(in(5000));
                assertEquals(2, back.size());
                assertArrayEquals(header, back.get(0));
                assertArrayEquals(Arrays.copyOf(payload, size), back.get(1));
            }
        }
        assertEquals("done", outcome.get());
    }

    @Test
    void pingIsAnsweredBetweenMessages() throws Exception {
        try (ZmtpConnection connection = connect((in, out) -> {
            FakeWire.handshake(in, out, 0);
            byte[] ping = "\4PING\0\0ctx".getBytes(StandardCharsets.ISO_8859_1);
            out.write(new byte[] {4, (byte) ping.length});
            out.write(ping);
            FakeWire.send(out, List.of(new byte[] {1}));
            int flags = in.read();
            byte[] pong = new byte[in.read()];
            in.readFully(pong);
            return flags + new String(pong, StandardCharsets.ISO_8859_1);
        })) {
            assertArrayEquals(new byte[] {1}, connection.receive(in(2000)).get(0));
            assertEquals("4\4PONGctx", outcome.get());
        }
    }

    @Test
    void missingAnswerEndsInTime() throws Exception {
        try (ZmtpConnection connection = connect((in, out) -> {
            FakeWire.handshake(in, out, 0);
            return in.read() + in.read();
        })) {
            assertTimeoutPreemptively(Duration.ofSeconds(60),
                    () -> assertThrows(SocketTimeoutException.class, () ->
                        connection.receive(in(150))));
        }
    }

    @Test
    void closedConnectionIsAnError() throws Exception {
        try (ZmtpConnection connection = connect((in, out) -> {
            FakeWire.handshake(in, out, 0);
            out.write(new byte[] {0, 10, 1, 2});
            return null;
        })) {
            assertThrows(IOException.class, () -> connection.receive(in(2000)));
        }
    }

    @Test
    void otherEndWithoutRouterIsRefused() {
        assertThrows(ProtocolException.class, () -> connect((in, out) -> {
            String answer = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n"
                    + "Connection: close\r\n\r\n and so on";
            out.write(answer.getBytes(StandardCharsets.US_ASCII));
            return in.read();
        }));
    }

    @Test
    void otherEndWithCurveIsRefused() {
        assertTrue(assertThrows(ProtocolException.class, () -> connect((in, out) -> {
            byte[] greeting = new byte[64];
            greeting[0] = (byte) 0xff;
            greeting[9] = 0x7f;
            greeting[10] = 3;
            System.arraycopy("CURVE".getBytes(StandardCharsets.US_ASCII), 0, greeting, 12, 5);
            out.write(greeting);
            return in.read();
        })).getMessage().contains("NULL"));
    }

    @Test
    void silentListenerIsGivenUp() {
        CountDownLatch givenUp = new CountDownLatch(1);
        assertThrows(SocketTimeoutException.class, () ->
                connect((in, out) -> givenUp.await(60, TimeUnit.SECONDS)));
        givenUp.countDown();
    }

    @Test
    void missingListenerIsAnError() {
        assertThrows(IOException.class, () -> ZmtpConnection.open(
                AgentEndpoint.parse("tcp://127.0.0.1:1"), AgentSecrets.NONE, in(1000)));
        assertThrows(IOException.class, () -> ZmtpConnection.open(
                AgentEndpoint.parse("ipc:///nowhere/agent.sock"), AgentSecrets.NONE, in(1000)));
    }
}
