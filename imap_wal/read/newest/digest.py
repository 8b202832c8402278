"""The digest of some entries: 16 bytes, equal for equal entries in any order.

A member computes it from its memory, and the agent from the log. The entries of partitions with
equal digests need not be sent. It is the sum, modulo 2^128, of one hash for each entry: the
MurmurHash3 (x64, 128 bits) of

    key | value | expires_at_ms / 1000, rounded down, 8 bytes     with the size of the key as seed

Hazelcast keeps the expiry in whole seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

from imap_wal.entry import EXPIRES_AT_MS, KEY, VALUE, Row
from storage_backends.extras import needs

DIGEST_BYTES = 16
_NEVER = bytes(8)


def digest(rows: Iterable[Row]) -> bytes:
    """The digest of live rows."""
    murmur3 = _murmur3()
    total = sum(
        [
            murmur3(
                b"".join(
                    (
                        row[KEY],
                        row[VALUE] or b"",
                        (row[EXPIRES_AT_MS] // 1000).to_bytes(8, "big", signed=True)
                        if row[EXPIRES_AT_MS]
                        else _NEVER,
                    )
                ),
                len(row[KEY]),
            )
            for row in rows
        ]
    )
    return (total % (1 << 8 * DIGEST_BYTES)).to_bytes(DIGEST_BYTES, "big")


@cache
def _murmur3() -> Callable[[bytes, int], int]:
    """The hash, from a library that only agents of Hazelcast clusters need. Raises
    `MissingExtra`."""
    with needs("hazelcast"):
        from mmh3 import mmh3_x64_128_uintdigest as found

    return found
