"""List files: immutable lists of what the manifests of one folder name. Those of a node's log have
archives, those of a cluster and of its readers have files of snapshots
(decision 64 in docs/decisions/files.md).

    write lists {number}-{nonce} ─▶ publish manifest {number} ─▶ delete what no manifest names

Only manifest {number} may be the first to name such a list. So after a manifest is published, lists
up to its number that it does not name are never named again.
"""

from __future__ import annotations

import json
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Annotated, Any, ClassVar, Generic, TypeAlias, TypeVar, overload

import google_crc32c
from msgspec import Meta

from imap_wal import layout
from imap_wal.clock import Randomness
from imap_wal.disposal import discard
from imap_wal.errors import CorruptLog, LogError, ShortLog, UnsupportedVersion
from imap_wal.format import START, Position
from imap_wal.manifest.store import (
    MANIFEST_ADVICE,
    OTHER_FORMAT_ADVICE,
    Whole,
    checked,
    fields_of,
    packed,
    unpacked,
    whole,
    without_defaults,
)
from imap_wal.version import VERSION
from storage_backends import NotFound, SegmentStore, StorageError

FORMAT = 1
"""The format of a list file."""
LIST_MIN = 1000
"""A list with fewer items is merged with others; at most one of a node or a map has fewer."""
KNOWN_MAX = 200_000
"""At most this many items of lists are kept in memory, or those of one list."""


@dataclass(frozen=True, slots=True)
class ListFile:
    """What a manifest says about a list file."""

    name: Annotated[str, Meta(pattern=r"\A[0-9]{10}-[0-9a-f]{1,64}\Z")]
    """The number of the manifest that named it first, and a nonce."""
    items: Annotated[int, Meta(ge=1)]
    """How many it has."""
    bytes: Whole
    checksum: Whole
    """CRC-32C of the whole file."""
    lowest: Position = START
    highest: Position = START
    """Of archives: the lowest and the highest `last` of them."""

    def to_json(self, kind: str) -> dict[str, Any]:
        """`kind`: the name of its items, `ListFiles.field`."""
        document = {kind if name == "items" else name: it for name, it in fields_of(self).items()}
        if self.highest == START:
            del document["lowest"], document["highest"]
        return document


def parsed_lists(data: Any, kind: str) -> tuple[ListFile, ...]:
    """The inverse of `ListFile.to_json`, for several. Raises ValueError and KeyError."""
    documents = checked(data, tuple[dict[str, Any], ...])
    lists = checked(
        [{**document, "items": document[kind]} for document in documents], tuple[ListFile, ...]
    )
    if len({file.name for file in lists}) != len(lists):
        raise ValueError("a list is named twice")
    return lists


V = TypeVar("V")
Read: TypeAlias = Callable[[ListFile], tuple[V, ...]]


def _unread(file: ListFile) -> Any:
    raise AssertionError(f"list {file.name} belongs to no log")


class Listed(Sequence[V]):
    """Items in list files, and then those that the manifest itself has. Lists are read when their
    items are needed: then each use but `len` can raise `CorruptLog` and `ShortLog` for a list, and
    `NotFound` if a newer manifest names other lists. Immutable."""

    __slots__ = ("direct", "lists", "read")

    def __init__(
        self,
        direct: Iterable[V] = (),
        lists: tuple[ListFile, ...] = (),
        read: Read[V] = _unread,
    ) -> None:
        """`read`: reads one of the lists; set by the log that reads the manifest."""
        self.direct, self.lists, self.read = tuple(direct), lists, read

    def __len__(self) -> int:
        return sum(file.items for file in self.lists) + len(self.direct)

    def __iter__(self) -> Iterator[V]:
        return chain(chain.from_iterable(map(self.read, self.lists)), self.direct)

    @overload
    def __getitem__(self, index: int) -> V: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[V, ...]: ...
    def __getitem__(self, index: int | slice) -> V | tuple[V, ...]:
        return tuple(self)[index]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Listed):
            return NotImplemented
        if self.lists == other.lists:  # without reading lists, for the update of a manifest
            return bool(self.direct == other.direct)
        return len(self) == len(other) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # a hash would have to read the lists

    def __repr__(self) -> str:
        return f"Listed({self.direct!r}, {self.lists!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Listed, (tuple(self),)  # another process may not have the storage

    @property
    def names(self) -> set[str]:
        """The names of the lists."""
        return {file.name for file in self.lists}

    def bound(self, read: Read[V]) -> Listed[V]:
        """The same items; `read` reads their lists."""
        return Listed(self.direct, self.lists, read) if self.lists else self

    def readable(self, damaged: list[tuple[ListFile, LogError]]) -> tuple[V, ...]:
        """The items of all lists that can be read. The others are added to `damaged`."""
        items: list[V] = []
        for file in self.lists:
            try:
                items += self.read(file)
            except LogError as error:
                damaged.append((file, error))
        return (*items, *self.direct)


class ListFiles(ABC, Generic[V]):
    """The list files of one folder. Thread-safe. `names`: the lists that the newest manifest names
    now; it is called when a list is missing."""

    field: ClassVar[str]
    """The name of its items in documents, and in errors."""

    def __init__(
        self,
        store: SegmentStore,
        folder: str,
        randomness: Randomness,
        names: Callable[[], Collection[str]],
    ) -> None:
        self._store, self._folder, self._randomness, self._names = (
            store,
            folder,
            randomness,
            names,
        )
        self._cache: OrderedDict[ListFile, tuple[V, ...]] = OrderedDict()
        self._guard = threading.Lock()

    @abstractmethod
    def _document(self, items: Sequence[V]) -> Any:
        """The JSON of what a list has."""

    @abstractmethod
    def _items(self, document: Any) -> tuple[V, ...]:
        """The inverse. Raises ValueError."""

    def _ends(self, items: Sequence[V]) -> tuple[Position, Position]:
        """`lowest` and `highest` of a list with these items."""
        return START, START

    @abstractmethod
    def _lost(self, file: ListFile) -> str:
        """What is missing with a list, for the error."""

    def read(self, file: ListFile) -> tuple[V, ...]:
        """What a list has. Raises `CorruptLog` if it is damaged, `ShortLog` if it is missing and
        the newest manifest names it, and `NotFound` if that names other lists."""
        with self._guard:
            items = self._cache.get(file)
            if items is not None:
                self._cache.move_to_end(file)
                return items
        items = self.read_again(file)
        self._keep(file, items)
        return items

    def read_again(self, file: ListFile) -> tuple[V, ...]:
        """The same from the storage, even if the list is in memory."""
        path = layout.list_path(self._folder, file.name)
        try:
            # One byte more shows that the file is larger, however large it is.
            text = self._store.read(path, length=file.bytes + 1)
        except NotFound:
            if file.name not in self._names():
                raise
            problem = f"this list of {file.items} {self.field} is missing, and with it "
            raise ShortLog(path, 0, problem + self._lost(file), MANIFEST_ADVICE) from None
        if (len(text), google_crc32c.value(text)) != (file.bytes, file.checksum):
            problem = (
                f"this list of {file.items} {self.field} does not match the size "
                f"({file.bytes} bytes) and the checksum in the manifest"
            )
            raise CorruptLog(path, 0, problem, MANIFEST_ADVICE)
        with whole(path):
            document = json.loads(text)
            if document["format"] != FORMAT:
                problem = f"list format {document['format']}; imap-wal {VERSION} reads {FORMAT}"
                raise UnsupportedVersion(path, 0, problem, OTHER_FORMAT_ADVICE)
            items = self._items(unpacked(document[self.field]))
            if len(items) != file.items:
                raise ValueError(f"it has {len(items)} {self.field}, not {file.items}")
            if self._ends(items) != (file.lowest, file.highest):
                raise ValueError(f"its {self.field} end at other positions than the manifest says")
        return items

    def sweep(self, number: int, current: Collection[str]) -> None:
        """Delete lists that no manifest names any more. `number`: of a manifest that the caller has
        just published. `current`: the lists that it names, and those of former manifests. Failures
        are left to the next sweep."""
        with suppress(StorageError):
            files = self._store.list(layout.lists_folder(self._folder))
            discard(
                self._store,
                [
                    file.path
                    for file in files
                    if 0 < layout.list_number(file.path) <= number
                    and layout.list_name_of(file.path) not in current
                ],
            )

    def write(self, number: int, items: tuple[V, ...]) -> ListFile:
        """Write a list that manifest `number` will name."""
        name = layout.list_name(number, self._randomness.token().hex())
        path = layout.list_path(self._folder, name)
        document = {"format": FORMAT, self.field: packed(self._document(items))}
        text = json.dumps(document).encode()
        try:
            self._store.create(path, text)
        except StorageError:
            # It may be there: the response was lost, or the request was sent twice. The nonce is
            # ours alone.
            with suppress(StorageError):
                if self._store.read(path) == text:
                    return self._entered(name, text, items)
            raise
        return self._entered(name, text, items)

    def _entered(self, name: str, text: bytes, items: tuple[V, ...]) -> ListFile:
        file = ListFile(name, len(items), len(text), google_crc32c.value(text), *self._ends(items))
        self._keep(file, items)
        return file

    def _keep(self, file: ListFile, items: tuple[V, ...]) -> None:
        with self._guard:
            self._cache[file] = items
            while len(self._cache) > 1 and sum(cached.items for cached in self._cache) > KNOWN_MAX:
                self._cache.popitem(last=False)


def dropped_names(
    former: Mapping[str, int],
    former_names: Iterable[str],
    named: Collection[str],
    number: int,
    floor: int,
) -> dict[str, int]:
    """The lists that only manifests before `number` name, each with the number of the first one
    without it. `former`: those of the manifest before. `former_names`: the lists that it
    names. `named`: those of manifest `number`. `floor`: the lowest number of a manifest that is
    kept."""
    gone = dict.fromkeys((name for name in former_names if name not in named), number)
    return {name: at for name, at in {**former, **gone}.items() if at > floor}


def ends_of_lists(count: int) -> list[int]:
    """Where lists end, and the first begins, that have `count` items: each has at least `LIST_MIN`
    of them, and fewer than twice as many, unless `count` is lower."""
    lists = max(1, count // LIST_MIN)
    return [count * index // lists for index in range(lists + 1)]


# The archives of a node's log, as its manifest has them: the newest ones in the manifest, and the
# others in list files (decision 64 in docs/decisions/files.md).

NEWEST_MAX = 256
"""At most this many archives are in the manifest itself."""


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


def with_changes(
    archives: Listed[Archive], added: Iterable[Archive], gone: Collection[Archive]
) -> Listed[Archive]:
    """With more archives, and without those of the paths in `gone`. The other archives of a list
    that has one of these move into the manifest; the publication makes lists of them again."""
    paths = {archive.path for archive in gone}
    lists: list[ListFile] = []
    direct: list[Archive] = []
    for file in archives.lists:
        touched = any(file.lowest <= archive.last <= file.highest for archive in gone)
        items = archives.read(file) if touched else ()
        left = [archive for archive in items if archive.path not in paths]
        if len(left) == len(items):
            lists.append(file)
        else:
            direct += left
    direct += [archive for archive in archives.direct if archive.path not in paths]
    return Listed((*direct, *added), tuple(lists), archives.read)


def ending_by(archives: Listed[Archive], upto: Position) -> Iterator[Archive]:
    """The archives whose `last` is at or below a position."""
    for file in archives.lists:
        if file.lowest <= upto:
            yield from (archive for archive in archives.read(file) if archive.last <= upto)
    yield from (archive for archive in archives.direct if archive.last <= upto)


class ArchiveLists(ListFiles[Archive]):
    """The list files of one node's log. Their archives are in no particular order."""

    field = "archives"

    def _document(self, items: Sequence[Archive]) -> Any:
        return [archive.to_json() for archive in items]

    def _items(self, document: Any) -> tuple[Archive, ...]:
        return checked(document, tuple[Archive, ...])

    def _ends(self, items: Sequence[Archive]) -> tuple[Position, Position]:
        lasts = [archive.last for archive in items]
        return min(lasts), max(lasts)

    def _lost(self, file: ListFile) -> str:
        return (
            f"the names of the archives whose last entries are from {file.lowest} to {file.highest}"
        )

    def settled(
        self, number: int, content: Listed[Archive], former: Listed[Archive]
    ) -> Listed[Archive]:
        """What manifest `number` names: lists of its predecessor `former`, new ones, and few
        archives. Writes the new ones. Raises StorageError, and the errors of `read`."""
        lists = [file for file in content.lists if file.name in former.names]
        foreign = [file for file in content.lists if file.name not in former.names]
        direct = [archive for file in foreign for archive in content.read(file)]
        direct += content.direct
        if len(direct) > NEWEST_MAX:
            for file in [file for file in lists if file.items < LIST_MIN]:
                lists.remove(file)
                direct += self.read(file)
            direct.sort(key=lambda archive: (archive.last, archive.path))
            for start, end in pairwise(ends_of_lists(len(direct))):
                lists.append(self.write(number, tuple(direct[start:end])))
            direct = []
        return Listed(direct, tuple(lists), self.read)
