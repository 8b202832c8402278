"""Which transaction was the newest to write each lock of a partition."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from sys import getsizeof

ENTRY_BYTES = 150
"""What an entry of the exact table takes, besides the bytes of its key: two objects and a slot of
the dict. Measured on CPython 3.11."""
HASHES = 3


class LockTable:
    """Lock → id of the newest transaction that wrote it; 0: none has. Ids only grow.

    It is exact while it takes at most half of `bytes_max`. Then it becomes an estimate of fixed
    size (that of Waltz): each lock has three slots with the highest id of any lock there, and the
    lowest of the three is its answer. So the id may be too high: then a transaction is refused that
    could be appended. It is never too low.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._ids: dict[bytes, int] = {}
        self._bytes = 0
        self._slots: array[int] | None = None

    def __len__(self) -> int:
        """The locks that it knows; 0 if it is an estimate."""
        return len(self._ids)

    @property
    def is_exact(self) -> bool:
        return self._slots is None

    @property
    def memory_bytes(self) -> int:
        """Approximate memory, in bytes."""
        return self._bytes if self._slots is None else getsizeof(self._slots)

    def newest(self, lock: bytes) -> int:
        if self._slots is None:
            return self._ids.get(lock, 0)
        return min(self._slots[place] for place in self._places(lock))

    def write(self, lock: bytes, id: int) -> None:
        """A transaction has written the lock. Safe to repeat, in any order."""
        if self._slots is not None:
            self._estimate(lock, id)
            return
        before = self._ids.get(lock)
        if before is None:
            self._bytes += len(lock) + ENTRY_BYTES
        if before is None or before < id:
            self._ids[lock] = id
        if 2 * self._bytes > self._bytes_max:
            self._become_an_estimate()

    def write_all(self, locks: Sequence[bytes], ids: Sequence[int]) -> None:
        """`write` for each lock and its id: an open does that with millions of rows. The exact
        table may exceed its limit by these locks before it becomes an estimate."""
        if self._slots is not None:
            for lock, id in zip(locks, ids, strict=True):
                self._estimate(lock, id)
            return
        table = self._ids
        new = {*locks}.difference(table)  # `-` would visit the whole table
        self._bytes += len(new) * ENTRY_BYTES + sum(map(len, new))
        newest = table.setdefault
        for lock, id in zip(locks, ids, strict=True):
            if newest(lock, id) < id:
                table[lock] = id
        if 2 * self._bytes > self._bytes_max:
            self._become_an_estimate()

    def items(self) -> Iterator[tuple[bytes, int]]:
        """All locks of an exact table."""
        return iter(self._ids.items())

    def _become_an_estimate(self) -> None:
        ids, self._ids = self._ids, {}
        self._slots = array("Q", bytes(8 * max(self._bytes_max // 16, HASHES)))
        for lock, id in ids.items():
            self._estimate(lock, id)

    def _estimate(self, lock: bytes, id: int) -> None:
        assert self._slots is not None
        for place in self._places(lock):
            if self._slots[place] < id:
                self._slots[place] = id

    def _places(self, lock: bytes) -> Iterator[int]:
        assert self._slots is not None
        count, digest = len(self._slots), blake2b(lock, digest_size=8 * HASHES).digest()
        return (int.from_bytes(digest[at : at + 8], "big") % count for at in range(0, 24, 8))
