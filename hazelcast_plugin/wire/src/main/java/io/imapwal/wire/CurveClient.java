package io.imapwal.wire;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.SecureRandom;
import java.util.Arrays;

/**
 * The client's side of CurveZMQ (https://rfc.zeromq.org/spec/26). {@link SecretBox} has the
 * cryptography. This class has the messages, and the nonces, of which none is used twice with one
 * key.
 *
 * <pre>
 * HELLO     05 "HELLO" 01 00 (72 zeros) C' nonce(8) Box[64 zeros](C' to S)
 * WELCOME   07 "WELCOME" nonce(16) Box[S' cookie(96)](S to C')
 * INITIATE  08 "INITIATE" cookie nonce(8) Box[C nonce(16) Box[C' S](C to S') metadata](C' to S')
 * READY     05 "READY" nonce(8) Box[metadata](S' to C')
 * MESSAGE   07 "MESSAGE" nonce(8) Box[flags(1): 1 more, 2 command; body](C' to S', or S' to C')
 * </pre>
 *
 * C and S are the keys of member and agent. C' and S' are made for one connection. One thread may
 * seal while another opens.
 */
final class CurveClient {
    static final int MORE = 1;
    static final int COMMAND = 2;

    private static final byte[] HELLO = ascii("\5HELLO");
    private static final byte[] WELCOME = ascii("\7WELCOME");
    private static final byte[] INITIATE = ascii("\10INITIATE");
    private static final byte[] READY = ascii("\5READY");
    private static final byte[] MESSAGE = ascii("\7MESSAGE");
    private static final int TAG = SecretBox.TAG;
    private static final int SHORT_NONCE = 8;
    private static final int COOKIE = 96;
    private static final int KEY = X25519.BYTES;
    private static final int WELCOME_SIZE = WELCOME.length + 16 + TAG + KEY + COOKIE;
    /** Bytes of a sealed frame without its body. */
    private static final int OVERHEAD = 8 + SHORT_NONCE + TAG + 1;
    private static final SecureRandom RANDOM = new SecureRandom();

    private final AgentSecrets.Own own;
    private final byte[] agentKey;
    private final byte[] brief = random(KEY);
    private final byte[] briefPublic = X25519.publicKey(brief);
    /** From our short-lived key and the agent's key. */
    private SecretBox first;
    /** For messages, from both short-lived keys. */
    private SecretBox shared;
    private long sent;
    private long received = -1;

    CurveClient(AgentSecrets.Own own, byte[] agentKey) {
        this.own = own;
        this.agentKey = agentKey;
    }

    /** The first command of a connection. */
    byte[] hello() throws ProtocolException {
        first = new SecretBox(brief, agentKey);
        ByteBuffer hello = ByteBuffer.allocate(HELLO.length + 2 + 72 + KEY + SHORT_NONCE + TAG
                + 64);
        long number = ++sent;
        return hello.put(HELLO).put((byte) 1).put((byte) 0).put(new byte[72]).put(briefPublic)
                .putLong(number).put(first.seal(nonce("CurveZMQHELLO---", number), new byte[64]))
                .array();
    }

    /**
     * The answer to WELCOME, which only the owner of the agent's key can make.
     *
     * @throws ProtocolException another party made it
     */
    byte[] initiate(byte[] welcome, byte[] metadata) throws ProtocolException {
        if (welcome.length != WELCOME_SIZE || !startsWith(welcome, WELCOME)) {
            throw new ProtocolException("the agent did not answer with a WELCOME of CURVE");
        }
        byte[] nonce = ByteBuffer.allocate(24).put(ascii("WELCOME-"))
                .put(welcome, WELCOME.length, 16).array();
        byte[] content = open(first, nonce, welcome, WELCOME.length + 16);
        byte[] theirs = Arrays.copyOf(content, KEY);
        shared = new SecretBox(brief, theirs);

        byte[] vouchNonce = random(24);
        System.arraycopy(ascii("VOUCH---"), 0, vouchNonce, 0, 8);
        byte[] vouched = ByteBuffer.allocate(2 * KEY).put(briefPublic).put(agentKey).array();
        byte[] vouch = new SecretBox(own.secretKey, theirs).seal(vouchNonce, vouched);
        byte[] about = ByteBuffer.allocate(KEY + 16 + vouch.length + metadata.length)
                .put(own.publicKey).put(vouchNonce, 8, 16).put(vouch).put(metadata).array();
        long number = ++sent;
        byte[] box = shared.seal(nonce("CurveZMQINITIATE", number), about);
        return ByteBuffer.allocate(INITIATE.length + COOKIE + SHORT_NONCE + box.length)
                .put(INITIATE).put(content, KEY, COOKIE).putLong(number).put(box).array();
    }

    /** The metadata of READY. */
    byte[] ready(byte[] ready) throws ProtocolException {
        if (!startsWith(ready, READY) || ready.length < READY.length + SHORT_NONCE + TAG) {
            throw new ProtocolException("the agent did not answer with a READY of CURVE");
        }
        received = ByteBuffer.wrap(ready).getLong(READY.length);
        return open(shared, nonce("CurveZMQREADY---", received), ready, READY.length + SHORT_NONCE);
    }

    /** A frame to send. Frames must be sent in the order of the calls. */
    byte[] seal(int flags, byte[] body, int size) {
        byte[] plain = new byte[size + 1];
        plain[0] = (byte) flags;
        System.arraycopy(body, 0, plain, 1, size);
        long number = ++sent;
        byte[] box = shared.seal(nonce("CurveZMQMESSAGEC", number), plain);
        return ByteBuffer.allocate(MESSAGE.length + SHORT_NONCE + box.length).put(MESSAGE)
                .putLong(number).put(box).array();
    }

    /**
     * Flags and body of a received frame.
     *
     * @throws ProtocolException it was changed or received before, or another party made it
     */
    byte[] open(byte[] message) throws ProtocolException {
        if (message.length < OVERHEAD || !startsWith(message, MESSAGE)) {
            throw new ProtocolException("the agent sent a message without CURVE");
        }
        long number = ByteBuffer.wrap(message).getLong(MESSAGE.length);
        if (Long.compareUnsigned(number, received) <= 0) {
            throw new ProtocolException("a message of the agent was received twice");
        }
        received = number;
        return open(shared, nonce("CurveZMQMESSAGES", number), message, MESSAGE.length
                + SHORT_NONCE);
    }

    private static byte[] open(SecretBox box, byte[] nonce, byte[] from, int offset)
            throws ProtocolException {
        byte[] message = box.open(nonce, from, offset);
        if (message == null) {
            throw new ProtocolException(
                    "a message was not sealed by the agent with the key agent-public-key");
        }
        return message;
    }

    private static byte[] random(int size) {
        byte[] bytes = new byte[size];
        RANDOM.nextBytes(bytes);
        return bytes;
    }

    private static byte[] nonce(String prefix, long number) {
        return ByteBuffer.allocate(24).put(ascii(prefix)).putLong(number).array();
    }

    private static boolean startsWith(byte[] body, byte[] prefix) {
        return ByteBuffer.wrap(body, 0, Math.min(body.length, prefix.length))
                .equals(ByteBuffer.wrap(prefix));
    }

    private static byte[] ascii(String text) {
        return text.getBytes(StandardCharsets.US_ASCII);
    }
}
