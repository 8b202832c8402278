"""The archives of a node's log, as its manifest has them: the newest ones in the manifest, and the
others in list files (docs/decisions/list-files.md)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Annotated, Any, TypeAlias, overload

from msgspec import Meta

from imap_wal.errors import LogError
from imap_wal.format import Position
from imap_wal.manifest.document import Whole, checked, fields_of, without_defaults


@dataclass(frozen=True, slots=True)
class Archive:
    """One Parquet file from sealed segments: the entries of one map from position `first` to
    `last`."""

    map: str
    path: str
    first: Position
    last: Position
    records: int
    tombstones: int
    bytes: int
    checksum: int = 0
    """CRC-32C of the whole file; 0: unknown."""
    unpacked: int = 0
    """How many bytes its rows take in memory; 0: unknown, because a repair found the file."""

    def to_json(self) -> dict[str, Any]:
        return without_defaults(fields_of(self), ("unpacked",))


@dataclass(frozen=True, slots=True)
class ListFile:
    """What a manifest says about a list file."""

    name: Annotated[str, Meta(pattern=r"\A[0-9]{10}-[0-9a-f]{1,64}\Z")]
    """The number of the manifest that named it first, and a nonce."""
    archives: Annotated[int, Meta(ge=1)]
    """How many it has."""
    bytes: Whole
    checksum: Whole
    """CRC-32C of the whole file."""
    lowest: Position
    highest: Position
    """The lowest and the highest `last` of its archives."""

    @property
    def items(self) -> int:
        return self.archives


Read: TypeAlias = Callable[[ListFile], tuple[Archive, ...]]


def _unread(file: ListFile) -> tuple[Archive, ...]:
    raise AssertionError(f"list {file.name} belongs to no log")


@dataclass(frozen=True, slots=True, eq=False)
class ListedArchives(Sequence[Archive]):
    """Archives in list files, and the newest ones. Lists are read when their archives are needed:
    then each use can raise `CorruptLog` and `ShortLog` for a list, and `NotFound` if a newer
    manifest names other lists. The archives are in no particular order."""

    lists: tuple[ListFile, ...] = ()
    newest: tuple[Archive, ...] = ()
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Name of a list that former manifests have → number of the first manifest without it."""
    read: Read = _unread

    def __len__(self) -> int:
        return sum(each.archives for each in self.lists) + len(self.newest)

    def __iter__(self) -> Iterator[Archive]:
        return chain(chain.from_iterable(map(self.read, self.lists)), self.newest)

    @overload
    def __getitem__(self, index: int) -> Archive: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Archive, ...]: ...
    def __getitem__(self, index: int | slice) -> Archive | tuple[Archive, ...]:
        return tuple(self)[index]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ListedArchives):  # without reading lists, for the update of a manifest
            return (self.lists, self.newest) == (other.lists, other.newest)
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return _in_manifest, (tuple(self),)  # another process may not have the storage

    def to_json(self) -> dict[str, Any]:
        """The fields of a manifest that has this."""
        document = {
            "archives": [archive.to_json() for archive in self.newest],
            "lists": [fields_of(each) for each in self.lists],
            "dropped": dict(self.dropped),
        }
        return without_defaults(document, ("lists", "dropped"))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ListedArchives:
        """The inverse of `to_json`; `read` is set by the log that reads the manifest."""
        found = cls(
            checked(data.get("lists", ()), tuple[ListFile, ...]),
            checked(data["archives"], tuple[Archive, ...]),
            checked(data.get("dropped", {}), dict[str, Whole]),
        )
        if len(found.named) != len(found.lists):
            raise ValueError("a list is named twice")
        return found

    @property
    def named(self) -> set[str]:
        """The names of the lists."""
        return {each.name for each in self.lists}

    def with_changes(self, added: Iterable[Archive], gone: Collection[Archive]) -> ListedArchives:
        """With more archives, and without those of the paths in `gone`. The other archives of a
        list that has one of these become `newest`; the publication makes lists of them again."""
        paths = {archive.path for archive in gone}
        lists, newest = [], []
        for each in self.lists:
            touched = any(each.lowest <= archive.last <= each.highest for archive in gone)
            archives = self.read(each) if touched else ()
            left = [archive for archive in archives if archive.path not in paths]
            if len(left) == len(archives):
                lists.append(each)
            else:
                newest += left
        newest += [archive for archive in self.newest if archive.path not in paths]
        return ListedArchives(tuple(lists), (*newest, *added), self.dropped, self.read)

    def ending_by(self, upto: Position) -> Iterator[Archive]:
        """The archives whose `last` is at or below a position."""
        for each in self.lists:
            if each.lowest <= upto:
                yield from (archive for archive in self.read(each) if archive.last <= upto)
        yield from (archive for archive in self.newest if archive.last <= upto)

    def readable(self, damaged: list[tuple[ListFile, LogError]]) -> tuple[Archive, ...]:
        """The archives of all lists that can be read. The others are added to `damaged`."""
        found: list[Archive] = []
        for each in self.lists:
            try:
                found += self.read(each)
            except LogError as error:
                damaged.append((each, error))
        return (*found, *self.newest)


def _in_manifest(archives: tuple[Archive, ...]) -> ListedArchives:
    return ListedArchives(newest=archives)
