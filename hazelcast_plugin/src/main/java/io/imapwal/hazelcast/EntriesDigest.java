package io.imapwal.hazelcast;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;

/**
 * The digest of some entries: 16 bytes, equal for equal entries in any order. The agent computes it
 * of the log in the same way ({@code imap_wal/read/newest/digest.py}): the sum, modulo 2^128, of
 * the MurmurHash3 (x64, 128 bits) of each entry's key, value and expiry in whole seconds, with the
 * size of the key as seed.
 */
final class EntriesDigest {
    private static final int BLOCK = 16;
    private static final long C1 = 0x87c37b91114253d5L;
    private static final long C2 = 0x4cf5ad432745937fL;

    private ByteBuffer entry = buffer(256);
    private long high;
    private long low;

    /** @param expiresAtMs Unix time; 0: never */
    void add(byte[] key, byte[] value, long expiresAtMs) {
        int size = key.length + value.length + Long.BYTES;
        // The last block is read as a whole, with zeros after the entry.
        int whole = (size + BLOCK - 1) / BLOCK * BLOCK;
        if (whole > entry.capacity()) {
            entry = buffer(whole * 2);
        }
        entry.clear().put(key).put(value)
                .putLong(Long.reverseBytes(Math.floorDiv(expiresAtMs, 1000)));
        Arrays.fill(entry.array(), size, whole, (byte) 0);
        addHash(size, whole, key.length);
    }

    private void addHash(int size, int whole, int seed) {
        long h1 = seed;
        long h2 = seed;
        for (int at = 0; at < whole; at += BLOCK) {
            h1 ^= Long.rotateLeft(entry.getLong(at) * C1, 31) * C2;
            // The last block, if it is not full, is only combined by xor.
            boolean full = at + BLOCK <= size;
            if (full) {
                h1 = (Long.rotateLeft(h1, 27) + h2) * 5 + 0x52dce729;
            }
            h2 ^= Long.rotateLeft(entry.getLong(at + Long.BYTES) * C2, 33) * C1;
            if (full) {
                h2 = (Long.rotateLeft(h2, 31) + h1) * 5 + 0x38495ab5;
            }
        }
        h1 ^= size;
        h2 ^= size;
        h1 += h2;
        h2 += h1;
        h1 = mixed(h1);
        h2 = mixed(h2);
        h1 += h2;
        h2 += h1;
        low += h1;
        high += h2 + (Long.compareUnsigned(low, h1) < 0 ? 1 : 0);
    }

    private static long mixed(long hash) {
        long k = (hash ^ hash >>> 33) * 0xff51afd7ed558ccdL;
        k = (k ^ k >>> 33) * 0xc4ceb9fe1a85ec53L;
        return k ^ k >>> 33;
    }

    private static ByteBuffer buffer(int bytes) {
        return ByteBuffer.allocate(bytes).order(ByteOrder.LITTLE_ENDIAN);
    }

    byte[] bytes() {
        return ByteBuffer.allocate(BLOCK).putLong(high).putLong(low).array();
    }
}
