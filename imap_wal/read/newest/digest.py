"""The digest of some entries: 16 bytes, equal for equal entries in any order.

A member computes it from its memory, and the agent from the log. Partitions with equal digests need
not be sent. It is the sum, modulo 2^128, of one hash for each entry: the first 16 bytes of the
SHA-256 of

    salt | expires_at_ms / 1000, rounded down, 8 bytes | size of the key, 4 bytes | key | value

The member chooses the salt, 16 random bytes, for each comparison: the writer of the entries did not
know it, and so could not choose entries that have the digest of others. Hazelcast keeps the expiry
in whole seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

from imap_wal.entry import EXPIRES_AT_MS, KEY, VALUE, Row

DIGEST_BYTES = 16
SALT_BYTES = 16
JOINED_BYTES = 1 << 16
"""A larger value is hashed without a copy."""
_NEVER = bytes(8)


def digest(salt: bytes, rows: Iterable[Row]) -> bytes:
    """The digest of live rows."""
    total = 0
    for row in rows:
        key, value, expires_at_ms = row[KEY], row[VALUE] or b"", row[EXPIRES_AT_MS]
        expires = (
            (expires_at_ms // 1000).to_bytes(8, "big", signed=True) if expires_at_ms else _NEVER
        )
        begin = (salt, expires, len(key).to_bytes(4, "big"), key)
        if len(value) <= JOINED_BYTES:  # a second call takes longer than a copy
            hashed = sha256(b"".join((*begin, value)))
        else:
            hashed = sha256(b"".join(begin))
            hashed.update(value)
        total += int.from_bytes(hashed.digest()[:DIGEST_BYTES], "big")
    return (total % (1 << 8 * DIGEST_BYTES)).to_bytes(DIGEST_BYTES, "big")
