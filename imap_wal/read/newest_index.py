"""The newest change of every key, in bounded memory.

    add ─▶ one dict a map: key → newest row                 the fast path: a lookup and a tuple compare
             │ more than `memory_bytes`
             ▼
           shared strings, exact count ─▶ still too much ─▶ a sorted run on scratch (`runs`) ─▶ too many runs: merged

A row names its node at its end, unless it is the first node of the map. When several nodes claim
the same (incarnation, partition version) for a key, the newest row of each is kept until a newer
row is found (`rivals`). So the winner is the same whichever was merged first. Everything is read in
pages of `page_bytes`, derived from `memory_bytes`. See docs/decisions/0016-sorted-runs.md. What was
cleared (`clears`) is left out when it is read, and when runs are merged.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain, compress, repeat
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

from imap_wal.entry import Order, Row
from imap_wal.errors import StorageUnavailable
from imap_wal.read import runs
from imap_wal.read.clears import Cleared
from imap_wal.read.partitions import PartitionedKeys, Partitions
from imap_wal.read.rivals import Claim, Conflict, conflict, joined
from imap_wal.read.runs import DELETED, EXPIRES_AT_MS, IN_MEMORY, KEY, Chunk, Entry, Run, RunWriter, Values

_Owned: TypeAlias = tuple[Any, ...]
"""A row of a table; with its node at the end where that is not the table's."""
KeyState: TypeAlias = tuple[bytes, bool, int]
"""(key, deleted, expires_at_ms) of a newest row."""

ROW_BYTES = 700
"""What a row fresh from msgpack takes besides key and value: tuples, integers, three strings of its own, its place in the dict."""
SHARED_ROW_BYTES = 500
"""The same, once equal strings are one."""
RUNS_MAX = 16
"""Runs that may wait for their merge; a lookup merges them before."""
PAGE_BYTES_MIN, PAGE_BYTES_MAX = 64 * 1024, 16 * 1024 * 1024
_OWN_FIELDS = 10
_WINDOW_BYTES_MAX = 64 * 1024
_WINDOW_ROWS = 1024

T = TypeVar("T")


class Table:
    """The newest rows of one map in memory. `node` wrote those that do not say; `alone`: no other
    node wrote any. `rivals`: of keys that several nodes claim, the contenders that are not in
    `rows`."""

    __slots__ = ("_partitioned", "alone", "node", "rivals", "rows")

    def __init__(self, node: str = "") -> None:
        self.node, self.alone = node, True
        self.rows: dict[bytes, _Owned] = {}
        self.rivals: dict[bytes, list[_Owned]] = {}
        self._partitioned: PartitionedKeys | None = None

    def keys_in(self, partitions: Partitions) -> list[bytes]:
        """The keys of some partitions. Only those that came since the last time are hashed."""
        known = self._partitioned
        if known is None or known.count != partitions.count:
            known = self._partitioned = PartitionedKeys(partitions.count)
        return known.within(partitions, self.rows)

    def remove(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            del self.rows[key]
            self.rivals.pop(key, None)
        self._partitioned = None

    def owner(self, row: _Owned) -> str:
        return row[_OWN_FIELDS] if len(row) > _OWN_FIELDS else self.node

    def claim(self, row: _Owned) -> Claim:
        """A row as it was written, and its node."""
        return cast(Row, row[:_OWN_FIELDS]), self.owner(row)

    def of(self, key: bytes) -> list[_Owned]:
        """The contenders of a key, the winner first."""
        row = self.rows.get(key)
        return [] if row is None else [row, *self.rivals.get(key, ())]

    def offer(self, key: bytes, row: _Owned) -> None:
        """A row where more than one node writes."""
        known = self.rows.get(key)
        if known is None:
            self.rows[key] = row
            return
        pair, known_pair = row[9][:2], known[9][:2]
        if pair > known_pair:
            self.rows[key] = row
            if self.rivals:
                self.rivals.pop(key, None)
        elif pair == known_pair:
            if key not in self.rivals and self.owner(row) == self.owner(known):
                if known[9] < row[9]:
                    self.rows[key] = row
                return
            self.rows[key], *rest = joined(self.of(key), row, self._about)
            self.rivals[key] = rest

    def conflict(self, name: str, key: bytes) -> Conflict | None:
        """The conflict of a key, if it is in one."""
        return conflict(name, key, list(map(self.claim, self.of(key)))) if key in self.rivals else None

    def _about(self, row: _Owned) -> tuple[Order, str, bool]:
        return row[9], self.owner(row), row[5]


class _Labels(dict[tuple[str, str, str], int]):
    """(key class, value class, node) → their number in runs."""

    def __init__(self) -> None:
        self.words: list[tuple[str, str, str]] = []

    def __missing__(self, words: tuple[str, str, str]) -> int:
        self[words] = number = len(self.words)
        self.words.append(words)
        return number


class NewestIndex:
    """Not thread-safe. `memory_bytes` bounds what it holds in memory; beyond that it uses files in
    `scratch` (default: the system's temporary folder) that have no names, so that nothing is left
    even after a kill. `StorageUnavailable` when there is no room for them; what was added before is
    not lost then."""

    def __init__(self, memory_bytes: int, scratch: Path | None = None, *, spill: bool = True) -> None:
        self._memory_bytes, self._scratch, self._spill = memory_bytes, scratch, spill
        self.page_bytes = min(max(memory_bytes // 16, PAGE_BYTES_MIN), PAGE_BYTES_MAX)
        """Keys and values of a page together; a single larger one is a page of its own."""
        self.full = False
        """Without `spill`: it is time to take `every` row out and `clear`."""
        self.overflowed = False
        """Whether memory did not suffice."""
        self._tables: dict[str, Table] = {}
        self._grown = 0
        self._room = memory_bytes
        self._runs: dict[int, Run] = {}
        self._next_run = 0
        self._window_bytes = min(max(memory_bytes // 2048, 4096), _WINDOW_BYTES_MAX)
        self._labels = _Labels()
        self._cleared = Cleared()
        self._version = 0
        """Grows with everything that changes what a pass over the index would find, or where."""
        self._met: list[Callable[[], Conflict | None]] = []

    def add(self, node: str, rows: Sequence[Row], payload_bytes: int | None = None, *, clears: bool = False) -> None:
        """Merge rows of one node's log, in any order. `payload_bytes`: size of the rows when the
        caller knows it. `clears`: there may be clears among them."""
        if clears:
            rows = self._cleared.take(node, rows)
        name: str | None = None
        table = Table(node)
        known_rows = table.rows
        get = known_rows.get
        alone = True
        tail: tuple[str, ...] = ()
        new = 0
        for row in rows:
            if row[0] != name:
                new += len(known_rows) + len(table.rivals)
                name = row[0]
                table = self._tables.get(name) or self._tables.setdefault(name, Table(node))
                known_rows = table.rows
                get = known_rows.get
                tail = () if table.node == node else (node,)
                alone = table.alone = table.alone and not tail
                new -= len(known_rows) + len(table.rivals)
            key = row[1]
            known = get(key)
            if known is None:
                known_rows[key] = row + tail
            elif not alone:
                table.offer(key, row + tail)
            elif known[9] < row[9]:
                known_rows[key] = row
        if payload_bytes is None:
            payload_bytes = sum(len(row[1]) + len(row[3] or b"") for row in rows)
        new += len(known_rows) + len(table.rivals)
        self._version += 1
        self._grown += payload_bytes + ROW_BYTES * new  # an upper bound: what replaced rows took is not given back
        if self._grown > self._room:
            self._tighten()

    def maps(self) -> list[str]:
        """Names of all maps that have a row, tombstones and clears too."""
        in_memory = {name for name, table in self._tables.items() if table.rows}
        return sorted(in_memory.union(self._cleared.maps(), *(run.sections for run in self._runs.values())))

    def __contains__(self, name: str) -> bool:
        """Whether a map has a row or a clear."""
        table = self._tables.get(name)
        return bool(table and table.rows) or name in self._cleared or any(name in run.sections for run in self._runs.values())

    def clears(self, name: str) -> list[Claim]:
        """The newest clear of each partition of a map, and who wrote it."""
        return self._cleared.claims(name)

    def get(self, name: str, keys: Sequence[bytes], bytes_max: int | None = None) -> list[Row | None]:
        """The newest row of each key, tombstones too; None where there is none. `bytes_max`: only
        of the first keys, as many as fit, at least of one. It is the size of keys and values."""
        found: list[Row | None] = []
        size = 0
        if not self._runs:
            table = self._tables.get(name)
            for each in self._rows_of(name, table, keys) if table is not None else [None] * len(keys):
                if bytes_max is not None:
                    size += len(each[1]) + len(each[3] or b"") if each is not None else 0
                    if size > bytes_max and found:
                        break
                found.append(each)
            return found
        entries = {entry[KEY]: entry for entry in self._find(name, keys)}
        wanted: list[Entry] = []
        taken = 0
        for key in keys:
            if key in entries:
                size += len(key) + max(0, entries[key][runs.LENGTH])
                if bytes_max is not None and size > bytes_max and taken:
                    break
                wanted.append(entries[key])
            taken += 1
        rows = {row[1]: row for row in self._loaded(name, wanted, Values(self._runs, 0))[0]}
        return [rows.get(key) for key in keys[:taken]]

    def keys(self, name: str, rows_max: int = 10_000, partitions: Partitions | None = None) -> Iterator[list[KeyState]]:
        """Key, deleted flag and expiry of every newest row, without reading values. `partitions`:
        only of keys in these. In memory that takes as long as there are such keys; on scratch all
        keys are read. Otherwise as `batches`."""
        if partitions is not None and partitions.all:
            partitions = None
        if not self._runs:
            for _, some in self._pages_of_memory(name, rows_max, ordered=False, partitions=partitions):
                states = [(row[1], row[5], row[7]) for row in some]
                yield from in_pages(states, [len(state[0]) for state in states], self.page_bytes)
            return
        for entries, _ in self._stored_pages(name, rows_max, lambda entries: [len(entry[KEY]) for entry in entries]):
            states = [(entry[KEY], entry[DELETED], entry[EXPIRES_AT_MS]) for entry in entries]
            yield states if partitions is None else list(compress(states, partitions.have([state[0] for state in states])))

    def hash_keys(self, count: int) -> None:
        """Hash the keys in memory, for `keys` of some of `count` partitions."""
        for table in self._tables.values():
            table.keys_in(Partitions(frozenset(), count))

    def batches(self, name: str, rows_max: int = 10_000) -> Iterator[list[Row]]:
        """All newest rows of a map, tombstones too, in pages of `page_bytes` and `rows_max` at
        most. Rows that are added during this may or may not appear; a key that is there all the
        time appears once."""
        for rows, _ in self.batches_with_nodes(name, rows_max):
            yield rows

    def batches_with_nodes(self, name: str, rows_max: int = 10_000, *, ordered: bool = False) -> Iterator[tuple[list[Row], list[str]]]:
        """`batches`, and of each row the node that wrote it; `ordered` by key."""
        if self._runs:
            yield from self._stored_rows(name, rows_max)
            return
        for table, some in self._pages_of_memory(name, rows_max, ordered):
            for page in in_pages(some, [len(row[1]) + len(row[3] or b"") for row in some], self.page_bytes):
                yield self._split(table, page)

    def batches_with_rivals(self, name: str) -> Iterator[tuple[list[Row], list[str], dict[bytes, Conflict]]]:
        """`batches_with_nodes` in order of keys, and of each page the keys in conflict."""
        self._met = []
        pending: dict[bytes, Conflict] = {}
        for rows, nodes in self.batches_with_nodes(name, ordered=True):
            pending.update((each.key, each) for each in self.conflicts())
            here = {row[1]: pending.pop(row[1]) for row in rows if row[1] in pending} if pending else {}
            yield rows, nodes, here

    def conflicts(self) -> Iterator[Conflict]:
        """The keys in conflict among the rows that were returned since the last call, and will be
        until the next one. Values are read one key at a time."""
        found, self._met = self._met, []
        return (each for read in found if (each := read()) is not None)

    def every(self, name: str, rows_max: int = 10_000) -> Iterator[tuple[list[Row], list[str]]]:
        """What a merge elsewhere must know: all contenders of every key."""
        if self._runs:
            for entries in self._contenders(name, self._sources(name, None)):
                yield from self._pages_of(name, entries, rows_max, dict(self._runs))
            return
        table = self._tables.get(name)
        found = [] if table is None else [*table.rows.values(), *chain.from_iterable(table.rivals.values())]
        for start in range(0, len(found), rows_max):
            some = found[start : start + rows_max]
            for page in in_pages(some, [len(row[1]) + len(row[3] or b"") for row in some], self.page_bytes):
                yield self._split(cast(Table, table), page)

    def count(self, name: str) -> int:
        """How many keys of a map have a row, tombstones too."""
        sections = [run.sections[name] for run in self._runs.values() if name in run.sections]
        table = self._tables.get(name)
        if not sections:
            return len(table.rows) if table is not None else 0
        if len(sections) == 1 and (table is None or not table.rows):
            return sections[0].keys
        return sum(len(set(map(runs.key_of, entries))) for entries in runs.merged(self._sources(name, None)))

    def counts(self) -> dict[str, int]:
        return {name: self.count(name) for name in self.maps()}

    def remove(self, name: str) -> None:
        """Forget a map."""
        self._version += 1
        self._cleared.remove(name)
        self._tables.pop(name, None)
        for run in self._runs.values():
            run.sections.pop(name, None)
        self._runs = {number: run for number, run in self._runs.items() if run.sections}
        self._merge([run for run in self._runs.values() if run.sparse])

    def forget(self) -> None:
        """Forget everything. Listings under way continue with what is added from now on."""
        self.clear()
        self._cleared.forget()
        self._runs = {}

    def clear(self) -> None:
        """Forget the rows in memory."""
        self._version += 1
        self._tables.clear()
        self._grown, self._room, self.full = 0, self._memory_bytes, False

    def close(self) -> None:
        """Let go of memory and of the scratch files. Safe to call twice."""
        self.forget()

    # ---- in memory ----

    def _pages_of_memory(self, name: str, rows_max: int, ordered: bool, partitions: Partitions | None = None) -> Iterator[tuple[Table, list[_Owned]]]:
        """The rows of a map that was all in memory when this began, or of some partitions, with the
        table that says whose they are. Rows that were moved to scratch since are found there; each names its node."""
        table = self._tables.get(name)
        if table is None:
            return
        keys = list(table.rows) if partitions is None else table.keys_in(partitions)
        if ordered:
            keys.sort()
        for start in range(0, len(keys), rows_max):
            some = keys[start : start + rows_max]
            if self._runs:
                for rows, nodes in self._pages_of(name, self._find(name, some), rows_max, dict(self._runs)):
                    yield table, [(*row, node) for row, node in zip(rows, nodes, strict=True)]
                continue
            now = self._tables.get(name)
            if now is not None:
                self._meet(name, now, some)
                yield now, [row for row in self._winners(name, now, some) if row is not None]

    def _rows_of(self, name: str, table: Table, keys: Sequence[bytes]) -> Iterator[Row | None]:
        self._meet(name, table, keys)
        for row in self._winners(name, table, keys):
            yield None if row is None else cast(Row, row[:_OWN_FIELDS])

    def _winners(self, name: str, table: Table, keys: Sequence[bytes]) -> list[_Owned | None]:
        """The newest row of each key that was not cleared."""
        found = list(map(table.rows.get, keys))
        if name in self._cleared:
            there = [(index, row) for index, row in enumerate(found) if row is not None]
            for each in self._cleared.hidden(name, [row[1] for _, row in there], [row[9] for _, row in there]):
                index, row = there[each]
                found[index] = next(iter(self._contenders_of(name, table, row[1])), None)
        return found

    def _contenders_of(self, name: str, table: Table, key: bytes) -> list[_Owned]:
        """Those that were not cleared, the winner first."""
        found = table.of(key)
        hidden = self._cleared.hidden(name, [key] * len(found), [row[9] for row in found])
        return [row for index, row in enumerate(found) if index not in hidden]

    def _meet(self, name: str, table: Table, keys: Sequence[bytes]) -> None:
        if table.rivals:
            found = [self._contenders_of(name, table, key) for key in keys if key in table.rivals]
            self._met += [partial(conflict, name, rows[0][1], list(map(table.claim, rows))) for rows in found if rows]

    @staticmethod
    def _split(table: Table, page: list[_Owned]) -> tuple[list[Row], list[str]]:
        """Rows, and the node of each."""
        own, node = _OWN_FIELDS, table.node
        return [cast(Row, row[:own]) for row in page], [row[own] if len(row) > own else node for row in page]

    def _tighten(self) -> None:
        """Drop what was cleared, and count exactly. When little room is left, make equal strings
        one; when that is not enough, give all to scratch."""
        self._purge()
        tables = list(self._tables.values())
        rivals = [row for table in tables for rows in table.rivals.values() for row in rows]
        held = chain(rivals, *(table.rows.values() for table in tables))
        payload = sum(len(row[1]) + len(row[3] or b"") for row in held)
        count = len(rivals) + sum(len(table.rows) for table in tables)
        used, least = payload + ROW_BYTES * count, payload + SHARED_ROW_BYTES * count
        if self._runs:
            least = used  # it will not fit, so nothing is gained by what comes next
        elif used > self._memory_bytes // 2 and (least <= self._memory_bytes * 3 // 4 or not self._spill):
            for table in tables:
                self._share_strings(table)
            used = least
        if least > self._memory_bytes * 3 // 4:
            if self._spill:
                self._flush()
                used = 0
            else:
                self.full = True
        self._grown, self._room = 0, self._memory_bytes - used

    def _purge(self) -> None:
        """Drop the keys that were cleared. A listing would not find them."""
        for name, table in self._tables.items():
            keys = list(table.rows) if name in self._cleared else []
            hidden = self._cleared.hidden(name, keys, [table.rows[key][9] for key in keys])
            gone = [keys[index] for index in hidden if not self._contenders_of(name, table, keys[index])]
            if gone:
                table.remove(gone)

    @staticmethod
    def _share_strings(table: Table) -> None:
        intern, rows = sys.intern, table.rows
        for key, row in rows.items():
            rows[key] = (intern(row[0]), row[1], intern(row[2]), row[3], intern(row[4]), *row[5:])
        for rivals in table.rivals.values():
            rivals[:] = [(intern(row[0]), row[1], intern(row[2]), row[3], intern(row[4]), *row[5:]) for row in rivals]

    # ---- on scratch ----

    def _flush(self) -> None:
        """Everything in memory becomes a run."""
        entries = sum(len(table.rows) + sum(map(len, table.rivals.values())) for table in self._tables.values())
        with self._needing_room():
            writer = self._writer(entries)
            for name, table in sorted(self._tables.items()):
                writer.write(name, self._chunks(table))
            run = writer.finish()
        self._runs[run.number] = run
        self.overflowed = True
        self.clear()
        self._settle(RUNS_MAX)

    def _chunks(self, table: Table) -> Iterator[Chunk]:
        """What a table has, sorted, as a run takes it. Columns: no Python a row."""
        own, node = _OWN_FIELDS, table.node
        for rows in self._sorted(table, None):
            _, keys, key_classes, values, value_classes, deleted, timestamps, expires, partitions, orders, *_ = zip(*rows, strict=False)
            nodes = repeat(node) if table.alone else [row[own] if len(row) > own else node for row in rows]
            labels = list(map(self._labels.__getitem__, zip(key_classes, value_classes, nodes, strict=False)))
            lengths = list(map(len, values)) if None not in values else [-1 if value is None else len(value) for value in values]
            yield (keys, orders, labels, deleted, timestamps, expires, partitions), lengths, values

    @staticmethod
    def _sorted(table: Table, after: bytes | None) -> Iterator[list[_Owned]]:
        keys = sorted(table.rows if after is None else (key for key in table.rows if key > after))
        for start in range(0, len(keys), _WINDOW_ROWS):
            some = keys[start : start + _WINDOW_ROWS]
            yield [row for key in some for row in table.of(key)] if table.rivals else [table.rows[key] for key in some]

    def _settle(self, runs_max: int) -> None:
        """Where there are more runs than that: merge the smallest ones, each that is not much
        larger than those before it together. So an entry is written again about as often as the
        index doubles, and less often while many runs may wait."""
        if len(self._runs) <= runs_max:
            return
        smallest = sorted(self._runs.values(), key=lambda run: run.size)
        size, count = smallest[0].size, 1
        while count < len(smallest) and smallest[count].size <= 2 * size:
            size += smallest[count].size
            count += 1
        if count > 1 or len(smallest) > RUNS_MAX:
            self._merge(smallest[: max(count, 2)])

    def _merge(self, merging: Sequence[Run]) -> None:
        """Several runs become one."""
        if not merging:
            return
        by_number = {run.number: run for run in merging}
        with self._needing_room():
            writer = self._writer(sum(section.entries for run in merging for section in run.sections.values()))
            for name in sorted(set().union(*(run.sections for run in merging))):
                values = Values(by_number, self._window_bytes)
                sources = [run.windows(name, None, self._window_bytes) for run in merging]
                contenders = self._contenders(name, sources)
                columns = ((list(zip(*entries, strict=True)), entries) for entries in contenders)
                writer.write(name, ((some[: runs.RUN], some[runs.LENGTH], values.each(entries)) for some, entries in columns))
            run = writer.finish()
        self._runs = {number: each for number, each in self._runs.items() if number not in by_number}
        self._runs[run.number] = run
        self._version += 1

    def _contenders(self, name: str, sources: Sequence[Iterator[list[Entry]]]) -> Iterator[list[Entry]]:
        """All contenders of each key, the winner first."""
        for entries in runs.merged(sources):
            winners, rivals = self._newest(name, entries)
            if rivals:
                winners = [each for entry in winners for each in (entry, *rivals.get(entry[KEY], ()))]
            if winners:
                yield winners

    def _newest(self, name: str, entries: list[Entry]) -> tuple[list[Entry], dict[bytes, list[Entry]]]:
        """`runs.newest` of what was not cleared."""
        if name in self._cleared:
            hidden = self._cleared.hidden(name, [entry[KEY] for entry in entries], [entry[runs.ORDER] for entry in entries])
            entries = [entry for index, entry in enumerate(entries) if index not in hidden]
        return runs.newest(entries, self._labels.words)

    def _writer(self, entries: int) -> RunWriter:
        self._next_run += 1
        return RunWriter(self._next_run, self._scratch, entries, self._memory_bytes // 8)

    def _sources(self, name: str, after: bytes | None) -> list[Iterator[list[Entry]]]:
        """Everything there is of a map, above a key."""
        found = [run.windows(name, after, self._window_bytes) for run in self._runs.values() if name in run.sections]
        table = self._tables.get(name)
        if table is not None and table.rows:
            found.append(self._memory_windows(table, after))
        return found

    def _memory_windows(self, table: Table, after: bytes | None) -> Iterator[list[Entry]]:
        for rows in self._sorted(table, after):
            yield [self._entry(table, row) for row in rows]

    def _entry(self, table: Table, row: _Owned) -> Entry:
        length = -1 if row[3] is None else len(row[3])
        return (row[1], row[9], self._labels[row[2], row[4], table.owner(row)], row[5], row[6], row[7], row[8], IN_MEMORY, row, length)

    def _find(self, name: str, keys: Iterable[bytes]) -> list[Entry]:
        """The newest entries of those keys, in order of keys."""
        with suppress(StorageUnavailable):  # a disk that is full makes lookups slower, no more
            self._settle(1)
        wanted = sorted(set(keys))
        found = [entry for run in self._runs.values() for entry in run.find(name, wanted)]
        table = self._tables.get(name)
        if table is not None and table.rows:
            found += [self._entry(table, row) for key in wanted if key in table.rows for row in table.of(key)]
        found.sort(key=runs.key_of)
        winners, rivals = self._newest(name, found)
        self._meet_stored(name, winners, rivals, dict(self._runs))
        return winners

    def _meet_stored(self, name: str, winners: Iterable[Entry], rivals: dict[bytes, list[Entry]], here: dict[int, Run]) -> None:
        """`rivals` loses those of these winners."""
        for entry in winners if rivals else ():
            if entry[KEY] in rivals:
                self._met.append(partial(self._stored_conflict, name, [entry, *rivals.pop(entry[KEY])], here))

    def _stored_conflict(self, name: str, contenders: list[Entry], here: dict[int, Run]) -> Conflict | None:
        rows, nodes = self._loaded(name, contenders, Values(here, 0))
        return conflict(name, rows[0][1], list(zip(rows, nodes, strict=True)))

    def _stored_pages(
        self, name: str, rows_max: int, sizes: Callable[[Sequence[Entry]], list[int]] = runs.sizes
    ) -> Iterator[tuple[list[Entry], dict[int, Run]]]:
        """Pages of the newest entries of a map, and the runs that have their values. By key, not by
        place: whatever happens to the index between two pages, the next one begins after the last
        key."""
        after: bytes | None = None
        while True:
            version, here = self._version, dict(self._runs)
            held: list[Entry] = []
            rivals: dict[bytes, list[Entry]] = {}
            size = 0

            def weighed(entries: list[Entry], rivals: dict[bytes, list[Entry]] = rivals) -> list[int]:
                if not rivals:
                    return sizes(entries)
                found = zip(sizes(entries), (rivals.get(entry[KEY], []) for entry in entries), strict=True)
                return [own + sum(sizes(others)) for own, others in found]

            for entries in self._ended(runs.merged(self._sources(name, after))):
                winners, others = self._newest(name, entries)
                rivals.update(others)
                held += winners
                size += sum(weighed(winners))
                if winners and len(held) < rows_max and size < self.page_bytes:
                    continue
                for start in range(0, len(held), rows_max):
                    some = held[start : start + rows_max]
                    for page in in_pages(some, weighed(some), self.page_bytes):
                        self._meet_stored(name, page, rivals, here)
                        yield page, here
                        after = page[-1][KEY]
                        if self._version != version:
                            break
                    if self._version != version:
                        break
                held, size = [], 0
                if self._version != version:
                    break
            else:
                return

    @staticmethod
    def _ended(lists: Iterator[list[Entry]]) -> Iterator[list[Entry]]:
        """An empty list marks the end."""
        yield from lists
        yield []

    def _stored_rows(self, name: str, rows_max: int) -> Iterator[tuple[list[Row], list[str]]]:
        values = Values({}, 0)
        for entries, here in self._stored_pages(name, rows_max):
            if values.runs is not here:
                values = Values(here, self._window_bytes)
            yield self._loaded(name, entries, values)

    def _pages_of(self, name: str, entries: list[Entry], rows_max: int, here: dict[int, Run]) -> Iterator[tuple[list[Row], list[str]]]:
        values = Values(here, self._window_bytes)
        for start in range(0, len(entries), rows_max):
            some = entries[start : start + rows_max]
            for page in in_pages(some, runs.sizes(some), self.page_bytes):
                yield self._loaded(name, page, values)

    def _loaded(self, name: str, entries: Sequence[Entry], values: Values) -> tuple[list[Row], list[str]]:
        if not entries:
            return [], []
        keys, orders, labels, deleted, timestamps, expires, partitions, *_ = zip(*entries, strict=True)
        key_classes, value_classes, nodes = zip(*map(self._labels.words.__getitem__, labels), strict=True)
        columns = (keys, key_classes, values.each(entries), value_classes, deleted, timestamps, expires, partitions, orders)
        return list(zip(repeat(name), *columns, strict=False)), list(nodes)

    @contextmanager
    def _needing_room(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            room = self._scratch or tempfile.gettempdir()
            raise StorageUnavailable(f"a merge that is larger than memory needs room in {room}: {error}; the log was not changed") from error


def in_pages(found: list[T], sizes: Sequence[int], bytes_max: int) -> Iterator[list[T]]:
    """What was found, cut where `sizes` add up to more than `bytes_max`; no page is empty."""
    if sum(sizes) <= bytes_max:
        if found:
            yield found
        return
    start = size = 0
    for index, each in enumerate(sizes):
        if size + each > bytes_max and index > start:
            yield found[start:index]
            start, size = index, 0
        size += each
    yield found[start:]
