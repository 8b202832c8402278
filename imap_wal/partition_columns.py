"""`partitions` with pyarrow's column operations: all keys of one length at a time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from imap_wal.partitions import ADDED, C1, C2, DATA, LOWEST, MIX1, MIX2, SEED


def numbers(keys: Sequence[bytes]) -> list[int]:
    """`partitions.numbers` of keys that all have one length."""
    hashes = _hashes(keys)
    positive = pc.if_else(pc.less(hashes, _number(LOWEST)), hashes, pc.subtract(_number(0), hashes))
    found: list[int] = pc.if_else(pc.equal(hashes, _number(LOWEST)), _number(0), positive).to_pylist()
    return found


def _hashes(keys: Sequence[bytes]) -> pa.Array:
    """`partition_hash` of many keys of one length, with one operation for all of them at a time."""
    length = len(keys[0])
    padding = b"\0" * (-length % 4)
    words = (length + 3) // 4
    joined = padding.join([*keys, b""]) if padding else b"".join(keys)
    table = pa.FixedSizeListArray.from_arrays(pa.Array.from_buffers(pa.uint32(), len(keys) * words, [None, pa.py_buffer(joined)]), words)

    def turned(column: pa.Array, left: int) -> pa.Array:
        return pc.bit_wise_or(pc.shift_left(column, _number(left)), pc.shift_right(column, _number(32 - left)))

    def scrambled(column: pa.Array) -> pa.Array:
        return pc.multiply(turned(pc.multiply(column, _number(C1)), 15), _number(C2))

    def folded(column: pa.Array, by: int) -> pa.Array:
        return pc.bit_wise_xor(column, pc.shift_right(column, _number(by)))

    whole = length // 4
    hashed = pa.repeat(_number(SEED), len(keys))
    for index in range(DATA // 4, whole):
        hashed = turned(pc.bit_wise_xor(hashed, scrambled(pc.list_element(table, index))), 13)
        hashed = pc.add(pc.multiply(hashed, _number(5)), _number(ADDED))
    if whole < words:
        hashed = pc.bit_wise_xor(hashed, scrambled(pc.list_element(table, whole)))
    hashed = pc.bit_wise_xor(hashed, _number(length - DATA))
    hashed = pc.multiply(folded(hashed, 16), _number(MIX1))
    hashed = pc.multiply(folded(hashed, 13), _number(MIX2))
    hashed = folded(hashed, 16)
    given = _swapped(pc.list_element(table, 0))
    return pc.if_else(pc.equal(given, _number(0)), hashed, given)


def _swapped(column: pa.Array) -> pa.Array:
    """Big-endian numbers that were read as little-endian ones."""
    bytes_ = [pc.bit_wise_and(pc.shift_right(column, _number(8 * index)), _number(0xFF)) for index in range(4)]
    parts = [pc.shift_left(each, _number(24 - 8 * index)) for index, each in enumerate(bytes_)]
    return reduce(pc.bit_wise_or, parts)


def _number(value: int) -> pa.Scalar:
    return pa.scalar(value, pa.uint32())
