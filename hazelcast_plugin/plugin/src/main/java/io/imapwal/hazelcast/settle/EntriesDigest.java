package io.imapwal.hazelcast.settle;

import java.nio.ByteBuffer;
import java.security.DigestException;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.security.SecureRandom;

/**
 * The digest of some entries: 16 bytes, equal for equal entries in any order. The agent computes it
 * from the log in the same way ({@code imap_wal/read/view.py}): the sum, modulo 2^128, of
 * the first 16 bytes of the SHA-256 of each entry's salt, expiry in whole seconds, size of the key,
 * key and value. Whoever wrote the entries did not know the random salt, so no one can choose
 * entries that have the digest of others.
 */
public final class EntriesDigest {
    private static final SecureRandom RANDOM = new SecureRandom();
    private static final int SALT_BYTES = 16;

    private final MessageDigest sha;
    /** The salt, then the expiry and the size of an entry's key. */
    private final ByteBuffer begin;
    private final byte[] hash;
    private long high;
    private long low;
    private long firstExpiryMs = Long.MAX_VALUE;

    public EntriesDigest(byte[] salt) {
        begin = ByteBuffer.allocate(salt.length + Long.BYTES + Integer.BYTES).put(salt).mark();
        try {
            sha = MessageDigest.getInstance("SHA-256");
        } catch (NoSuchAlgorithmException e) {
            throw new IllegalStateException("each Java platform has SHA-256", e);
        }
        hash = new byte[sha.getDigestLength()];
    }

    /** A salt for one comparison. */
    static byte[] salt() {
        byte[] salt = new byte[SALT_BYTES];
        RANDOM.nextBytes(salt);
        return salt;
    }

    /** @param expiresAtMs Unix time; 0: never */
    public void add(byte[] key, byte[] value, long expiresAtMs) {
        if (expiresAtMs != 0) {
            firstExpiryMs = Math.min(firstExpiryMs, expiresAtMs);
        }
        begin.reset();
        begin.putLong(Math.floorDiv(expiresAtMs, 1000)).putInt(key.length);
        sha.update(begin.array());
        sha.update(key);
        sha.update(value);
        try {
            sha.digest(hash, 0, hash.length);
        } catch (DigestException e) {
            throw new IllegalStateException(e);
        }
        ByteBuffer found = ByteBuffer.wrap(hash);
        high += found.getLong();
        long part = found.getLong();
        low += part;
        if (Long.compareUnsigned(low, part) < 0) {
            high++;
        }
    }

    /** When the first of these entries expires, Unix time; {@code Long.MAX_VALUE}: never. */
    long firstExpiryMs() {
        return firstExpiryMs;
    }

    public byte[] bytes() {
        return ByteBuffer.allocate(2 * Long.BYTES).putLong(high).putLong(low).array();
    }
}
