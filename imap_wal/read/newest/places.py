"""Where the entries of a partition are among the sorted entries of a map."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain

from imap_wal.partitions import partition_ids

PARTITION_BYTES = 200
"""Approximate memory of a partition besides its numbers."""


class Places:
    """The numbers of sorted entries, by the partition of their keys, of `count` partitions. A
    number takes 4 bytes, so the keys need not stay in memory."""

    def __init__(self, count: int) -> None:
        self.count, self.entries = count, 0
        self._numbers: defaultdict[int, array[int]] = defaultdict(partial(array, "I"))

    def add(self, keys: Sequence[bytes]) -> None:
        """The keys of the next entries."""
        partitions = partition_ids(keys, self.count)
        for number, partition in enumerate(partitions, self.entries):
            self._numbers[partition].append(number)
        self.entries += len(keys)

    def within(self, wanted: Iterable[int]) -> Sequence[int]:
        """The numbers of the entries in these partitions, in order."""
        parts = [self._numbers[number] for number in wanted if number in self._numbers]
        return parts[0] if len(parts) == 1 else sorted(chain.from_iterable(parts))

    @property
    def bytes(self) -> int:
        """Approximate memory."""
        return 4 * self.entries + PARTITION_BYTES * len(self._numbers)
