"""Sorted runs on scratch, for entries of an index that do not fit in memory.

    run      two files without a name: entries sorted by map and key, in blocks; and their values,
             in the same order
    merge    any number of sorted sources ─▶ one, by windows; values of superseded entries are not
             read

In memory a run has the first key and the place of every block, and perhaps the places of the
entries of each partition. An entry names the run that has its value, so a listing of keys reads no
values. No other process reads these files, so they need no
sync and no checksum. Nothing is left after a kill. See docs/decisions/restores.md.
"""

from __future__ import annotations

import os
import tempfile
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, repeat
from operator import add, itemgetter
from pathlib import Path
from typing import Any, TypeAlias

import msgpack

from imap_wal.read.newest.packed_keys import PackedKeys
from imap_wal.read.newest.places import Places
from imap_wal.rules.newer import Contest

Entry: TypeAlias = tuple[Any, ...]
"""(key, order, label, deleted, timestamp_ms, expires_at_ms, partition, run, offset, length). The
label is a number for key class, value class and node. The last three are the place of the value;
length -1 means None. In memory: run IN_MEMORY, the row in place of the offset."""
Chunk: TypeAlias = tuple[Sequence[Sequence[Any]], Sequence[int], Iterable[bytes | None]]
"""Some entries as columns up to the partition, the lengths of their values, and the values."""

KEY, ORDER, LABEL, DELETED, TIMESTAMP_MS, EXPIRES_AT_MS, PARTITION, RUN, OFFSET, LENGTH = range(10)
IN_MEMORY = -1

BLOCK_ENTRIES_MIN = 16
BLOCK_BYTES_MAX = 64 * 1024
"""A block ends with the entry that makes its keys larger than this."""
BLOCK_INDEX_BYTES = 80
"""Approximate memory of a block: its first key and its place."""
BUFFER_BYTES = 256 * 1024
PICKED_ENTRIES = 1024
"""A window with the entries of some partitions ends with the block that has this many."""

key_of, length_of = itemgetter(KEY), itemgetter(LENGTH)
_place_of = itemgetter(RUN, OFFSET, LENGTH)


@dataclass(frozen=True, slots=True)
class RunSection:
    """The entries of one map in a run. `first_numbers`: the number of the first entry of every
    block. `offsets` has one more item than there are blocks: the end of the last. `keys` counts
    distinct ones. `places`: of the entries of each partition; None: they are not known."""

    entries: int
    keys: int
    size: int
    first_keys: Sequence[bytes]
    first_numbers: Sequence[int]
    offsets: Sequence[int]
    places: Places | None


class _Scratch:
    """A file without a name. It is closed when nothing refers to it: a listing under way may still
    read a run that was merged."""

    def __init__(self, folder: Path | None) -> None:
        self._file: Any = None
        self._file = tempfile.TemporaryFile(
            prefix="imap-wal-index-", dir=folder, buffering=BUFFER_BYTES
        )
        self.write, self.writelines, self.flush = (
            self._file.write,
            self._file.writelines,
            self._file.flush,
        )

    def read(self, offset: int, length: int) -> bytes:
        """`length` bytes, fewer at the end."""
        return os.pread(self._file.fileno(), length, offset)

    def __del__(self) -> None:
        if self._file is not None:
            with suppress(OSError):  # unwritten data are not needed
                self._file.close()


class Run:
    """Sorted entries of some maps. A `RunWriter` creates it; its files are deleted with it.
    `partition_count`: of its places; 0: it has none."""

    def __init__(
        self,
        number: int,
        entries: _Scratch,
        values: _Scratch,
        sections: dict[str, RunSection],
        partition_count: int,
    ) -> None:
        self.number, self.sections, self.partition_count = number, sections, partition_count
        self._entries, self._values = entries, values
        self._written = self.size

    @property
    def size(self) -> int:
        """Bytes of its sections on disk."""
        return sum(section.size for section in self.sections.values())

    @property
    def places_bytes(self) -> int:
        """Memory of its places."""
        return sum(each.places.bytes for each in self.sections.values() if each.places is not None)

    @property
    def sparse(self) -> bool:
        """Whether more than half of its files belong to removed maps."""
        return self.size * 2 < self._written

    def windows(self, name: str, after: bytes | None, window_bytes: int) -> Iterator[list[Entry]]:
        """The entries of a map with keys above `after` (None: all), in order, in lists. Equal keys
        are in one list."""
        section = self.sections.get(name)
        if section is None:
            return
        offsets = section.offsets
        block = first = 0 if after is None else max(0, bisect_right(section.first_keys, after) - 1)
        while block < len(section.first_keys):
            stop = max(block + 1, bisect_right(offsets, offsets[block] + window_bytes) - 1)
            unpacker = msgpack.Unpacker(use_list=False, max_buffer_size=0)
            unpacker.feed(self._read(offsets[block], offsets[stop]))
            unpacked: list[Entry] = []
            for entries in unpacker:
                unpacked += entries
            if after is not None and block == first:
                unpacked = unpacked[bisect_right(unpacked, after, key=key_of) :]
            if unpacked:
                yield unpacked
            block = stop

    def windows_within(
        self, name: str, after: bytes | None, wanted: Iterable[int]
    ) -> Iterator[list[Entry]]:
        """`windows` of the entries in some partitions. The run must have places."""
        section = self.sections.get(name)
        if section is None or section.places is None:
            return
        first_numbers, offsets, unpack = section.first_numbers, section.offsets, msgpack.unpackb
        numbers, at = section.places.within(wanted), 0
        if after is not None:
            block = max(0, bisect_right(section.first_keys, after) - 1)
            at = bisect_left(numbers, first_numbers[block])
        picked: list[Entry] = []
        while at < len(numbers):
            block = bisect_right(first_numbers, numbers[at]) - 1
            first = first_numbers[block]
            entries = unpack(self._read(offsets[block], offsets[block + 1]), use_list=False)
            stop = bisect_left(numbers, first + len(entries), at)
            picked += [entries[number - first] for number in numbers[at:stop]]
            at = stop
            if len(picked) >= PICKED_ENTRIES or at == len(numbers):
                if after is not None:
                    picked, after = picked[bisect_right(picked, after, key=key_of) :], None
                if picked:
                    yield picked
                picked = []

    def find(self, name: str, keys: Sequence[bytes]) -> list[Entry]:
        """The entries of those keys, which must be sorted."""
        section = self.sections.get(name)
        matching: list[Entry] = []
        if section is None:
            return matching
        first_keys, offsets, unpack = section.first_keys, section.offsets, msgpack.unpackb
        loaded = -1
        entries: tuple[Entry, ...] = ()
        for key in keys:
            block = bisect_right(first_keys, key) - 1
            if block < 0:
                continue
            if block != loaded:
                loaded, entries = (
                    block,
                    unpack(self._read(offsets[block], offsets[block + 1]), use_list=False),
                )
            index = bisect_left(entries, key, key=key_of)
            while index < len(entries) and entries[index][KEY] == key:
                matching.append(entries[index])
                index += 1
        return matching

    def value(self, offset: int, length: int) -> bytes:
        """`length` bytes of the values, fewer at the end."""
        return self._values.read(offset, length)

    def _read(self, start: int, stop: int) -> bytes:
        return self._entries.read(start, stop - start)


class RunWriter:
    """Writes one run, map after map. Raises OSError if the disk is full; its files are then
    deleted."""

    def __init__(
        self,
        number: int,
        scratch: Path | None,
        entries: int,
        index_bytes: int,
        partition_count: int,
    ) -> None:
        """`entries`: the most that will be written. In memory their blocks need about
        `index_bytes`. `partition_count`: for the places of each partition; 0: none."""
        self._number, self._partition_count = number, partition_count
        self._block_entries = max(
            BLOCK_ENTRIES_MIN, entries * BLOCK_INDEX_BYTES // max(1, index_bytes)
        )
        self._entries, self._values = _Scratch(scratch), _Scratch(scratch)
        self._end = self._values_end = 0
        self._sections: dict[str, RunSection] = {}

    def write(self, name: str, chunks: Iterable[Chunk], pause: Callable[[], object] = bool) -> None:
        """All entries of a map, sorted by key, in chunks, equal keys together. Keeps no values in
        memory. `pause` is called after each chunk."""
        begin, values_begin = self._end, self._values_end
        put, pack = self._entries.write, msgpack.Packer(use_bin_type=True).pack
        first_keys = PackedKeys()
        first_numbers, offsets = array("I"), array("Q")
        places = Places(self._partition_count) if self._partition_count else None
        count = distinct = 0
        for heads, lengths, values in chunks:
            keys: Sequence[bytes] = heads[KEY]
            ends = list(accumulate(map(max, lengths, repeat(0)), initial=self._values_end))
            entries = list(zip(*heads, repeat(self._number), ends, lengths, strict=False))
            most = min(
                self._block_entries, 1 + BLOCK_BYTES_MAX * len(keys) // (1 + sum(map(len, keys)))
            )
            start = 0
            while start < len(entries):
                stop = start + most
                while stop < len(entries) and keys[stop] == keys[stop - 1]:
                    stop += 1
                first_keys.append(keys[start])
                first_numbers.append(count + start)
                offsets.append(self._end)
                self._end += put(pack(entries[start:stop]))
                start = stop
            self._values.writelines(filter(None, values))
            self._values_end = ends[-1]
            count += len(entries)
            distinct += len(set(keys))
            if places is not None:
                places.add(keys)
            pause()
        if count:
            offsets.append(self._end)
            size = self._end - begin + self._values_end - values_begin
            self._sections[name] = RunSection(
                count, distinct, size, first_keys, first_numbers, offsets, places
            )

    def finish(self) -> Run:
        """Finish writing; returns the run for reading."""
        self._entries.flush()
        self._values.flush()
        return Run(self._number, self._entries, self._values, self._sections, self._partition_count)


class Values:
    """Reads values of entries that come in order, with read-ahead (`window_bytes`; 0: none)."""

    def __init__(self, runs: Mapping[int, Run], window_bytes: int) -> None:
        self.runs, self._window_bytes = runs, window_bytes
        self._windows: dict[int, tuple[int, bytes]] = {}

    def each(self, entries: Iterable[Entry]) -> Iterator[bytes | None]:
        """The value of each entry."""
        runs, windows, window_bytes = self.runs, self._windows, self._window_bytes
        loaded, start, data = IN_MEMORY, 0, b""
        for run, offset, length in map(_place_of, entries):
            if run == IN_MEMORY:
                yield offset[3]
            elif length <= 0:
                yield None if length < 0 else b""
            elif length >= window_bytes:
                yield runs[run].value(offset, length)
            else:
                if run != loaded:
                    loaded = run
                    start, data = windows.get(run, (0, b""))
                at = offset - start
                if at < 0 or at + length > len(data):
                    start, at = offset, 0
                    data = runs[run].value(offset, window_bytes)
                    windows[run] = start, data
                yield data[at : at + length]


def merged(sources: Sequence[Iterator[list[Entry]]]) -> Iterator[list[Entry]]:
    """All entries of sorted sources, sorted by key, in lists. Equal keys are in one list, as in
    each source."""
    if len(sources) == 1:
        yield from sources[0]
        return
    windows: list[list[Any]] = []  # [entries, index of the next, source]
    for source in sources:
        first = next(source, None)
        if first is not None:
            windows.append([first, 0, source])
    while windows:
        # Below the first end of a window no entry can come from elsewhere.
        bound = min(window[0][-1][KEY] for window in windows)
        merged_entries: list[Entry] = []
        slices = 0
        for window in windows:
            entries, start, source = window
            stop = bisect_right(entries, bound, start, key=key_of)
            if stop > start:
                merged_entries += entries[start:stop]
                slices += 1
                window[1] = stop
            if stop == len(entries):
                window[0], window[1] = next(source, None), 0
        windows = [window for window in windows if window[0] is not None]
        if slices > 1:
            merged_entries.sort(key=key_of)  # Timsort only merges the sorted slices
        yield merged_entries


def newest(
    entries: list[Entry], labels: Sequence[tuple[str, str, str]]
) -> tuple[list[Entry], dict[bytes, list[Entry]]]:
    """From entries sorted by key: the newest entry of each key, and, for keys that several nodes
    claim, the other contenders (`imap_wal.rules.newer`)."""
    if len(set(map(key_of, entries))) == len(entries):
        return entries, {}

    def content(entry: Entry) -> tuple[Any, ...]:
        # The bytes of values are not compared: they would have to be read.
        value_class = labels[entry[LABEL]][1]
        return value_class, entry[DELETED], entry[EXPIRES_AT_MS], entry[LENGTH]

    contest: Contest[Entry] = Contest(
        itemgetter(ORDER), lambda entry: labels[entry[LABEL]][2], itemgetter(DELETED), content
    )
    winners: dict[bytes, Entry] = {}
    rivals: dict[bytes, list[Entry]] = {}
    for entry in entries:
        contest.offer(winners, rivals, entry[KEY], entry)
    return list(winners.values()), rivals


def sizes(entries: Sequence[Entry]) -> list[int]:
    """Approximate size of key and value of each."""
    return list(map(add, map(len, map(key_of, entries)), map(length_of, entries)))
