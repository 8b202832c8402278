"""The Hazelcast partition of a key, from its bytes alone.

A key is what `Data.toByteArray()` returns: the partition hash (4 bytes, big-endian, 0 without a
partitioning strategy), the serializer's id (4 bytes), the data. The hash of a key without one is
the MurmurHash3 of its data. An entry's own field `partition` is not used: the writer computed it,
perhaps with another number of partitions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, islice

from storage_backends.extras import needs

SEED = 0x01000193
"""The seed of Hazelcast's MurmurHash3_x86_32."""
DATA = 8
"""Where the data begins."""
NO_HASH = bytes(4)
"""What a key without a partition hash of its own begins with."""
LOWEST = -(2**31)
HASHED_AT_ONCE = 10_000


@dataclass(frozen=True, slots=True)
class Partitions:
    """Some of the `count` partitions of a Hazelcast cluster. `is_remembered`: later calls will have
    this count, so the partition of each key is kept for them."""

    wanted: frozenset[int]
    count: int
    is_remembered: bool = True

    def __post_init__(self) -> None:
        if not is_count(self.count):
            raise ValueError(
                f"the connection's hello has partition_count {self.count!r}; it must be 1 or more"
            )
        for partition in self.wanted:
            if type(partition) is not int or not 0 <= partition < self.count:
                raise ValueError(f"there is no partition {partition!r} of {self.count}")

    @property
    def all(self) -> bool:
        """Whether these are all partitions: then no key has to be examined."""
        return len(self.wanted) == self.count

    def have(self, keys: Sequence[bytes]) -> list[bool]:
        """For each key, whether it is in one of them."""
        return [partition in self.wanted for partition in partition_ids(keys, self.count)]


class PartitionedKeys:
    """Keys by partition. Each key is hashed once, when it is new."""

    __slots__ = ("_known", "_of_partition", "count")

    def __init__(self, count: int) -> None:
        self.count = count
        self._known = 0
        self._of_partition: defaultdict[int, list[bytes]] = defaultdict(list)

    def within(self, partitions: Partitions, keys: Collection[bytes]) -> list[bytes]:
        """Those of all keys that are in some partitions. `keys`: all keys; those of earlier calls
        first, in the same order."""
        # Skipping the known ones takes time for each of them.
        new: Iterator[bytes] = iter(())
        if len(keys) > self._known:
            new = islice(keys, self._known, None)
        while some := list(islice(new, HASHED_AT_ONCE)):
            for key, partition in zip(some, partition_ids(some, self.count), strict=True):
                self._of_partition[partition].append(key)
            self._known += len(some)
        groups = self._of_partition
        return list(
            chain.from_iterable(
                groups[partition] for partition in partitions.wanted if partition in groups
            )
        )


def is_count(count: object) -> bool:
    """Whether a Hazelcast cluster can have this number of partitions."""
    return type(count) is int and 0 < count < 2**31


def partition_ids(keys: Iterable[bytes], count: int) -> list[int]:
    """The partition of each key, of `count`."""
    if count == 1:
        return [0 for _ in keys]
    murmur3 = _murmur3()
    # Without a call for each key: a restore waits for this.
    hashes = [
        murmur3(key[DATA:], SEED)
        if len(key) < DATA or key[:4] == NO_HASH
        else int.from_bytes(key[:4], "big", signed=True)
        for key in keys
    ]
    return [0 if number == LOWEST else abs(number) % count for number in hashes]


def partition_id(key: bytes, count: int) -> int:
    """The partition of one key, of `count`."""
    return partition_number(key) % count


def partition_number(key: bytes) -> int:
    """The partition is this number modulo the number of partitions. It is the absolute value of the
    key's hash; 0 for the lowest hash, whose absolute value Java cannot represent."""
    stored_hash = int.from_bytes(key[:4], "big", signed=True) if len(key) >= DATA else 0
    hashed = stored_hash or _murmur3()(key[DATA:], SEED)
    return 0 if hashed == LOWEST else abs(hashed)


@cache
def _murmur3() -> Callable[[bytes, int], int]:
    """Imported from a library that only logs of Hazelcast clusters need. Raises `MissingExtra`."""
    with needs("hazelcast"):
        from mmh3 import hash as found

    return found
