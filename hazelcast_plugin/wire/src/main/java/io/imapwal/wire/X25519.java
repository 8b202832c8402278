package io.imapwal.wire;

import java.util.Arrays;

/**
 * The function X25519 of RFC 7748, which Java has only since 11. The algorithm is that of TweetNaCl
 * (https://tweetnacl.cr.yp.to), with its properties: no branch and no index depends on a secret.
 *
 * <p>A number modulo 2^255 - 19 is an array of 16 limbs of 16 bits, the lowest first. Between
 * operations, limbs may have more bits or be negative.
 */
final class X25519 {
    static final int BYTES = 32;

    private static final int LIMBS = 16;
    private static final long[] A24 = Arrays.copyOf(new long[] {0xdb41, 1}, LIMBS);
    private static final byte[] BASE = Arrays.copyOf(new byte[] {9}, BYTES);

    private X25519() {
    }

    static byte[] publicKey(byte[] secret) {
        return multiply(secret, BASE);
    }

    /** The x-coordinate of scalar * point; all zeros: the point has a low order. */
    static byte[] multiply(byte[] scalar, byte[] point) {
        byte[] bits = Arrays.copyOf(scalar, BYTES);
        bits[0] &= (byte) 248;
        bits[31] = (byte) (bits[31] & 127 | 64);
        long[] x = unpack(point);
        long[] a = Arrays.copyOf(new long[] {1}, LIMBS);
        long[] b = x.clone();
        long[] c = new long[LIMBS];
        long[] d = a.clone();
        for (int i = 254; i >= 0; i--) {
            int bit = bits[i >> 3] >> (i & 7) & 1;
            swap(a, b, bit);
            swap(c, d, bit);
            long[] e = add(a, c, 1);
            a = add(a, c, -1);
            c = add(b, d, 1);
            b = add(b, d, -1);
            d = multiply(e, e);
            long[] f = multiply(a, a);
            a = multiply(c, a);
            c = multiply(b, e);
            e = add(a, c, 1);
            a = add(a, c, -1);
            b = multiply(a, a);
            c = add(d, f, -1);
            a = add(multiply(c, A24), d, 1);
            c = multiply(c, a);
            a = multiply(d, f);
            d = multiply(b, x);
            b = multiply(e, e);
            swap(a, b, bit);
            swap(c, d, bit);
        }
        return pack(multiply(a, invert(c)));
    }

    /** Exchanges both if the bit is 1. */
    private static void swap(long[] p, long[] q, long bit) {
        for (int i = 0; i < LIMBS; i++) {
            long difference = -bit & (p[i] ^ q[i]);
            p[i] ^= difference;
            q[i] ^= difference;
        }
    }

    /** {@code p + sign * q}. */
    private static long[] add(long[] p, long[] q, int sign) {
        long[] sum = new long[LIMBS];
        for (int i = 0; i < LIMBS; i++) {
            sum[i] = p[i] + sign * q[i];
        }
        return sum;
    }

    private static long[] multiply(long[] p, long[] q) {
        long[] product = new long[2 * LIMBS];
        for (int i = 0; i < LIMBS; i++) {
            for (int j = 0; j < LIMBS; j++) {
                product[i + j] += p[i] * q[j];
            }
        }
        for (int i = 0; i < LIMBS; i++) {
            product[i] += 38 * product[i + LIMBS];  // 2^256 is 38 modulo 2^255 - 19
        }
        long[] reduced = Arrays.copyOf(product, LIMBS);
        carry(reduced);
        carry(reduced);
        return reduced;
    }

    private static void carry(long[] p) {
        for (int i = 0; i < LIMBS; i++) {
            long above = p[i] >> 16;
            p[i] -= above << 16;
            if (i + 1 < LIMBS) {
                p[i + 1] += above;
            } else {
                p[0] += 38 * above;
            }
        }
    }

    /** To the power of 2^255 - 21, whose only bits that are 0 are 2 and 4. */
    private static long[] invert(long[] p) {
        long[] power = p;
        for (int i = 253; i >= 0; i--) {
            power = multiply(power, power);
            if (i != 2 && i != 4) {
                power = multiply(power, p);
            }
        }
        return power;
    }

    private static long[] unpack(byte[] bytes) {
        long[] p = new long[LIMBS];
        for (int i = 0; i < LIMBS; i++) {
            p[i] = bytes[2 * i] & 0xff | (bytes[2 * i + 1] & 0xff) << 8;
        }
        p[LIMBS - 1] &= 0x7fff;
        return p;
    }

    /** The only representation below 2^255 - 19. */
    private static byte[] pack(long[] p) {
        long[] rest = p.clone();
        for (int i = 0; i < 3; i++) {
            carry(rest);
        }
        for (int times = 0; times < 2; times++) {
            long[] less = new long[LIMBS];  // minus 2^255 - 19
            long borrow = 0;
            for (int i = 0; i < LIMBS; i++) {
                long limb = rest[i] - (i == 0 ? 0xffed : i == LIMBS - 1 ? 0x7fff : 0xffff) - borrow;
                borrow = limb >> 16 & 1;
                less[i] = limb & 0xffff;
            }
            swap(rest, less, 1 - borrow);
        }
        byte[] bytes = new byte[BYTES];
        for (int i = 0; i < LIMBS; i++) {
            bytes[2 * i] = (byte) rest[i];
            bytes[2 * i + 1] = (byte) (rest[i] >> 8);
        }
        return bytes;
    }
}
