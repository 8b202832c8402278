package io.imapwal.wire;

import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;
import software.pando.crypto.nacl.CryptoBox;

import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import java.security.KeyPair;
import java.security.interfaces.XECPrivateKey;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

import static io.imapwal.wire.FakeCurveServer.ascii;
import static io.imapwal.wire.FakeCurveServer.bytes;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

/**
 * CURVE with a server that can break the rules. tests/hostile/test_member_over_tcp.py tests it with
 * libzmq.
 */
class CurveClientTest {
    private final KeyPair agent = CryptoBox.keyPair();
    private final KeyPair member = CryptoBox.keyPair();
    private ServerSocket listener;
    /** What the server's script returned, or the exception that it threw. */
    private CompletableFuture<Object> outcome;
    private AgentSecrets secrets;
    @TempDir
    private Path folder;

    /** What the server does on a connection. */
    private interface Script {
        Object run(FakeCurveServer server) throws Exception;
    }

    @BeforeEach
    void makeKeys() throws IOException {
        secrets = new AgentSecrets(file("member.key", keyFile()), bytes(agent.getPublic()), "");
    }

    @AfterEach
    void close() throws IOException {
        if (listener != null) {
            listener.close();
        }
    }

    private String keyFile() {
        HexFormat hex = HexFormat.of();
        byte[] secret = ((XECPrivateKey) member.getPrivate()).getScalar().orElseThrow();
        return "# a comment\nname = \"m\"\npublic-key = \""
                + hex.formatHex(bytes(member.getPublic())) + "\"\nsecret-key = \""
                + hex.formatHex(secret) + "\"\n";
    }

    private String file(String name, String text) throws IOException {
        Path path = folder.resolve(name);
        Files.writeString(path, text);
        Files.setPosixFilePermissions(path, PosixFilePermissions.fromString("rw-------"));
        return path.toString();
    }

    private ZmtpConnection connect(Script script) throws IOException {
        listener = new ServerSocket(0, 1, InetAddress.getLoopbackAddress());
        outcome = CompletableFuture.supplyAsync(() -> {
            try (Socket socket = listener.accept()) {
                return script.run(new FakeCurveServer(socket, agent));
            } catch (Exception e) {
                return e;
            }
        });
        return ZmtpConnection.open(AgentEndpoint.parse("tcp://127.0.0.1:"
                + listener.getLocalPort()), secrets, in(5000));
    }

    private static long in(long ms) {
        return System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(ms);
    }

    @Test
    void messagesOfAllSizesAreEncryptedBothWays() throws Exception {
        int[] sizes = {0, 1, 222, 223, 255, 256, 65_536, 3_000_000};
        try (ZmtpConnection connection = connect(server -> {
            server.handshake();
            assertArrayEquals(bytes(member.getPublic()), server.client);
            for (int i = 0; i < sizes.length; i++) {
                byte[] header = server.opened();
                byte[] payload = server.opened();
                assertEquals(1, header[0]);
                assertEquals(0, payload[0]);
                server.send(0, server.sealed(1, Arrays.copyOfRange(header, 1, header.length)));
                server.send(0, server.sealed(0, Arrays.copyOfRange(payload, 1, payload.length)));
            }
            return "done";
        })) {
            Random random = new Random(1);
            for (int size : sizes) {
                byte[] payload = new byte[size + 5];
                random.nextBytes(payload);
                connection.send(new byte[][] {ascii("header"), payload}, new int[] {6, size},
                        in(5000));
                List<byte[]> back = connection.receive(in(5000));
                assertEquals("header", new String(back.get(0), StandardCharsets.US_ASCII));
                assertArrayEquals(Arrays.copyOf(payload, size), back.get(1));
            }
        }
        assertEquals("done", outcome.get());
    }

    @Test
    void pingAndPongAreEncrypted() throws Exception {
        try (ZmtpConnection connection = connect(server -> {
            server.handshake();
            server.send(0, server.sealed(2, ascii("\4PING\0\0ctx")));
            byte[] pong = server.opened();
            byte[] ping = server.opened();
            server.send(0, server.sealed(2, ascii("\4PONG")));
            server.send(0, server.sealed(0, ascii("x")));
            return new String(pong, StandardCharsets.ISO_8859_1)
                    + new String(ping, StandardCharsets.ISO_8859_1);
        })) {
            long before = connection.written();
            CompletableFuture<List<byte[]>> received = CompletableFuture.supplyAsync(() -> {
                try {
                    return connection.receive(in(5000));
                } catch (IOException e) {
                    throw new IllegalStateException(e);
                }
            });
            while (connection.written() == before && !received.isDone()) {
                Thread.sleep(1); // Until the PONG was sent.
            }
            connection.ping(in(5000));
            assertArrayEquals(ascii("x"), received.get().get(0));
            assertEquals(1, connection.pongs());
        }
        assertEquals("\2\4PONGctx\2\4PING\0\0", outcome.get());
    }

    @Test
    void changedRepeatedOrPlainMessageEndsTheConnection() throws Exception {
        for (String attack : List.of("changed", "repeated", "older", "plain", "short", "tag",
                "empty")) {
            try (ZmtpConnection connection = connect(server -> {
                server.handshake();
                byte[] first = server.sealed(0, ascii("first"));
                byte[] second = server.sealed(0, ascii("second"));
                server.send(0, attack.equals("older") ? second : first);
                byte[] changed = second.clone();
                changed[changed.length - 1] ^= 1;
                byte[] tag = second.clone();
                tag[16] ^= 1;
                server.send(0, switch (attack) {
                    case "changed" -> changed;
                    case "tag" -> tag;
                    case "repeated", "older" -> first;
                    case "plain" -> ascii("second");
                    case "empty" -> new byte[0];
                    default -> Arrays.copyOf(second, 20);
                });
                return server.in.read();
            })) {
                connection.receive(in(5000));
                assertThrows(ProtocolException.class, () -> connection.receive(in(5000)), attack);
            }
            listener.close();
        }
    }

    @Test
    void agentWithAnotherKeyGetsNoData() {
        assertThrows(IOException.class, () -> connect(server -> {
            server.keys = CryptoBox.keyPair();
            return server.handshake();
        }));
    }

    @Test
    void welcomeOfAnotherPartyIsRefused() {
        for (int size : new int[] {0, 7, 8, 167, 168, 169, 250}) {
            assertThrows(ProtocolException.class, () -> connect(server -> {
                server.greet();
                server.frame();
                byte[] welcome = new byte[size];
                System.arraycopy(ascii("\7WELCOME"), 0, welcome, 0, Math.min(size, 8));
                server.send(FakeCurveServer.COMMAND, welcome);
                return server.in.read();
            }), "size " + size);
        }
    }

    @Test
    void refusalNamesTheFileOfClients() {
        AgentError refused = assertThrows(AgentError.class, () -> connect(server -> {
            server.error = ascii("\5ERROR\003400");
            return server.handshake();
        }));
        assertEquals(AgentError.NOT_ALLOWED, refused.code());
        assertTrue(refused.certain());
        assertFalse(refused.connectionStays());
        assertTrue(refused.getMessage().contains("file of clients"));
    }

    @Test
    void agentWithoutKeysGetsNoPlainMessage() {
        ProtocolException refused = assertThrows(ProtocolException.class, () -> connect(server -> {
            server.mechanism = "NULL";
            return server.handshake();
        }));
        assertTrue(refused.getMessage().contains("the agent uses no keys"));
    }

    @Test
    void invalidAgentKeyIsRefused() throws IOException {
        AgentSecrets zero = new AgentSecrets(secrets.keyFile(), new byte[32], "");
        CurveClient curve = new CurveClient(zero.own(), zero.agentKey());
        assertThrows(ProtocolException.class, curve::hello);
    }

    @Test
    void noTwoMessagesHaveTheSameNonce() throws Exception {
        List<byte[]> seen = new ArrayList<>();
        try (ZmtpConnection connection = connect(server -> {
            server.handshake();
            for (int i = 0; i < 400; i++) {
                seen.add(Arrays.copyOfRange(server.frame(), 8, 16));
            }
            server.send(0, server.sealed(0, ascii("x")));
            return "done";
        })) {
            List<Thread> threads = new ArrayList<>();
            for (int i = 0; i < 4; i++) {
                Thread thread = new Thread(() -> {
                    for (int k = 0; k < 50; k++) {
                        try {
                            connection.send(new byte[][] {{1}, {2}}, new int[] {1, 1}, in(5000));
                        } catch (IOException e) {
                            return;
                        }
                    }
                });
                thread.start();
                threads.add(thread);
            }
            for (Thread thread : threads) {
                thread.join();
            }
            connection.receive(in(5000));
        }
        assertEquals(400, seen.stream().map(HexFormat.of()::formatHex).distinct().count());
    }

    @ParameterizedTest
    @ValueSource(strings = {"rw-r--r--", "rw----r--", "rw-----w-"})
    void keyReadableByOthersIsRefused(String permissions) throws IOException {
        Files.setPosixFilePermissions(Path.of(secrets.keyFile()),
                PosixFilePermissions.fromString(permissions));
        assertTrue(assertThrows(IOException.class, secrets::own).getMessage()
                .contains("other users may open it"));
    }

    @Test
    void settingsErrorsShowNoSecret() throws IOException {
        String tcp = "tcp://10.0.0.5:7701";
        String key = secrets.keyFile();
        String agentKey = HexFormat.of().formatHex(secrets.agentKey());
        String token = file("c.token", "t".repeat(64) + "\n");
        AgentSettings settings = AgentSettings.of("orders",
                properties(tcp, key, agentKey, token));
        assertEquals("t".repeat(64), settings.secrets().token());
        assertFalse(settings.toString().contains("ttt"));
        assertRefused("belong together", tcp, key, "", "");
        assertRefused("belong together", tcp, "", agentKey, "");
        assertRefused("64 hexadecimal digits", tcp, key, agentKey.substring(1), "");
        assertRefused("is for tcp:// endpoints", "ipc:///run/a.sock", key, agentKey, "");
        assertRefused("anyone on the network between", tcp, "", "", "");
        assertRefused("does not exist", tcp, key + "x", agentKey, "");
        assertRefused("no token", "ipc:///run/a.sock", "", "", file("short", "t".repeat(31)));
        assertRefused("no public-key", tcp, file("no.key", "name = \"x\"\n"), agentKey, "");
        AgentSettings.of("orders", properties("tcp://127.0.0.1:7701", "", "", token));
    }

    private static Properties properties(String agent, String key, String agentKey, String token) {
        Properties properties = new Properties();
        properties.setProperty("agent", agent);
        properties.setProperty("agent-key-file", key);
        properties.setProperty("agent-public-key", agentKey);
        properties.setProperty("cluster-token-file", token);
        return properties;
    }

    private static void assertRefused(String reason, String agent, String key,
            String agentKey, String token) {
        String message = assertThrows(IllegalArgumentException.class,
                () -> AgentSettings.of("orders", properties(agent, key, agentKey, token)))
                .getMessage();
        assertTrue(message.contains(reason) && message.contains("\"orders\""), message);
    }
}
