package io.imapwal.hazelcast;

import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;
import software.pando.crypto.nacl.CryptoBox;
import software.pando.crypto.nacl.SecretBox;

import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import java.security.Key;
import java.security.KeyPair;
import java.security.PublicKey;
import java.security.interfaces.XECPrivateKey;
import java.security.interfaces.XECPublicKey;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

/**
 * CURVE with a server written by hand, which can break the rules. With libzmq:
 * tests/hostile/test_member_over_tcp.py.
 */
class CurveClientTest {
    private final KeyPair agent = CryptoBox.keyPair();
    private final KeyPair member = CryptoBox.keyPair();
    private ServerSocket listener;
    private CompletableFuture<Object> outcome;
    private AgentSecrets secrets;
    @TempDir
    private Path folder;

    private interface OtherEnd {
        Object talk(Server server) throws Exception;
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

    private ZmtpConnection connect(OtherEnd other) throws IOException {
        listener = new ServerSocket(0, 1, InetAddress.getLoopbackAddress());
        outcome = CompletableFuture.supplyAsync(() -> {
            try (Socket socket = listener.accept()) {
                return other.talk(new Server(socket));
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

    private static byte[] bytes(PublicKey key) {
        byte[] big = ((XECPublicKey) key).getU().toByteArray();
        byte[] little = new byte[32];
        for (int i = 0; i < Math.min(32, big.length); i++) {
            little[i] = big[big.length - 1 - i];
        }
        return little;
    }

    private static byte[] ascii(String text) {
        return text.getBytes(StandardCharsets.ISO_8859_1);
    }

    private static byte[] nonce(String prefix, byte[] rest) {
        return ByteBuffer.allocate(24).put(ascii(prefix)).put(rest).array();
    }

    /** Does what libzmq does in an agent. */
    private final class Server {
        final DataInputStream in;
        final DataOutputStream out;
        final KeyPair brief = CryptoBox.keyPair();
        Key shared;
        long number = 1;
        byte[] client;
        String mechanism = "CURVE";
        byte[] error;
        KeyPair identity = agent;

        Server(Socket socket) throws IOException {
            in = new DataInputStream(socket.getInputStream());
            out = new DataOutputStream(socket.getOutputStream());
        }

        Server handshake() throws IOException {
            byte[] greeting = new byte[64];
            greeting[0] = (byte) 0xff;
            greeting[9] = 0x7f;
            greeting[10] = 3;
            System.arraycopy(ascii(mechanism), 0, greeting, 12, mechanism.length());
            out.write(greeting);
            in.readFully(new byte[64]);
            byte[] hello = frame();
            assertEquals(200, hello.length);
            PublicKey theirs = CryptoBox.publicKey(Arrays.copyOfRange(hello, 80, 112));
            Key first = CryptoBox.agree(identity.getPrivate(), theirs);
            assertArrayEquals(new byte[64], SecretBox.fromCombined(
                    nonce("CurveZMQHELLO---", Arrays.copyOfRange(hello, 112, 120)),
                    Arrays.copyOfRange(hello, 120, 200)).decrypt(first));
            byte[] cookie = new byte[96];
            Arrays.fill(cookie, (byte) 7);
            byte[] content = ByteBuffer.allocate(128).put(bytes(brief.getPublic())).put(cookie)
                    .array();
            byte[] salt = ascii("0123456789abcdef");
            send(4, ByteBuffer.allocate(168).put(ascii("\7WELCOME")).put(salt)
                    .put(SecretBox.encrypt(first, nonce("WELCOME-", salt), content)
                        .getCiphertextWithTag()).array());

            byte[] initiate = frame();
            assertArrayEquals(cookie, Arrays.copyOfRange(initiate, 9, 105));
            shared = CryptoBox.agree(brief.getPrivate(), theirs);
            byte[] about = SecretBox.fromCombined(
                    nonce("CurveZMQINITIATE", Arrays.copyOfRange(initiate, 105, 113)),
                    Arrays.copyOfRange(initiate, 113, initiate.length)).decrypt(shared);
            client = Arrays.copyOf(about, 32);
            byte[] vouch = SecretBox.fromCombined(nonce("VOUCH---",
                    Arrays.copyOfRange(about, 32, 48)), Arrays.copyOfRange(about, 48, 128))
                    .decrypt(CryptoBox.agree(brief.getPrivate(), CryptoBox.publicKey(client)));
            assertArrayEquals(Arrays.copyOfRange(hello, 80, 112), Arrays.copyOf(vouch, 32));
            assertArrayEquals(bytes(agent.getPublic()), Arrays.copyOfRange(vouch, 32, 64));
            assertTrue(new String(about, StandardCharsets.ISO_8859_1).contains("DEALER"));
            if (error != null) {
                send(4, error);
                return this;
            }
            byte[] metadata = ascii("\13Socket-Type\0\0\0\6ROUTER");
            byte[] own = number();
            byte[] box = SecretBox.encrypt(shared, nonce("CurveZMQREADY---", own), metadata)
                    .getCiphertextWithTag();
            send(4, ByteBuffer.allocate(14 + box.length).put(ascii("\5READY")).put(own).put(box)
                    .array());
            return this;
        }

        byte[] number() {
            return ByteBuffer.allocate(8).putLong(number++).array();
        }

        byte[] frame() throws IOException {
            int flags = in.read();
            long size = (flags & 2) != 0 ? in.readLong() : in.read();
            byte[] body = new byte[(int) size];
            in.readFully(body);
            return body;
        }

        void send(int flags, byte[] body) throws IOException {
            if (body.length > 255) {
                out.write(flags | 2);
                out.writeLong(body.length);
            } else {
                out.write(flags);
                out.write(body.length);
            }
            out.write(body);
        }

        byte[] sealed(int flags, byte[] body) {
            byte[] own = number();
            byte[] plain = ByteBuffer.allocate(1 + body.length).put((byte) flags).put(body).array();
            byte[] box = SecretBox.encrypt(shared, nonce("CurveZMQMESSAGES", own), plain)
                    .getCiphertextWithTag();
            return ByteBuffer.allocate(16 + box.length).put(ascii("\7MESSAGE")).put(own).put(box)
                    .array();
        }

        byte[] opened() throws IOException {
            byte[] frame = frame();
            return SecretBox.fromCombined(nonce("CurveZMQMESSAGEC",
                    Arrays.copyOfRange(frame, 8, 16)), Arrays.copyOfRange(frame, 16, frame.length))
                    .decrypt(shared);
        }
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
    void pingAndPongAreSealedToo() throws Exception {
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
    void changedRepeatedOrPlainMessageEndsConnection() throws Exception {
        for (String attack : List.of("changed", "repeated", "older", "clear", "short", "tag",
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
                    case "clear" -> ascii("second");
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
    void agentWithOtherKeyGetsNoData() {
        assertThrows(IOException.class, () -> connect(server -> {
            server.identity = CryptoBox.keyPair();
            return server.handshake();
        }));
    }

    @Test
    void welcomeSealedByAnotherIsRefused() {
        for (int size : new int[] {0, 7, 8, 167, 168, 169, 250}) {
            assertThrows(ProtocolException.class, () -> connect(server -> {
                byte[] greeting = new byte[64];
                greeting[0] = (byte) 0xff;
                greeting[9] = 0x7f;
                greeting[10] = 3;
                System.arraycopy(ascii("CURVE"), 0, greeting, 12, 5);
                server.out.write(greeting);
                server.in.readFully(new byte[64]);
                server.frame();
                byte[] welcome = new byte[size];
                System.arraycopy(ascii("\7WELCOME"), 0, welcome, 0, Math.min(size, 8));
                server.send(4, welcome);
                return server.in.read();
            }), "size " + size);
        }
    }

    @Test
    void refusalNamesFileOfClients() {
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
        assertTrue(refused.getMessage().contains("the agent takes no keys"));
    }

    @Test
    void invalidKeyOfAgentIsRefused() throws IOException {
        AgentSecrets zero = new AgentSecrets(secrets.keyFile(), new byte[32], "");
        CurveClient curve = new CurveClient(zero.own(), zero.agentKey());
        assertThrows(ProtocolException.class, curve::hello);
    }

    @Test
    void nonceOfMessageIsNotUsedTwice() throws Exception {
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
        String key = secrets.keyFile();
        String agentKey = HexFormat.of().formatHex(secrets.agentKey());
        String token = file("c.token", "t".repeat(64) + "\n");
        AgentSettings settings =
                AgentSettings.of("orders", properties("tcp://10.0.0.5:7701", key, agentKey, token));
        assertEquals("t".repeat(64), settings.secrets().token());
        assertFalse(settings.toString().contains("ttt"));
        wrong("belong together", "tcp://10.0.0.5:7701", key, "", "");
        wrong("belong together", "tcp://10.0.0.5:7701", "", agentKey, "");
        wrong("64 hexadecimal digits", "tcp://10.0.0.5:7701", key, agentKey.substring(1), "");
        wrong("is for tcp:// endpoints", "ipc:///run/a.sock", key, agentKey, "");
        wrong("anyone on the network between", "tcp://10.0.0.5:7701", "", "", "");
        wrong("does not exist", "tcp://10.0.0.5:7701", key + "x", agentKey, "");
        wrong("no token", "ipc:///run/a.sock", "", "", file("short", "t".repeat(31)));
        wrong("no public-key", "tcp://10.0.0.5:7701", file("no.key", "name = \"x\"\n"), agentKey,
                "");
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

    private static void wrong(String said, String agent, String key, String agentKey,
            String token) {
        String message = assertThrows(IllegalArgumentException.class,
                () -> AgentSettings.of("orders", properties(agent, key, agentKey, token)))
                .getMessage();
        assertTrue(message.contains(said) && message.contains("\"orders\""), message);
    }
}
