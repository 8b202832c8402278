"""Keys in few large objects.

Python's allocator returns only whole arenas to the system. When the rows of an index have left the
memory, one remaining key in each arena would keep all of them.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import overload


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
