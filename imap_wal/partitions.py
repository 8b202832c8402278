"""The Hazelcast partition of a key, from its bytes alone.

A key is what `Data.toByteArray()` returns: the partition hash (4 bytes, big-endian, 0 where no
partitioning strategy gave one), the serializer's id (4 bytes), the data. The hash of a key without
one is the MurmurHash3 of its data. An entry's own field `partition` is not used: it is what the
writer computed, perhaps with another number of partitions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice

SEED, C1, C2, ADDED, MIX1, MIX2 = 0x01000193, 0xCC9E2D51, 0x1B873593, 0xE6546B64, 0x85EBCA6B, 0xC2B2AE35
"""Constants of MurmurHash3_x86_32, and Hazelcast's seed."""
DATA = 8
"""Where the data begins."""
COLUMNS_FROM = 64
"""From this many keys of one length on, they are hashed as columns, in a tenth of the time."""
COLUMNS_BYTES_MAX = 1024
"""Longer keys are hashed one after the other: a column operation takes microseconds even for few
keys, and there are several for each word of a key."""
LOWEST = 0x80000000
"""The lowest signed number of 32 bits, unsigned."""
HASHED_AT_ONCE = 10_000
_32 = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Partitions:
    """Some of the `count` partitions of a Hazelcast cluster."""

    wanted: frozenset[int]
    count: int

    def __post_init__(self) -> None:
        if type(self.count) is not int or not 0 < self.count < 2**31:
            raise ValueError(f"the connection's hello has partition_count {self.count!r}; it takes a number from 1")
        for each in self.wanted:
            if type(each) is not int or not 0 <= each < self.count:
                raise ValueError(f"there is no partition {each!r} of {self.count}")

    @property
    def all(self) -> bool:
        """Whether no partition is missing: no key has to be examined then."""
        return len(self.wanted) == self.count

    def have(self, keys: Sequence[bytes]) -> list[bool]:
        """Of each key, whether it is in one of them."""
        return [each in self.wanted for each in partition_ids(keys, self.count)]


class PartitionedKeys:
    """Keys by their partition, of so many. A key is hashed once, when it is new."""

    __slots__ = ("_known", "_of_partition", "count")

    def __init__(self, count: int) -> None:
        self.count = count
        self._known = 0
        self._of_partition: defaultdict[int, list[bytes]] = defaultdict(list)

    def within(self, partitions: Partitions, keys: Iterable[bytes]) -> list[bytes]:
        """Those of all keys that are in some partitions. `keys`: all of them, the ones that were
        given before first, in the same order."""
        new = islice(keys, self._known, None)
        while some := list(islice(new, HASHED_AT_ONCE)):
            for key, partition in zip(some, partition_ids(some, self.count), strict=True):
                self._of_partition[partition].append(key)
            self._known += len(some)
        groups = self._of_partition
        return list(chain.from_iterable(groups[each] for each in partitions.wanted if each in groups))


def partition_ids(keys: Sequence[bytes], count: int) -> list[int]:
    """The partition of each key, of so many."""
    return [0] * len(keys) if count == 1 else [number % count for number in numbers(keys)]


def numbers(keys: Sequence[bytes]) -> list[int]:
    """A number for each key. Its rest after division by the number of partitions is the partition."""
    of_length: dict[int, list[int]] = {}
    for index, key in enumerate(keys):
        of_length.setdefault(len(key), []).append(index)
    found = [0] * len(keys)
    for length, places in of_length.items():
        some = [keys[index] for index in places]
        in_columns = len(some) >= COLUMNS_FROM and DATA <= length <= COLUMNS_BYTES_MAX
        for index, each in zip(places, _in_columns(some) if in_columns else map(_number, some), strict=True):
            found[index] = each
    return found


def _in_columns(keys: list[bytes]) -> list[int]:
    from imap_wal.partition_columns import numbers  # it imports this module

    return numbers(keys)


def partition_id(key: bytes, count: int) -> int:
    """Of one key, of so many."""
    return _number(key) % count


def _number(key: bytes) -> int:
    """As Hazelcast computes it: the absolute value of the hash as a signed number, and 0 for the
    lowest one, which has none."""
    hashed = partition_hash(key)
    if hashed == LOWEST:
        return 0
    return hashed if hashed < LOWEST else 2**32 - hashed


def partition_hash(key: bytes) -> int:
    """The hash of one key, unsigned."""
    given = int.from_bytes(key[:4], "big") if len(key) >= DATA else 0
    return given or murmur(key[DATA:])


def murmur(data: bytes) -> int:
    """MurmurHash3_x86_32 with Hazelcast's seed, unsigned."""
    hashed, whole = SEED, len(data) & ~3
    for start in range(0, whole, 4):
        hashed ^= _scrambled(int.from_bytes(data[start : start + 4], "little"))
        hashed = (hashed << 13 | hashed >> 19) & _32
        hashed = (hashed * 5 + ADDED) & _32
    hashed ^= _scrambled(int.from_bytes(data[whole:], "little")) ^ len(data)
    hashed = (hashed ^ hashed >> 16) * MIX1 & _32
    hashed = (hashed ^ hashed >> 13) * MIX2 & _32
    return hashed ^ hashed >> 16


def _scrambled(word: int) -> int:
    word = word * C1 & _32
    word = (word << 15 | word >> 17) & _32
    return word * C2 & _32
