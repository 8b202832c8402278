"""Keys in few large objects.

Python's allocator returns only whole arenas to the system. When the rows of an index have left the
memory, one remaining key in each arena would keep all of them.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import overload

import msgpack

from imap_wal.partitions import partition_ids

ADDED_AT_ONCE = 10_000


class PackedKeys(Sequence[bytes]):
    """A list of keys that only grows."""

    def __init__(self) -> None:
        self._bytes, self._ends = bytearray(), array("Q", [0])

    def append(self, key: bytes) -> None:
        self._bytes += key
        self._ends.append(len(self._bytes))

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        return bytes(self._bytes[self._ends[index] : self._ends[index + 1]])


class ReleasedKeys:
    """The keys of rows that were moved to scratch although there was room for them, by partition,
    so that those of some partitions are found without reading all. A key may be in it twice.
    `count`: of partitions; 0: nothing was released. `bytes`: memory that they take."""

    def __init__(self, count: int = 0) -> None:
        self.count, self.bytes = count, 0
        self._packed: defaultdict[tuple[str, int], bytearray] = defaultdict(bytearray)

    def add(self, name: str, keys: Iterable[bytes], pause: Callable[[], bool]) -> None:
        """Keys of a map. `pause` is called again and again."""
        pack = msgpack.Packer(use_bin_type=True).pack
        left = iter(keys)
        while some := list(islice(left, ADDED_AT_ONCE)):
            for key, partition in zip(some, partition_ids(some, self.count), strict=True):
                packed = pack(key)
                self._packed[name, partition] += packed
                self.bytes += len(packed)
            pause()

    def within(self, name: str, wanted: Iterable[int]) -> Iterator[bytes]:
        """The keys of a map in these partitions."""
        for partition in wanted:
            if (name, partition) in self._packed:
                unpacker = msgpack.Unpacker(use_list=False, max_buffer_size=0)
                unpacker.feed(self._packed[name, partition])
                yield from unpacker

    def remove(self, name: str) -> None:
        """Remove a map."""
        for of in [of for of in self._packed if of[0] == name]:
            self.bytes -= len(self._packed.pop(of))
