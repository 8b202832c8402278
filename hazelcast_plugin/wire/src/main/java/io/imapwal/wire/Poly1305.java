package io.imapwal.wire;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/**
 * The authenticator of RFC 8439, 2.5, for one message. A number modulo 2^130 - 5 is five limbs of
 * 26 bits, the lowest first.
 */
final class Poly1305 {
    static final int BLOCK = 16;

    private static final long LIMB = 0x3ffffff;

    private final long[] r;
    /** What is added at the end, in words of 32 bits. */
    private final int[] end;
    private long h0;
    private long h1;
    private long h2;
    private long h3;
    private long h4;

    /** @param key eight words or more, the first of which count */
    Poly1305(int[] key) {
        r = limbs(new int[] {key[0] & 0x0fffffff, key[1] & 0x0ffffffc, key[2] & 0x0ffffffc,
            key[3] & 0x0ffffffc}, 0);
        end = new int[] {key[4], key[5], key[6], key[7]};
    }

    /** The next block, in four words. @param bit that follows its highest one */
    void add(int[] block, int bit) {
        long[] limbs = limbs(block, bit);
        long a = h0 + limbs[0];
        long b = h1 + limbs[1];
        long c = h2 + limbs[2];
        long d = h3 + limbs[3];
        long e = h4 + limbs[4];
        h0 = a * r[0] + 5 * (b * r[4] + c * r[3] + d * r[2] + e * r[1]);
        h1 = a * r[1] + b * r[0] + 5 * (c * r[4] + d * r[3] + e * r[2]);
        h2 = a * r[2] + b * r[1] + c * r[0] + 5 * (d * r[4] + e * r[3]);
        h3 = a * r[3] + b * r[2] + c * r[1] + d * r[0] + 5 * (e * r[4]);
        h4 = a * r[4] + b * r[3] + c * r[2] + d * r[1] + e * r[0];
        carry();
    }

    private void carry() {
        h1 += h0 >>> 26;
        h2 += h1 >>> 26;
        h3 += h2 >>> 26;
        h4 += h3 >>> 26;
        h0 = (h0 & LIMB) + 5 * (h4 >>> 26);  // 2^130 is 5
        h1 = (h1 & LIMB) + (h0 >>> 26);
        h0 &= LIMB;
        h2 &= LIMB;
        h3 &= LIMB;
        h4 &= LIMB;
    }

    byte[] tag() {
        carry();
        carry();
        // The same minus 2^130 - 5, unless that is negative.
        long[] less = {h0 + 5, h1, h2, h3, h4 - (1 << 26)};
        for (int i = 0; i < 4; i++) {
            less[i + 1] += less[i] >>> 26;
            less[i] &= LIMB;
        }
        long keep = less[4] >> 63;
        long[] h = {h0, h1, h2, h3, h4};
        for (int i = 0; i < 5; i++) {
            h[i] = h[i] & keep | less[i] & ~keep;
        }
        ByteBuffer tag = ByteBuffer.allocate(BLOCK).order(ByteOrder.LITTLE_ENDIAN);
        long sum = 0;
        for (int i = 0; i < 4; i++) {
            long word = h[i] >>> 6 * i | h[i + 1] << 26 - 6 * i;
            sum = (sum >>> 32) + (word & 0xffffffffL) + (end[i] & 0xffffffffL);
            tag.putInt((int) sum);
        }
        return tag.array();
    }

    private static long[] limbs(int[] words, long bit) {
        long a = words[0] & 0xffffffffL;
        long b = words[1] & 0xffffffffL;
        long c = words[2] & 0xffffffffL;
        long d = words[3] & 0xffffffffL;
        return new long[] {a & LIMB, (a >>> 26 | b << 6) & LIMB, (b >>> 20 | c << 12) & LIMB,
            (c >>> 14 | d << 18) & LIMB, d >>> 8 | bit << 24};
    }
}
