"""Any number of entries by map, key and order, in bounded memory: sorted runs in files without a
name, which are merged. Clears are kept in memory, apart from them."""

from __future__ import annotations

import heapq
import tempfile
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any, BinaryIO, TypeAlias

import msgpack

from imap_wal.entry import KEY, MAP, ORDER, PARTITION, PARTITION_COUNT, VALUE, Order, Row
from imap_wal.errors import StorageUnavailable
from imap_wal.format import Position
from imap_wal.partitions import partition_number
from imap_wal.read.newest.memory_rows import ROW_BYTES

Place: TypeAlias = tuple[str, bytes, bool, Order, str]
"""(map, key, whether it is a change, order, node): entries are sorted by it."""
Placed: TypeAlias = tuple[Place, Row, Position | None]
RUNS_MAX = 64
"""If there are more runs than this, they are merged into one."""
place_of = itemgetter(0)


def subject_of(placed: Placed) -> tuple[str, bytes]:
    """Map and key."""
    return placed[0][:2]


class EntrySorter:
    """`memory_bytes`: about what the entries in memory may take."""

    def __init__(self, memory_bytes: int) -> None:
        self._limit = memory_bytes
        self._held: list[Placed] = []
        self._size = 0
        self._runs: list[BinaryIO] = []

    def add(
        self, row: Row, node: str, *, is_change: bool = True, position: Position | None = None
    ) -> None:
        """An entry with a key. Those that are not changes come before the changes of their key.
        Raises `StorageUnavailable` if there is no room for a file."""
        place = row[MAP], row[KEY], is_change, row[ORDER], node
        self._held.append((place, row, position))
        self._size += ROW_BYTES + len(row[KEY]) + len(row[VALUE] or b"")
        if self._size > self._limit:
            self._end_run()

    def sorted(self) -> Iterator[Placed]:
        """All entries, once. Raises `StorageUnavailable`."""
        self._held.sort(key=place_of)
        return heapq.merge(*map(_loaded, self._runs), self._held, key=place_of)

    def close(self) -> None:
        """Free memory and files. Safe to call twice."""
        self._held.clear()
        for run in self._runs:
            run.close()
        self._runs.clear()

    def _end_run(self) -> None:
        if len(self._runs) == RUNS_MAX:
            former, self._runs = self._runs, []
            self._runs.append(_stored(heapq.merge(*map(_loaded, former), key=place_of)))
            for run in former:
                run.close()
        self._held.sort(key=place_of)
        self._runs.append(_stored(self._held))
        self._held.clear()
        self._size = 0


class Clears:
    """Clears, which have no key, by map, number of partitions, and partition. A clear is small, and
    there is one for each partition, so they are in memory."""

    def __init__(self) -> None:
        self._maps: dict[str, dict[int, dict[int, list[Any]]]] = {}

    def add(self, row: Row, node: str, position: Position | None = None) -> None:
        partitions = self._maps.setdefault(row[MAP], {}).setdefault(row[PARTITION_COUNT], {})
        partitions.setdefault(row[PARTITION], []).append((row, node, position))

    def of(self, name: str, key: bytes) -> list[Placed]:
        """The clears that concern a key, as changes of it, sorted."""
        counts = self._maps.get(name)
        if not counts:
            return []
        number = 0 if counts.keys() == {1} else partition_number(key)
        placed: list[Placed] = [
            ((name, key, True, row[ORDER], node), row, position)
            for count, partitions in counts.items()
            for row, node, position in partitions.get(number % count, ())
        ]
        return sorted(placed, key=place_of)


def _stored(entries: Iterable[Placed]) -> BinaryIO:
    try:
        file: BinaryIO = tempfile.TemporaryFile(prefix="imap-wal-")
        file.writelines(map(msgpack.Packer(use_bin_type=True).pack, entries))
        file.flush()
    except OSError as error:
        raise StorageUnavailable(
            f"sorting changes needs space for files in {tempfile.gettempdir()}: {error}; free "
            "space there, or name another folder in TMPDIR"
        ) from error
    return file


def _loaded(file: BinaryIO) -> Iterator[Any]:
    file.seek(0)
    return iter(msgpack.Unpacker(file, use_list=False, raw=False, max_buffer_size=0))
