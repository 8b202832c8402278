package io.imapwal.wire;

import software.pando.crypto.nacl.CryptoBox;
import software.pando.crypto.nacl.SecretBox;

import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.Key;
import java.security.KeyPair;
import java.security.PublicKey;
import java.security.interfaces.XECPublicKey;
import java.util.Arrays;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

/**
 * The server's side of one CURVE connection, as libzmq has it in an agent. It checks what the
 * client sends. Tests can make it break the rules. {@link CurveClient} has the layout of the
 * commands.
 */
final class FakeCurveServer {
    /** Flag of a frame: the size has 8 bytes. */
    private static final int LONG = 2;
    /** Flag of a frame: it is a command of the handshake. */
    static final int COMMAND = 4;

    final DataInputStream in;
    final DataOutputStream out;
    /** The client's public key, after the handshake. */
    byte[] client;
    /** The keys that the server uses as its own. */
    KeyPair keys;
    String mechanism = "CURVE";
    /** What it sends instead of READY; null: READY. */
    byte[] error;

    /** The keys whose public one the client expects. */
    private final KeyPair expected;
    private final KeyPair shortLived = CryptoBox.keyPair();
    /** For messages, from both short-lived keys. */
    private Key shared;
    private long nextNonce = 1;

    FakeCurveServer(Socket socket, KeyPair keys) throws IOException {
        this.in = new DataInputStream(socket.getInputStream());
        this.out = new DataOutputStream(socket.getOutputStream());
        this.keys = keys;
        this.expected = keys;
    }

    static byte[] ascii(String text) {
        return text.getBytes(StandardCharsets.ISO_8859_1);
    }

    static byte[] bytes(PublicKey key) {
        byte[] big = ((XECPublicKey) key).getU().toByteArray();
        byte[] little = new byte[32];
        for (int i = 0; i < Math.min(32, big.length); i++) {
            little[i] = big[big.length - 1 - i];
        }
        return little;
    }

    FakeCurveServer handshake() throws IOException {
        greet();
        byte[] hello = frame();
        assertEquals(200, hello.length);
        byte[] clientShortLived = Arrays.copyOfRange(hello, 80, 112);
        PublicKey theirs = CryptoBox.publicKey(clientShortLived);
        Key first = CryptoBox.agree(keys.getPrivate(), theirs);
        assertArrayEquals(new byte[64], SecretBox.fromCombined(
                nonce("CurveZMQHELLO---", Arrays.copyOfRange(hello, 112, 120)),
                Arrays.copyOfRange(hello, 120, 200)).decrypt(first));
        byte[] cookie = new byte[96];
        Arrays.fill(cookie, (byte) 7);
        send(COMMAND, welcome(first, cookie));

        byte[] initiate = frame();
        assertArrayEquals(cookie, Arrays.copyOfRange(initiate, 9, 105));
        shared = CryptoBox.agree(shortLived.getPrivate(), theirs);
        byte[] content = SecretBox.fromCombined(
                nonce("CurveZMQINITIATE", Arrays.copyOfRange(initiate, 105, 113)),
                Arrays.copyOfRange(initiate, 113, initiate.length)).decrypt(shared);
        client = Arrays.copyOf(content, 32);
        byte[] vouch = SecretBox.fromCombined(
                nonce("VOUCH---", Arrays.copyOfRange(content, 32, 48)),
                Arrays.copyOfRange(content, 48, 128))
                .decrypt(CryptoBox.agree(shortLived.getPrivate(), CryptoBox.publicKey(client)));
        assertArrayEquals(clientShortLived, Arrays.copyOf(vouch, 32));
        assertArrayEquals(bytes(expected.getPublic()), Arrays.copyOfRange(vouch, 32, 64));
        assertTrue(new String(content, StandardCharsets.ISO_8859_1).contains("DEALER"));
        send(COMMAND, error == null ? ready() : error);
        return this;
    }

    /** Sends a greeting with the mechanism, and reads the client's greeting. */
    void greet() throws IOException {
        byte[] greeting = new byte[64];
        greeting[0] = (byte) 0xff;
        greeting[9] = 0x7f;
        greeting[10] = 3;
        System.arraycopy(ascii(mechanism), 0, greeting, 12, mechanism.length());
        out.write(greeting);
        in.readFully(new byte[64]);
    }

    private byte[] welcome(Key key, byte[] cookie) {
        byte[] nonce = ascii("0123456789abcdef");
        byte[] content = ByteBuffer.allocate(128).put(bytes(shortLived.getPublic())).put(cookie)
                .array();
        byte[] box = SecretBox.encrypt(key, nonce("WELCOME-", nonce), content)
                .getCiphertextWithTag();
        return ByteBuffer.allocate(168).put(ascii("\7WELCOME")).put(nonce).put(box).array();
    }

    private byte[] ready() {
        byte[] metadata = ascii("\13Socket-Type\0\0\0\6ROUTER");
        byte[] nonce = nextNonce();
        byte[] box = SecretBox.encrypt(shared, nonce("CurveZMQREADY---", nonce), metadata)
                .getCiphertextWithTag();
        return ByteBuffer.allocate(14 + box.length).put(ascii("\5READY")).put(nonce).put(box)
                .array();
    }

    private byte[] nextNonce() {
        return ByteBuffer.allocate(8).putLong(nextNonce++).array();
    }

    private static byte[] nonce(String prefix, byte[] rest) {
        return ByteBuffer.allocate(24).put(ascii(prefix)).put(rest).array();
    }

    /** The body of the next frame that the client sends. */
    byte[] frame() throws IOException {
        int flags = in.read();
        long size = (flags & LONG) != 0 ? in.readLong() : in.read();
        byte[] body = new byte[(int) size];
        in.readFully(body);
        return body;
    }

    void send(int flags, byte[] body) throws IOException {
        if (body.length > 255) {
            out.write(flags | LONG);
            out.writeLong(body.length);
        } else {
            out.write(flags);
            out.write(body.length);
        }
        out.write(body);
    }

    /** A MESSAGE to send, with its flags. */
    byte[] sealed(int flags, byte[] body) {
        byte[] nonce = nextNonce();
        byte[] plain = ByteBuffer.allocate(1 + body.length).put((byte) flags).put(body).array();
        byte[] box = SecretBox.encrypt(shared, nonce("CurveZMQMESSAGES", nonce), plain)
                .getCiphertextWithTag();
        return ByteBuffer.allocate(16 + box.length).put(ascii("\7MESSAGE")).put(nonce).put(box)
                .array();
    }

    /** Flags and body of the next MESSAGE that the client sends. */
    byte[] opened() throws IOException {
        byte[] frame = frame();
        return SecretBox.fromCombined(
                nonce("CurveZMQMESSAGEC", Arrays.copyOfRange(frame, 8, 16)),
                Arrays.copyOfRange(frame, 16, frame.length)).decrypt(shared);
    }
}
