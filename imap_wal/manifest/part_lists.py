"""List files with the files of snapshots, for the cluster's manifests and for those of readers.

A list has files of one snapshot that follow each other in key order. A rewrite keeps most of them,
so lists without a changed file are named again, and the files between them are written as new
lists. Readers have lists of their own, in their own folders: what a base needs is not deleted by
publications of the cluster's manifest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, TypeAlias

from imap_wal.errors import LogError
from imap_wal.manifest import list_files
from imap_wal.manifest.document import checked
from imap_wal.manifest.list_files import ListFiles, ends_of_lists
from imap_wal.manifest.parts import COLUMNS, ListedParts, PartList, Parts
from imap_wal.manifest.snapshots import Snapshot

PARTS_MAX = 64
"""At most this many files of a snapshot are in the manifest itself."""

_Run: TypeAlias = tuple[int, int, PartList]
"""The files from one index up to another are those of a list."""


class PartLists(ListFiles[PartList, Parts]):
    """The list files of a cluster's, or of a reader's folder."""

    skips_damaged: ClassVar[bool] = False
    """Whether new lists are written although a former one is damaged."""

    field = "parts"

    def _document(self, value: Parts) -> Any:
        return {name: getattr(value, name) for name in COLUMNS if getattr(value, name)}

    def _from_document(self, document: Any, file: PartList) -> Parts:
        parts = checked(document, Parts)
        if len(parts.files) != file.parts or not parts.whole:
            raise ValueError(f"it does not have {file.parts} files, each with the same fields")
        return parts

    def _entry(self, name: str, size: int, checksum: int, value: Parts) -> PartList:
        return PartList(name, len(value.files), size, checksum)

    def _lost(self, file: PartList) -> str:
        return "the names of these snapshot files"

    def settled(self, number: int, wanted: Snapshot, former: Iterable[ListedParts]) -> Snapshot:
        """What manifest `number` says for a snapshot: few files, or lists of its predecessor
        (`former`) and new ones. Writes the new ones. Raises StorageError, and the errors of
        `read`."""
        former = tuple(former)
        listed = wanted.listed
        if listed is not None and len(listed) > PARTS_MAX:
            known = {each for one in former for each in one.lists}
            if known.issuperset(listed.lists):
                return wanted
        parts = wanted.parts
        if len(parts.files) <= PARTS_MAX or not parts.whole:
            return wanted.with_parts(parts)
        lists = tuple(self._lists(number, parts, former))
        return wanted.with_lists(ListedParts(lists, self.read))

    def _lists(
        self, number: int, parts: Parts, former: Sequence[ListedParts]
    ) -> Iterator[PartList]:
        count = len(parts.files)
        known: dict[PartList, Parts] = {}
        for each in (each for one in former for each in one.lists):
            try:
                known[each] = self.read(each)
            except LogError:
                if not self.skips_damaged:
                    raise
        runs = _unchanged(parts, known)
        place = 0
        for start, end, file in [*_spaced(runs, count), (count, count, None)]:
            if place < start:
                for first, last in pairwise(ends_of_lists(start - place)):
                    yield self.write(number, parts.slice(place + first, place + last))
            if file is not None:
                yield file
            place = end


def _unchanged(parts: Parts, known: Mapping[PartList, Parts]) -> list[_Run]:
    """The lists whose files are still there, one after the other, in order."""
    places = {path: place for place, path in enumerate(parts.files)}
    found: list[_Run] = []
    for file, content in known.items():
        start = places.get(content.files[0], len(parts.files))
        if parts.slice(start, start + file.parts) == content:
            found.append((start, start + file.parts, file))
    runs: list[_Run] = []
    for run in sorted(found, key=lambda each: each[:2]):
        if not runs or runs[-1][1] <= run[0]:
            runs.append(run)
    return runs


def _spaced(runs: Sequence[_Run], count: int) -> list[_Run]:
    """Without the lists that are written again: a list that is too small, and one beside too few
    changed files."""
    least = list_files.LIST_MIN
    if len(runs) == 1 and runs[0][:2] == (0, count):
        return list(runs)
    kept = [run for run in runs if run[1] - run[0] >= least or count < least]
    while True:
        ends = [0, *(end for _, end, _ in kept)]
        starts = [*(start for start, _, _ in kept), count]
        small = next((at for at in range(len(ends)) if 0 < starts[at] - ends[at] < least), None)
        if small is None or not kept:
            return kept
        beside = [at for at in (small - 1, small) if 0 <= at < len(kept)]
        del kept[min(beside, key=lambda at: kept[at][1] - kept[at][0])]


def lists_json(snapshots: Mapping[str, Snapshot]) -> dict[str, Any]:
    """The lists of each map that has some, as JSON."""
    return {name: [each.to_json() for each in lists] for name, lists in lists_of(snapshots).items()}


def lists_of(snapshots: Mapping[str, Snapshot]) -> Mapping[str, tuple[PartList, ...]]:
    """Map → its lists, for each map that has some."""
    known = getattr(snapshots, "lists", None)
    if known is not None:
        found: Mapping[str, tuple[PartList, ...]] = known
        return found
    return {
        name: snapshot.listed.lists
        for name, snapshot in snapshots.items()
        if snapshot.listed is not None
    }


def names_of(lists: Mapping[str, Iterable[PartList]]) -> set[str]:
    """The names of the lists of all maps."""
    return {each.name for of_map in lists.values() for each in of_map}


def lists_from_json(data: Any) -> dict[str, tuple[PartList, ...]]:
    """The inverse of `lists_json`. Raises ValueError."""
    return checked(data, dict[str, tuple[PartList, ...]])
