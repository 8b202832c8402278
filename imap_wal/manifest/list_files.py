"""List files: immutable lists that the manifests of one folder name. Those of a node's log have
archives (docs/decisions/list-files.md), those of a cluster and of its readers have
files of snapshots (`imap_wal.manifest.part_lists`).

    write lists {number}-{nonce} ─▶ publish manifest {number} ─▶ delete what no manifest names

Only manifest {number} may be the first to name such a list. So after a manifest is published, lists
up to its number that it does not name are never named again.
"""

from __future__ import annotations

import json
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import google_crc32c

from imap_wal import layout
from imap_wal.clock import Randomness
from imap_wal.disposal import discard
from imap_wal.errors import CorruptLog, ShortLog, UnsupportedVersion
from imap_wal.format import Position
from imap_wal.manifest.archives import Archive, ListedArchives, ListFile
from imap_wal.manifest.document import (
    MANIFEST_ADVICE,
    OTHER_FORMAT_ADVICE,
    checked,
    packed,
    unpacked,
    whole,
)
from imap_wal.version import VERSION
from storage_backends import NotFound, SegmentStore, StorageError

FORMAT = 1
"""The format of a list file."""
NEWEST_MAX = 256
"""At most this many archives are in the manifest itself."""
LIST_MIN = 1000
"""A list with fewer items is merged with others; at most one of a node or a map has fewer."""
KNOWN_MAX = 200_000
"""At most this many items of lists are kept in memory, or those of one list."""


class Named(Protocol):
    """What a manifest says about a list file."""

    @property
    def name(self) -> str: ...
    @property
    def bytes(self) -> int: ...
    @property
    def checksum(self) -> int: ...
    @property
    def items(self) -> int:
        """How many it has."""


F = TypeVar("F", bound=Named)
V = TypeVar("V")


class ListFiles(ABC, Generic[F, V]):
    """The list files of one folder; `F`: what manifests say about one, `V`: what it has.
    Thread-safe. `names`: the lists that the newest manifest names now; it is called when a list is
    missing."""

    field: ClassVar[str]
    """The name of its items in the document, and in errors."""

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
        self._known: OrderedDict[F, V] = OrderedDict()
        self._guard = threading.Lock()

    @abstractmethod
    def _document(self, value: V) -> Any:
        """The JSON of what a list has."""

    @abstractmethod
    def _from_document(self, document: Any, file: F) -> V:
        """The inverse. Raises ValueError if it does not fit what the manifest says."""

    @abstractmethod
    def _entry(self, name: str, size: int, checksum: int, value: V) -> F:
        """What a manifest says about a new list."""

    @abstractmethod
    def _lost(self, file: F) -> str:
        """What is missing with a list, for the error."""

    def read(self, file: F) -> V:
        """What a list has. Raises `CorruptLog` if it is damaged, `ShortLog` if it is missing and
        the newest manifest names it, and `NotFound` if that names other lists."""
        with self._guard:
            found = self._known.get(file)
            if found is not None:
                self._known.move_to_end(file)
                return found
        found = self.read_again(file)
        self._keep(file, found)
        return found

    def read_again(self, file: F) -> V:
        """The same from the storage, even if the list is in memory."""
        path = layout.list_path(self._folder, file.name)
        try:
            # One byte more shows that the file is larger, however large it is.
            text = self._store.read(path, length=file.bytes + 1)
        except NotFound:
            if file.name not in self._names():
                raise
            what = f"this list of {file.items} {self.field} is missing, and with it "
            raise ShortLog(path, 0, what + self._lost(file), MANIFEST_ADVICE) from None
        if (len(text), google_crc32c.value(text)) != (file.bytes, file.checksum):
            what = (
                f"this list of {file.items} {self.field} does not match the size "
                f"({file.bytes} bytes) and the checksum in the manifest"
            )
            raise CorruptLog(path, 0, what, MANIFEST_ADVICE)
        with whole(path):
            document = json.loads(text)
            if document["format"] != FORMAT:
                what = f"list format {document['format']}; imap-wal {VERSION} reads {FORMAT}"
                raise UnsupportedVersion(path, 0, what, OTHER_FORMAT_ADVICE)
            return self._from_document(unpacked(document[self.field]), file)

    def sweep(self, number: int, kept: Collection[str]) -> None:
        """Delete lists that no manifest names any more. `number`: of a manifest that the caller has
        just published. `kept`: the lists that it names, and those of former manifests. Failures
        are left to the next sweep."""
        with suppress(StorageError):
            files = self._store.list(layout.lists_folder(self._folder))
            discard(
                self._store,
                [
                    file.path
                    for file in files
                    if 0 < layout.list_number(file.path) <= number
                    and layout.list_name_of(file.path) not in kept
                ],
            )

    def write(self, number: int, value: V) -> F:
        """Write a list that manifest `number` will name."""
        name = layout.list_name(number, self._randomness.token().hex())
        path = layout.list_path(self._folder, name)
        document = {"format": FORMAT, self.field: packed(self._document(value))}
        text = json.dumps(document).encode()
        try:
            self._store.create(path, text)
        except StorageError:
            # It may be there: the response was lost, or the request was sent twice. The nonce is
            # ours alone.
            with suppress(StorageError):
                if self._store.read(path) == text:
                    return self._entered(name, text, value)
            raise
        return self._entered(name, text, value)

    def _entered(self, name: str, text: bytes, value: V) -> F:
        file = self._entry(name, len(text), google_crc32c.value(text), value)
        self._keep(file, value)
        return file

    def _keep(self, file: F, value: V) -> None:
        with self._guard:
            self._known[file] = value
            while len(self._known) > 1 and sum(each.items for each in self._known) > KNOWN_MAX:
                self._known.popitem(last=False)


def dropped_names(
    former: Mapping[str, int], known: Iterable[str], named: Collection[str], number: int, floor: int
) -> dict[str, int]:
    """The lists that only manifests before `number` name, each with the number of the first one
    without it. `former`: those of the manifest before. `known`: the lists that it names. `named`:
    those of manifest `number`. `floor`: the lowest number of a manifest that is kept."""
    gone = dict.fromkeys((name for name in known if name not in named), number)
    return {name: at for name, at in {**former, **gone}.items() if at > floor}


def ends_of_lists(count: int) -> list[int]:
    """Where lists end, and the first begins, that have `count` items: each has at least `LIST_MIN`
    of them, and fewer than twice as many, unless `count` is lower."""
    lists = max(1, count // LIST_MIN)
    return [count * index // lists for index in range(lists + 1)]


class ArchiveLists(ListFiles[ListFile, tuple[Archive, ...]]):
    """The list files of one node's log."""

    field = "archives"

    def _document(self, value: tuple[Archive, ...]) -> Any:
        return [archive.to_json() for archive in value]

    def _from_document(self, document: Any, file: ListFile) -> tuple[Archive, ...]:
        archives = checked(document, tuple[Archive, ...])
        if len(archives) != file.archives:
            raise ValueError(f"it has {len(archives)} archives, not {file.archives}")
        if _ends(archives) != (file.lowest, file.highest):
            raise ValueError("its archives end at other positions than the manifest says")
        return archives

    def _entry(self, name: str, size: int, checksum: int, value: tuple[Archive, ...]) -> ListFile:
        return ListFile(name, len(value), size, checksum, *_ends(value))

    def _lost(self, file: ListFile) -> str:
        return (
            f"the names of the archives whose last entries are from {file.lowest} to {file.highest}"
        )

    def settled(
        self, number: int, wanted: ListedArchives, former: ListedArchives, floor: int
    ) -> ListedArchives:
        """What manifest `number` names: lists of its predecessor `former`, new ones, and few
        archives. Writes the new ones. `floor`: the lowest number of a manifest that is kept. Raises
        StorageError, and the errors of `read`."""
        known = {each.name for each in former.lists}
        lists = [each for each in wanted.lists if each.name in known]
        foreign = [each for each in wanted.lists if each.name not in known]
        newest = [archive for each in foreign for archive in wanted.read(each)]
        newest += wanted.newest
        if len(newest) > NEWEST_MAX:
            for each in [each for each in lists if each.archives < LIST_MIN]:
                lists.remove(each)
                newest += self.read(each)
            lists += self._written(number, newest)
            newest = []
        names = {each.name for each in lists}
        dropped = dropped_names(former.dropped, known, names, number, floor)
        return ListedArchives(tuple(lists), tuple(newest), dropped, self.read)

    def _written(self, number: int, archives: Sequence[Archive]) -> list[ListFile]:
        ordered = sorted(archives, key=lambda archive: (archive.last, archive.path))
        return [
            self.write(number, tuple(ordered[start:end]))
            for start, end in pairwise(ends_of_lists(len(ordered)))
        ]


def _ends(archives: Sequence[Archive]) -> tuple[Position, Position]:
    lasts = [archive.last for archive in archives]
    return min(lasts), max(lasts)
