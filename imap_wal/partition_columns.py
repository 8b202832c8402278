"""`partitions` for many keys of one length at a time: one long integer holds a word of each key, in a
lane of 64 bits. A product of two numbers of 32 bits fits into a lane, so one operation on the long
integer is one on all keys. As fast as pyarrow for short keys, and nothing is to be imported first,
which takes as long as hashing half a million keys."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence

from imap_wal.partitions import ADDED, C1, C2, DATA, LOWEST, MIX1, MIX2, SEED

LANE = 8


def numbers(keys: Sequence[bytes]) -> list[int]:
    """`partitions.numbers` of keys that all have one length."""
    hashes = _hashes(keys)
    found = [each if each < LOWEST else 2**32 - each for each in hashes]
    if LOWEST in hashes:
        found = [0 if each == LOWEST else each for each in found]
    return found


def _hashes(keys: Sequence[bytes]) -> array[int]:
    """`partition_hash` of many keys of one length, with one operation for all of them at a time."""
    length, size = len(keys[0]), len(keys) * LANE
    padding = b"\0" * (-length % 4)
    joined = padding.join([*keys, b""]) if padding else b"".join(keys)
    stride = length + len(padding)
    ones = int.from_bytes(b"\1".ljust(LANE, b"\0") * len(keys), "little")
    mask = ones * 0xFFFFFFFF

    def word(index: int) -> int:
        lanes = bytearray(size)
        for byte in range(4):
            lanes[byte::LANE] = joined[4 * index + byte :: stride]
        return int.from_bytes(lanes, "little")

    def turned(column: int, left: int) -> int:
        return (column << left | column >> (32 - left)) & mask

    def scrambled(column: int) -> int:
        return turned(column * C1 & mask, 15) * C2 & mask

    def folded(column: int, by: int) -> int:
        return (column ^ column >> by) & mask

    whole = length // 4
    hashed = ones * SEED
    for index in range(DATA // 4, whole):
        hashed = turned(hashed ^ scrambled(word(index)), 13)
        hashed = hashed * 5 + ones * ADDED & mask
    if padding:
        hashed ^= scrambled(word(whole))
    hashed = folded(hashed ^ ones * (length - DATA), 16) * MIX1 & mask
    hashed = folded(hashed, 13) * MIX2 & mask
    found = array("Q", folded(hashed, 16).to_bytes(size, "little"))
    if sys.byteorder == "big":
        found.byteswap()
    if word(0):
        for index, key in enumerate(keys):
            found[index] = int.from_bytes(key[:4], "big") or found[index]
    return found
