"""The archives of a node's log, as its manifest has them: the newest ones in the manifest, and the
others in list files (docs/decisions/list-files.md)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from imap_wal.format import Position
from imap_wal.manifest import list_files
from imap_wal.manifest.document import checked, fields_of, without_defaults
from imap_wal.manifest.list_files import Listed, ListFile, ListFiles, ends_of_lists

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
            for file in [file for file in lists if file.items < list_files.LIST_MIN]:
                lists.remove(file)
                direct += self.read(file)
            direct.sort(key=lambda archive: (archive.last, archive.path))
            for start, end in pairwise(ends_of_lists(len(direct))):
                lists.append(self.write(number, tuple(direct[start:end])))
            direct = []
        return Listed(direct, tuple(lists), self.read)
