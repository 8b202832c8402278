package io.imapwal.wire;

import java.util.Arrays;

/**
 * NaCl's box: XSalsa20 and Poly1305, with a key that follows from the keys of both parties
 * (https://nacl.cr.yp.to). A sealed message has {@link #TAG} bytes more than the message. No branch
 * and no index depends on a secret.
 */
final class SecretBox {
    static final int TAG = 16;

    /** The keystream begins with the key of Poly1305. */
    private static final int TAG_KEY = 32;
    private static final int[] CONSTANTS = {0x61707865, 0x3320646e, 0x79622d32, 0x6b206574};

    private final int[] key;

    /**
     * For messages between the owners of both keys.
     *
     * @throws ProtocolException the public key is a point of low order: the result would not depend
     *         on the secret key
     */
    SecretBox(byte[] secretKey, byte[] publicKey) throws ProtocolException {
        byte[] shared = X25519.multiply(secretKey, publicKey);
        int bits = 0;
        for (byte part : shared) {
            bits |= part;
        }
        if (bits == 0) {
            throw new ProtocolException("the agent's key cannot be used");
        }
        key = hash(words(shared, 0, 8), new int[4]);
    }

    /** @param nonce 24 bytes, which no other message between both has */
    byte[] seal(byte[] nonce, byte[] message) {
        byte[] sealed = new byte[TAG + message.length];
        System.arraycopy(message, 0, sealed, TAG, message.length);
        Keystream stream = new Keystream(nonce);
        stream.apply(sealed);
        System.arraycopy(stream.tag(sealed), 0, sealed, 0, TAG);
        return sealed;
    }

    /** The message in the bytes from this offset on; null: they are not sealed with this key. */
    byte[] open(byte[] nonce, byte[] from, int offset) {
        byte[] sealed = Arrays.copyOfRange(from, offset, Math.max(offset + TAG, from.length));
        Keystream stream = new Keystream(nonce);
        byte[] tag = stream.tag(sealed);
        int difference = from.length < offset + TAG ? 1 : 0;
        for (int i = 0; i < TAG; i++) {
            difference |= tag[i] ^ sealed[i];
        }
        if (difference != 0) {
            return null;
        }
        stream.apply(sealed);
        return Arrays.copyOfRange(sealed, TAG, sealed.length);
    }

    /** XSalsa20 for one nonce. */
    private final class Keystream {
        private final int[] state;
        private final int[] first;

        Keystream(byte[] nonce) {
            int[] prefix = words(nonce, 0, 4);
            int[] rest = words(nonce, 16, 2);
            state = state(hash(key, prefix), new int[] {rest[0], rest[1], 0, 0});
            first = next();
        }

        private int[] next() {
            int[] block = state.clone();
            mix(block);
            for (int i = 0; i < block.length; i++) {
                block[i] += state[i];
            }
            state[8]++;  // A message has less than 2^32 blocks: its size is an int.
            return block;
        }

        /** Encrypts, or decrypts, what follows the tag. */
        void apply(byte[] sealed) {
            int[] words = first;
            int word = TAG_KEY / 4;
            for (int at = TAG; at < sealed.length; word++) {
                if (word == words.length) {
                    words = next();
                    word = 0;
                }
                for (int bits = words[word], end = Math.min(at + 4, sealed.length); at < end;
                        bits >>= 8) {
                    sealed[at++] ^= (byte) bits;
                }
            }
        }

        byte[] tag(byte[] sealed) {
            Poly1305 poly = new Poly1305(first);
            int at = TAG;
            for (; sealed.length - at >= Poly1305.BLOCK; at += Poly1305.BLOCK) {
                poly.add(words(sealed, at, 4), 1);
            }
            if (at < sealed.length) {
                byte[] last = Arrays.copyOf(Arrays.copyOfRange(sealed, at, sealed.length),
                        Poly1305.BLOCK);
                last[sealed.length - at] = 1;
                poly.add(words(last, 0, 4), 0);
            }
            return poly.tag();
        }
    }

    /** HSalsa20: another key. */
    private static int[] hash(int[] key, int[] input) {
        int[] state = state(key, input);
        mix(state);
        return new int[] {state[0], state[5], state[10], state[15],
            state[6], state[7], state[8], state[9]};
    }

    private static int[] state(int[] key, int[] input) {
        return new int[] {CONSTANTS[0], key[0], key[1], key[2], key[3], CONSTANTS[1],
            input[0], input[1], input[2], input[3], CONSTANTS[2],
            key[4], key[5], key[6], key[7], CONSTANTS[3]};
    }

    /** The 20 rounds of Salsa20. */
    private static void mix(int[] x) {
        for (int i = 0; i < 10; i++) {
            quarter(x, 0, 4, 8, 12);
            quarter(x, 5, 9, 13, 1);
            quarter(x, 10, 14, 2, 6);
            quarter(x, 15, 3, 7, 11);
            quarter(x, 0, 1, 2, 3);
            quarter(x, 5, 6, 7, 4);
            quarter(x, 10, 11, 8, 9);
            quarter(x, 15, 12, 13, 14);
        }
    }

    private static void quarter(int[] x, int a, int b, int c, int d) {
        x[b] ^= Integer.rotateLeft(x[a] + x[d], 7);
        x[c] ^= Integer.rotateLeft(x[b] + x[a], 9);
        x[d] ^= Integer.rotateLeft(x[c] + x[b], 13);
        x[a] ^= Integer.rotateLeft(x[d] + x[c], 18);
    }

    static int[] words(byte[] bytes, int from, int count) {
        int[] words = new int[count];
        for (int i = 0, at = from; i < count; i++, at += 4) {
            words[i] = bytes[at] & 0xff | (bytes[at + 1] & 0xff) << 8 | (bytes[at + 2] & 0xff) << 16
                    | bytes[at + 3] << 24;
        }
        return words;
    }
}
