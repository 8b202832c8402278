"""The newest change of every key, in bounded memory.

    add ─▶ one dict for each map: key → newest row     the fast path: a lookup and a tuple compare
             │ more than `memory_bytes`
             ▼
           shared strings, exact count ─▶ still too much ─▶ a sorted run on scratch (`runs`)
                                                         ─▶ too many runs: merged
             │ release
             ▼
           a sorted run on scratch; in memory the places of each partition's entries (`places`)

A row has its node at the end, unless that is the first node of the map. If several nodes claim the
same (incarnation, partition version) for a key, the newest row of each is kept until a newer row is
found (`rivals`), so the winner does not depend on the order of merging. Everything is read in pages
of `page_bytes`, derived from `memory_bytes`. See docs/decisions/restores.md. Cleared
entries (`clears`) are left out by reads and by merges of runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, compress
from pathlib import Path
from typing import TypeAlias, cast

from imap_wal.entry import DELETED, EXPIRES_AT_MS, KEY, KEY_CLASS, MAP, ORDER, VALUE, Row
from imap_wal.partitions import Partitions
from imap_wal.read.file_scan import EntryBatch
from imap_wal.read.newest import runs
from imap_wal.read.newest.memory_rows import PART_ROWS, ROW_BYTES, MemoryRows
from imap_wal.read.newest.rivals import RivalClaims, conflict
from imap_wal.read.newest.runs import Entry, Run, Values
from imap_wal.read.newest.stored_rows import RUNS_MAX, StoredRows
from imap_wal.read.newest.table import OWN_FIELDS, Owned, Table, in_pages, sizes_of
from imap_wal.rules.cleared import Cleared
from imap_wal.rules.newer import Claim

KeyState: TypeAlias = tuple[bytes, bool, int]
"""(key, deleted, expires_at_ms) of a newest row."""

SHARED_ROW_BYTES = 500
"""`ROW_BYTES` after equal strings are shared."""
PAGE_BYTES_MIN, PAGE_BYTES_MAX = 64 * 1024, 16 * 1024 * 1024
RELEASE_BYTES = 32 * 1024 * 1024
"""Rows are released if they take this much memory."""


class _Interrupted(Exception):
    """A reader waits, so the release ends."""


class NewestIndex:
    """Not thread-safe. `memory_bytes` limits its memory; for more it uses files in `scratch`
    (default: the system's temporary folder). They have no names, so nothing is left even after a
    kill. Raises `StorageUnavailable` if there is no room for them; earlier rows are not lost
    then."""

    def __init__(
        self, memory_bytes: int, scratch: Path | None = None, *, spill: bool = True
    ) -> None:
        self._memory_bytes, self._spill = memory_bytes, spill
        self.page_bytes = min(max(memory_bytes // 16, PAGE_BYTES_MIN), PAGE_BYTES_MAX)
        """Keys and values of a page together; a single larger one has its own page."""
        self.full = False
        """For an index without `spill`: the caller must take out `every` row and call `clear`."""
        self.overflowed = False
        """Whether the index needed more memory than the limit."""
        self._leaving: list[dict[bytes, Owned]] = []
        self._leaving_bytes = 0
        """Rows that were released, and are still in memory; what they take."""
        self._cleared = Cleared()
        self._memory = MemoryRows(self._cleared)
        self._stored = StoredRows(memory_bytes, scratch, self._cleared)
        self._version = 0
        self._met: list[Callable[[], RivalClaims | None]] = []
        self._set_used(0)

    def begin(self, state: object) -> None:
        """Nothing depends on the state."""

    def take(self, scan: object, changes: EntryBatch) -> None:
        """`add` a batch that was read."""
        self.add(changes.node, changes.rows, changes.bytes, clears=changes.clears)

    def add(
        self,
        node: str,
        rows: Sequence[Row],
        payload_bytes: int | None = None,
        *,
        clears: bool = False,
    ) -> None:
        """Merge rows of one node's log, in any order. `payload_bytes`: size of the rows, if known.
        `clears`: there may be clears among them."""
        if clears:
            rows = self._cleared.take(node, rows)
        name: str | None = None
        tables = self._memory.tables
        table = Table(node)
        known_rows = table.rows
        get = known_rows.get
        alone = True
        tail: tuple[str, ...] = ()
        new = 0
        for row in rows:
            if row[MAP] != name:
                new += len(known_rows) + len(table.rivals)
                name = row[MAP]
                table = tables.get(name) or tables.setdefault(name, Table(node))
                known_rows = table.rows
                get = known_rows.get
                tail = () if table.node == node else (node,)
                alone = table.alone = table.alone and not tail
                new -= len(known_rows) + len(table.rivals)
            key = row[KEY]
            newest = get(key)
            if newest is None:
                known_rows[key] = row + tail
            elif not alone:
                table.offer(key, row + tail)
            elif newest[ORDER] < row[ORDER]:
                known_rows[key] = row
        if payload_bytes is None:
            payload_bytes = sum(sizes_of(rows))
        new += len(known_rows) + len(table.rivals)
        self._version += 1
        # An upper bound: the size of replaced rows is not subtracted.
        self._grown += payload_bytes + ROW_BYTES * new
        if self._grown > self._room:
            self._tighten()

    def clear_counts(self) -> set[int]:
        """The different partition counts of all clears."""
        return self._cleared.counts()

    def maps(self) -> list[str]:
        """Names of all maps that have a row, even if only a tombstone or a clear."""
        in_memory = {name for name, table in self._memory.tables.items() if table.rows}
        return sorted(
            in_memory.union(
                self._cleared.maps(), *(run.sections for run in self._stored.runs.values())
            )
        )

    def __contains__(self, name: str) -> bool:
        """Whether a map has a row or a clear."""
        table = self._memory.tables.get(name)
        return (
            bool(table and table.rows)
            or name in self._cleared
            or any(name in run.sections for run in self._stored.runs.values())
        )

    def key_class(self, name: str) -> str | None:
        """The class of a key of a map, even of one that was deleted or cleared; None: there is
        none."""
        table = self._memory.tables.get(name)
        if table is not None and table.rows:
            return cast(Row, next(iter(table.rows.values())))[KEY_CLASS]
        return self._stored.key_class(name)

    def clears(self, name: str) -> list[Claim]:
        """The newest clear of each partition of a map, and the node that wrote it."""
        return self._cleared.claims(name)

    def get(
        self, name: str, keys: Sequence[bytes], bytes_max: int | None = None
    ) -> list[Row | None]:
        """The newest row of each key, including tombstones; None for a key without a row.
        `bytes_max`: only as many of the first keys as fit, at least one. It limits the size of keys
        and values."""
        newest_rows: list[Row | None] = []
        size = 0
        if not self._stored.runs:
            table = self._memory.tables.get(name)
            for row in (
                self._rows_of(name, table, keys) if table is not None else [None] * len(keys)
            ):
                if bytes_max is not None:
                    size += len(row[KEY]) + len(row[VALUE] or b"") if row is not None else 0
                    if size > bytes_max and newest_rows:
                        break
                newest_rows.append(row)
            return newest_rows
        entries = {entry[runs.KEY]: entry for entry in self._find(name, keys)}
        fitting: list[Entry] = []
        taken = 0
        for key in keys:
            if key in entries:
                size += len(key) + max(0, entries[key][runs.LENGTH])
                if bytes_max is not None and size > bytes_max and taken:
                    break
                fitting.append(entries[key])
            taken += 1
        rows = {
            row[KEY]: row
            for row in self._stored.loaded(name, fitting, Values(self._stored.runs, 0))[0]
        }
        return [rows.get(key) for key in keys[:taken]]

    def keys(
        self, name: str, rows_max: int = 10_000, partitions: Partitions | None = None
    ) -> Iterator[list[KeyState]]:
        """Key, deleted flag and expiry of every newest row, without reading values. `partitions`:
        only keys in these. The time grows with the number of such keys, unless some rows are on
        scratch without their places: then all keys are read. Otherwise like `batches`."""
        if partitions is not None and partitions.all:
            partitions = None
        if not self._stored.runs:
            for _, some in self._pages_of_memory(
                name, rows_max, ordered=False, partitions=partitions
            ):
                states = [(row[KEY], row[DELETED], row[EXPIRES_AT_MS]) for row in some]
                yield from in_pages(states, [len(state[0]) for state in states], self.page_bytes)
            return
        for entries, _ in self._stored_pages(
            name, rows_max, lambda entries: [len(entry[runs.KEY]) for entry in entries], partitions
        ):
            states = [
                (entry[runs.KEY], entry[runs.DELETED], entry[runs.EXPIRES_AT_MS])
                for entry in entries
            ]
            yield (
                states
                if partitions is None
                else list(compress(states, partitions.have([state[0] for state in states])))
            )

    def in_memory(self, name: str, partitions: Partitions) -> list[Row] | None:
        """The newest rows of the keys in some partitions, including tombstones; None: to find them,
        all rows on scratch would be read. A row may have its node at its end."""
        if self._stored.runs:
            if partitions.all or not self._stored.are_placed_by(partitions.count):
                return None
            pages = self._stored_rows(name, PART_ROWS, partitions)
            return [row for rows, _ in pages for row in rows]
        table = self._memory.tables.get(name)
        if table is None:
            return []
        keys = list(table.rows) if partitions.all else table.keys_in(partitions)
        self._meet(name, table, keys)
        return cast(
            list[Row], [row for row in self._memory.winners(name, table, keys) if row is not None]
        )

    def hash_keys(self, count: int) -> None:
        """Hash the keys in memory, for `keys` of some of `count` partitions."""
        for table in self._memory.tables.values():
            table.keys_in(Partitions(frozenset(), count))

    def is_releasable(self, partition_count: int) -> bool:
        """Whether a release saves memory, as far as it is known without counting, or has not ended.
        False if rows went to scratch because there was no room: they have no places."""
        return (
            self._spill
            and self._stored.are_placed
            and bool(
                self._leaving
                or self._to_merge(partition_count)
                or self._used + self._grown >= RELEASE_BYTES
            )
        )

    def release(self, partition_count: int, pause: Callable[[], bool]) -> None:
        """Move all rows to scratch, with the places of each partition, and merge runs there.
        `pause` is called between two short parts: other threads may run then. If it returns True,
        the release ends; the next one continues it. Raises `StorageUnavailable` if there is no
        room. Reads are right at any time."""

        def check() -> None:
            if pause():
                raise _Interrupted

        with suppress(_Interrupted):
            while self.is_releasable(partition_count):
                if self._leaving:
                    self._leave(check)
                elif merging := self._to_merge(partition_count):
                    self._stored.demand_room(sum(run.size for run in merging))
                    self._stored.merge(merging, partition_count, check)
                    self._set_used(self._used + self._grown)
                else:
                    self._move(partition_count, check)

    def _to_merge(self, partition_count: int) -> list[Run]:
        """The runs that a release merges: those with the places of another count, or those that are
        alike. So there are few, and a lookup need not merge them."""
        stored = self._stored.runs.values()
        others = [run for run in stored if run.partition_count != partition_count]
        return others or self._stored.alike()

    def _move(self, partition_count: int, check: Callable[[], object]) -> None:
        """Move the rows to scratch, unless most of them were replaced."""
        self._memory.purge(check)
        self._set_used(sum(self._memory.counted(check)))
        if self._used < RELEASE_BYTES:
            return
        self._stored.demand_room(self._used)
        self._stored.add(self._memory.tables, partition_count, check)
        # One remaining key would keep its whole arena (`packed_keys`), so all rows leave together.
        self._leaving = [table.rows for table in self._memory.tables.values()]
        self._leaving_bytes = self._used
        self.clear()

    def _leave(self, check: Callable[[], object] = bool) -> None:
        """Delete the released rows."""
        while self._leaving:
            rows = self._leaving[-1]
            while rows:
                for _ in range(min(PART_ROWS, len(rows))):
                    rows.popitem()
                check()
            self._leaving.pop()
        self._leaving_bytes = 0
        self._set_used(self._used + self._grown)

    def batches(self, name: str, rows_max: int = 10_000) -> Iterator[list[Row]]:
        """All newest rows of a map, including tombstones, in pages of at most `page_bytes` and
        `rows_max`. Rows that are added meanwhile may or may not appear; a key that is present all
        the time appears once."""
        for rows, _ in self.batches_with_nodes(name, rows_max):
            yield rows

    def batches_with_nodes(
        self, name: str, rows_max: int = 10_000, *, ordered: bool = False
    ) -> Iterator[tuple[list[Row], list[str]]]:
        """`batches`, with the node that wrote each row; `ordered` by key."""
        if self._stored.runs:
            yield from self._stored_rows(name, rows_max)
            return
        for table, some in self._pages_of_memory(name, rows_max, ordered):
            yield from table.pages(some, self.page_bytes)

    def batches_with_rivals(
        self, name: str
    ) -> Iterator[tuple[list[Row], list[str], dict[bytes, RivalClaims]]]:
        """`batches_with_nodes` in key order, with the keys in conflict of each page."""
        self._met = []
        pending: dict[bytes, RivalClaims] = {}
        for rows, nodes in self.batches_with_nodes(name, ordered=True):
            pending.update((conflict.key, conflict) for conflict in self.conflicts())
            in_conflict = (
                {row[KEY]: pending.pop(row[KEY]) for row in rows if row[KEY] in pending}
                if pending
                else {}
            )
            yield rows, nodes, in_conflict

    def conflicts(self) -> Iterator[RivalClaims]:
        """The keys in conflict among the rows returned since the last call. Values are read one key
        at a time."""
        met, self._met = self._met, []
        return (met_conflict for read in met if (met_conflict := read()) is not None)

    def every(self, name: str, rows_max: int = 10_000) -> Iterator[tuple[list[Row], list[str]]]:
        """All contenders of every key, for a merge elsewhere."""
        if self._stored.runs:
            for entries in self._stored.contenders(name, self._sources(name)):
                yield from self._stored.pages_of(name, entries, rows_max, self.page_bytes)
            return
        table = self._memory.tables.get(name)
        contenders = (
            []
            if table is None
            else [*table.rows.values(), *chain.from_iterable(table.rivals.values())]
        )
        for start in range(0, len(contenders), rows_max):
            some = contenders[start : start + rows_max]
            yield from cast(Table, table).pages(some, self.page_bytes)

    def count(self, name: str) -> int:
        """How many keys of a map have a row, including tombstones."""
        sections = [
            run.sections[name] for run in self._stored.runs.values() if name in run.sections
        ]
        table = self._memory.tables.get(name)
        if not sections:
            return len(table.rows) if table is not None else 0
        if len(sections) == 1 and (table is None or not table.rows):
            return sections[0].keys
        return sum(
            len(set(map(runs.key_of, entries))) for entries in runs.merged(self._sources(name))
        )

    def known_count(self) -> int | None:
        """How many keys of all maps have a row; None: rows are on disk, and would have to be
        read."""
        if self._stored.runs:
            return None
        return sum(len(table.rows) for table in self._memory.tables.values())

    def remove(self, name: str) -> None:
        """Remove a map."""
        self._version += 1
        self._cleared.remove(name)
        self._memory.tables.pop(name, None)
        self._stored.remove(name)

    def forget(self) -> None:
        """Remove everything. Listings under way continue with rows that are added later."""
        self._leaving, self._leaving_bytes = [], 0
        self._cleared.forget()
        self._stored.runs = {}
        self.clear()

    def clear(self) -> None:
        """Remove the rows in memory."""
        self._version += 1
        self._memory.tables.clear()
        self.full = False
        self._set_used(0)

    def close(self) -> None:
        """Free memory and the scratch files. Safe to call twice."""
        self.forget()

    # ---- in memory ----

    def _set_used(self, used: int) -> None:
        """The rows in memory take this much. More rows are added until there is no room."""
        self._used, self._grown = used, 0
        self._room = self._memory_for_rows - used

    @property
    def _memory_for_rows(self) -> int:
        return self._memory_bytes - self._leaving_bytes - self._stored.places_bytes

    def _pages_of_memory(
        self, name: str, rows_max: int, ordered: bool, partitions: Partitions | None = None
    ) -> Iterator[tuple[Table, list[Owned]]]:
        """The rows of a map that was all in memory at the start, or of some partitions, with the
        table that has their nodes. Rows that have moved to scratch since are found there, with
        their nodes."""
        table = self._memory.tables.get(name)
        if table is None:
            return
        keys = list(table.rows) if partitions is None else table.keys_in(partitions)
        if ordered:
            keys.sort()
        for start in range(0, len(keys), rows_max):
            some = keys[start : start + rows_max]
            if self._stored.runs:
                for rows, nodes in self._stored.pages_of(
                    name, self._find(name, some), rows_max, self.page_bytes
                ):
                    yield table, [(*row, node) for row, node in zip(rows, nodes, strict=True)]
                continue
            now = self._memory.tables.get(name)
            if now is not None:
                self._meet(name, now, some)
                yield now, [row for row in self._memory.winners(name, now, some) if row is not None]

    def _rows_of(self, name: str, table: Table, keys: Sequence[bytes]) -> Iterator[Row | None]:
        self._meet(name, table, keys)
        for row in self._memory.winners(name, table, keys):
            yield None if row is None else cast(Row, row[:OWN_FIELDS])

    def _meet(self, name: str, table: Table, keys: Sequence[bytes]) -> None:
        if table.rivals:
            contested = [
                self._memory.contenders(name, table, key) for key in keys if key in table.rivals
            ]
            self._met += [
                partial(conflict, name, rows[0][KEY], list(map(table.claim, rows)))
                for rows in contested
                if rows
            ]

    def _tighten(self) -> None:
        """Drop cleared keys, and count exactly. If little room is left, share equal strings; if
        that is not enough, move everything to scratch."""
        self._leave()
        self._memory.purge()
        memory, (payload, row_bytes) = self._memory_for_rows, self._memory.counted()
        used, least = payload + row_bytes, payload + row_bytes * SHARED_ROW_BYTES // ROW_BYTES
        if self._stored.runs:
            least = used  # it will not fit, so sharing strings gains nothing
        elif used > memory // 2 and (least <= memory * 3 // 4 or not self._spill):
            for table in self._memory.tables.values():
                table.share_strings()
            used = least
        if least > memory * 3 // 4:
            if self._spill:
                self._spill_all()
                used = 0
            else:
                self.full = True
        self._set_used(used)

    # ---- on scratch ----

    def _spill_all(self) -> None:
        """Write all rows in memory as a run."""
        self._stored.add(self._memory.tables)
        self.overflowed = True
        self.clear()
        self._stored.limit_runs(RUNS_MAX)

    def _moves(self) -> int:
        """Increases with every change to the entries that a pass over the index would find, or
        their places."""
        return self._version + self._stored.version

    def _sources(
        self, name: str, after: bytes | None = None, partitions: Partitions | None = None
    ) -> list[Iterator[list[Entry]]]:
        """See `StoredRows.sources`."""
        return self._stored.sources(name, self._memory.tables.get(name), after, partitions)

    def _find(self, name: str, keys: Iterable[bytes]) -> list[Entry]:
        """The newest entries of those keys, in order of keys."""
        winners, rivals = self._stored.find(name, self._memory.tables.get(name), keys)
        self._meet_stored(name, winners, rivals, dict(self._stored.runs))
        return winners

    def _meet_stored(
        self,
        name: str,
        winners: Iterable[Entry],
        rivals: dict[bytes, list[Entry]],
        current_runs: dict[int, Run],
    ) -> None:
        """Removes these winners' entries from `rivals`."""
        for entry in winners if rivals else ():
            if entry[runs.KEY] in rivals:
                self._met.append(
                    partial(
                        self._stored.conflict,
                        name,
                        [entry, *rivals.pop(entry[runs.KEY])],
                        current_runs,
                    )
                )

    def _stored_pages(
        self,
        name: str,
        rows_max: int,
        sizes: Callable[[Sequence[Entry]], list[int]] = runs.sizes,
        partitions: Partitions | None = None,
    ) -> Iterator[tuple[list[Entry], dict[int, Run]]]:
        """Pages of the newest entries of a map, and the runs that have their values. It continues
        after the last key, not at a place: the index may change between two pages. `partitions`:
        those of others may be left out."""
        after: bytes | None = None
        while True:
            version, current_runs = self._moves(), dict(self._stored.runs)
            held: list[Entry] = []
            rivals: dict[bytes, list[Entry]] = {}
            size = 0

            def weighed(
                entries: list[Entry], rivals: dict[bytes, list[Entry]] = rivals
            ) -> list[int]:
                if not rivals:
                    return sizes(entries)
                weights = zip(
                    sizes(entries),
                    (rivals.get(entry[runs.KEY], []) for entry in entries),
                    strict=True,
                )
                return [own + sum(sizes(others)) for own, others in weights]

            every = runs.merged(self._sources(name, after, partitions))
            for entries in chain(every, ([],)):  # an empty list marks the end
                winners, others = self._stored.newest(name, entries)
                rivals.update(others)
                held += winners
                size += sum(weighed(winners))
                if winners and len(held) < rows_max and size < self.page_bytes:
                    continue
                for start in range(0, len(held), rows_max):
                    some = held[start : start + rows_max]
                    for page in in_pages(some, weighed(some), self.page_bytes):
                        self._meet_stored(name, page, rivals, current_runs)
                        yield page, current_runs
                        after = page[-1][runs.KEY]
                        if self._moves() != version:
                            break
                    if self._moves() != version:
                        break
                held, size = [], 0
                if self._moves() != version:
                    break
            else:
                return

    def _stored_rows(
        self, name: str, rows_max: int, partitions: Partitions | None = None
    ) -> Iterator[tuple[list[Row], list[str]]]:
        values = Values({}, 0)
        window_bytes = self._stored.window_bytes if partitions is None else 0
        for entries, current_runs in self._stored_pages(name, rows_max, partitions=partitions):
            if values.runs is not current_runs:
                values = Values(current_runs, window_bytes)
            yield self._stored.loaded(name, entries, values)
