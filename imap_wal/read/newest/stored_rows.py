"""The part of an index on scratch: writes, merges and reads its runs."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import repeat
from pathlib import Path

from imap_wal.entry import (
    DELETED,
    EXPIRES_AT_MS,
    KEY,
    KEY_CLASS,
    ORDER,
    PARTITION,
    TIMESTAMP_MS,
    VALUE,
    VALUE_CLASS,
    Row,
)
from imap_wal.errors import StorageUnavailable
from imap_wal.partitions import Partitions
from imap_wal.read.newest import runs
from imap_wal.read.newest.rivals import RivalClaims, conflict
from imap_wal.read.newest.runs import IN_MEMORY, Chunk, Entry, Run, RunWriter, Values
from imap_wal.read.newest.table import OWN_FIELDS, Owned, Table, in_pages
from imap_wal.rules.cleared import Cleared

ROOM = 4
"""How many times the size of what could be in memory too must be free on scratch."""
RUNS_MAX = 16
"""Runs that may wait for their merge; a lookup first merges them, unless a release will."""
_WINDOW_BYTES_MAX = 64 * 1024


class _Labels(dict[tuple[str, str, str], int]):
    """(key class, value class, node) → their number in runs."""

    def __init__(self) -> None:
        self.words: list[tuple[str, str, str]] = []

    def __missing__(self, words: tuple[str, str, str]) -> int:
        self[words] = number = len(self.words)
        self.words.append(words)
        return number


class StoredRows:
    """Not thread-safe. `cleared`: entries that are left out."""

    def __init__(self, memory_bytes: int, scratch: Path | None, cleared: Cleared) -> None:
        self._memory_bytes, self._scratch, self._cleared = memory_bytes, scratch, cleared
        self.runs: dict[int, Run] = {}
        self.version = 0
        """Grows with every merge."""
        self.window_bytes = min(max(memory_bytes // 2048, 4096), _WINDOW_BYTES_MAX)
        self._next_run = 0
        self._labels = _Labels()

    def demand_room(self, size: int) -> None:
        """Raise `StorageUnavailable` unless much more than `size` bytes are free: the log may be on
        the same disk."""
        with self._needing_room():
            room = self._scratch or tempfile.gettempdir()
            free = shutil.disk_usage(room).free
        if free < ROOM * size:
            raise StorageUnavailable(f"{room} has {free:,} free bytes, less than {ROOM * size:,}")

    @property
    def are_placed(self) -> bool:
        """Whether all runs have the places of each partition."""
        return all(run.partition_count for run in self.runs.values())

    def are_placed_by(self, count: int) -> bool:
        """The same for this number of partitions."""
        return all(run.partition_count == count for run in self.runs.values())

    @property
    def places_bytes(self) -> int:
        """Memory of all places."""
        return sum(run.places_bytes for run in self.runs.values())

    def add(
        self,
        tables: Mapping[str, Table],
        partition_count: int = 0,
        pause: Callable[[], object] = bool,
    ) -> None:
        """Write the tables as one run, with places if there is a `partition_count`. `pause` is
        called between two parts; if it raises, nothing is added. Raises `StorageUnavailable` if the
        scratch folder is full or fails."""
        entries = sum(
            len(table.rows) + sum(map(len, table.rivals.values())) for table in tables.values()
        )
        with self._needing_room():
            writer = self._writer(entries, partition_count)
            for name, table in sorted(tables.items()):
                writer.write(name, self._chunks(table, pause), pause)
            run = writer.finish()
        self.runs[run.number] = run

    def key_class(self, name: str) -> str | None:
        """The class of a key of a map; None: there is none."""
        for run in self.runs.values():
            for entries in run.windows(name, None, 1):
                return self._labels.words[entries[0][runs.LABEL]][0]
        return None

    def remove(self, name: str) -> None:
        """Remove a map."""
        for run in self.runs.values():
            run.sections.pop(name, None)
        self.runs = {number: run for number, run in self.runs.items() if run.sections}
        self.merge([run for run in self.runs.values() if run.sparse])

    def limit_runs(self, runs_max: int) -> None:
        """If there are more runs than that, merge those that are `alike`."""
        if len(self.runs) > runs_max:
            self.merge(self.alike())

    def alike(self) -> list[Run]:
        """The smallest runs to merge: each is not much larger than all smaller ones together. So an
        entry is rewritten about as often as the index doubles, and less often if many runs may
        wait. Empty if a merge would not be worth its work."""
        smallest = sorted(self.runs.values(), key=lambda run: run.size)
        size = count = 0
        while count < len(smallest) and (not count or smallest[count].size <= 2 * size):
            size += smallest[count].size
            count += 1
        if len(smallest) > RUNS_MAX:
            count = max(count, 2)
        return smallest[:count] if count > 1 else []

    def merge(
        self,
        merging: Sequence[Run],
        partition_count: int | None = None,
        pause: Callable[[], object] = bool,
    ) -> None:
        """Merge several runs into one, with places for `partition_count`; None: as they have.
        `pause` is called between two parts; if it raises, nothing has changed. Raises
        `StorageUnavailable` if the scratch folder is full or fails."""
        if not merging:
            return
        if partition_count is None:
            counts = {run.partition_count for run in merging}
            partition_count = counts.pop() if len(counts) == 1 else 0
        by_number = {run.number: run for run in merging}
        with self._needing_room():
            writer = self._writer(
                sum(section.entries for run in merging for section in run.sections.values()),
                partition_count,
            )
            for name in sorted(set().union(*(run.sections for run in merging))):
                values = Values(by_number, self.window_bytes)
                sources = [run.windows(name, None, self.window_bytes) for run in merging]
                contenders = self.contenders(name, sources)
                columns = ((list(zip(*entries, strict=True)), entries) for entries in contenders)
                writer.write(
                    name,
                    (
                        (some[: runs.RUN], some[runs.LENGTH], values.each(entries))
                        for some, entries in columns
                    ),
                    pause,
                )
            run = writer.finish()
        self.runs = {number: run for number, run in self.runs.items() if number not in by_number}
        self.runs[run.number] = run
        self.version += 1

    def find(
        self, name: str, table: Table | None, keys: Iterable[bytes]
    ) -> tuple[list[Entry], dict[bytes, list[Entry]]]:
        """`newest` of those keys, in key order."""
        if not self.are_placed:
            with suppress(StorageUnavailable):  # a full disk only makes lookups slower
                self.limit_runs(1)
        sorted_keys = sorted(set(keys))
        entries = [entry for run in self.runs.values() for entry in run.find(name, sorted_keys)]
        if table is not None and table.rows:
            entries += [
                self._entry(table, row)
                for key in sorted_keys
                if key in table.rows
                for row in table.of(key)
            ]
        entries.sort(key=runs.key_of)
        return self.newest(name, entries)

    def sources(
        self,
        name: str,
        table: Table | None,
        after: bytes | None,
        partitions: Partitions | None = None,
    ) -> list[Iterator[list[Entry]]]:
        """All sources of a map's entries above a key. `partitions`: those of other partitions may
        be left out."""
        if partitions is not None and not self.are_placed_by(partitions.count):
            partitions = None
        windows = [
            run.windows(name, after, self.window_bytes)
            if partitions is None
            else run.windows_within(name, after, partitions.wanted)
            for run in self.runs.values()
            if name in run.sections
        ]
        if table is not None and table.rows:
            rows = table.windows(after, partitions)
            windows.append([self._entry(table, row) for row in some] for some in rows)
        return windows

    def contenders(
        self, name: str, sources: Sequence[Iterator[list[Entry]]]
    ) -> Iterator[list[Entry]]:
        """All contenders of each key, the winner first."""
        for entries in runs.merged(sources):
            winners, rivals = self.newest(name, entries)
            if rivals:
                winners = [
                    rival
                    for entry in winners
                    for rival in (entry, *rivals.get(entry[runs.KEY], ()))
                ]
            if winners:
                yield winners

    def newest(
        self, name: str, entries: list[Entry]
    ) -> tuple[list[Entry], dict[bytes, list[Entry]]]:
        """`runs.newest` without cleared entries."""
        if name in self._cleared:
            hidden = self._cleared.hidden(
                name,
                [entry[runs.KEY] for entry in entries],
                [entry[runs.ORDER] for entry in entries],
            )
            entries = [entry for index, entry in enumerate(entries) if index not in hidden]
        return runs.newest(entries, self._labels.words)

    def pages_of(
        self, name: str, entries: list[Entry], rows_max: int, bytes_max: int
    ) -> Iterator[tuple[list[Row], list[str]]]:
        """The rows and nodes of those entries, in pages. The present runs have their values."""
        values = Values(dict(self.runs), self.window_bytes)
        for start in range(0, len(entries), rows_max):
            some = entries[start : start + rows_max]
            for part in in_pages(some, runs.sizes(some), bytes_max):
                yield self.loaded(name, part, values)

    def loaded(
        self, name: str, entries: Sequence[Entry], values: Values
    ) -> tuple[list[Row], list[str]]:
        """The rows and nodes of those entries."""
        if not entries:
            return [], []
        keys, orders, labels, deleted, timestamps, expires, partitions, *_ = zip(
            *entries, strict=True
        )
        key_classes, value_classes, nodes = zip(
            *map(self._labels.words.__getitem__, labels), strict=True
        )
        columns = (
            keys,
            key_classes,
            values.each(entries),
            value_classes,
            deleted,
            timestamps,
            expires,
            partitions,
            orders,
        )
        return list(zip(repeat(name), *columns, strict=False)), list(nodes)

    def conflict(
        self, name: str, contenders: list[Entry], current_runs: dict[int, Run]
    ) -> RivalClaims | None:
        """The conflict of one key among those entries."""
        rows, nodes = self.loaded(name, contenders, Values(current_runs, 0))
        return conflict(name, rows[0][KEY], list(zip(rows, nodes, strict=True)))

    def _chunks(self, table: Table, pause: Callable[[], object]) -> Iterator[Chunk]:
        """A table's rows, sorted, in columns: that avoids Python code for each row."""
        own, node = OWN_FIELDS, table.node
        for rows in table.windows(None, pause=pause):
            (
                _,
                keys,
                key_classes,
                values,
                value_classes,
                deleted,
                timestamps,
                expires,
                partitions,
                orders,
                *_,
            ) = zip(*rows, strict=False)
            nodes = (
                repeat(node)
                if table.alone
                else [row[own] if len(row) > own else node for row in rows]
            )
            labels = list(
                map(self._labels.__getitem__, zip(key_classes, value_classes, nodes, strict=False))
            )
            lengths = (
                list(map(len, values))
                if None not in values
                else [-1 if value is None else len(value) for value in values]
            )
            yield (keys, orders, labels, deleted, timestamps, expires, partitions), lengths, values

    def _entry(self, table: Table, row: Owned) -> Entry:
        length = -1 if row[VALUE] is None else len(row[VALUE])
        return (
            row[KEY],
            row[ORDER],
            self._labels[row[KEY_CLASS], row[VALUE_CLASS], table.owner(row)],
            row[DELETED],
            row[TIMESTAMP_MS],
            row[EXPIRES_AT_MS],
            row[PARTITION],
            IN_MEMORY,
            row,
            length,
        )

    def _writer(self, entries: int, partition_count: int) -> RunWriter:
        self._next_run += 1
        return RunWriter(
            self._next_run, self._scratch, entries, self._memory_bytes // 8, partition_count
        )

    @contextmanager
    def _needing_room(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            room = self._scratch or tempfile.gettempdir()
            raise StorageUnavailable(
                f"a merge that is larger than memory needs space in {room}: {error}; the log was "
                "not changed. Free space there, or choose another scratch folder"
            ) from error
