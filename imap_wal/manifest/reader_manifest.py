"""The manifests of one reader (`imap_wal.manifest.readers`): what they say, and the lists of files
that they name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from imap_wal.context import Context
from imap_wal.format import END, START, Position
from imap_wal.manifest.cluster import ClusterManifest
from imap_wal.manifest.list_files import ListFile, dropped_names
from imap_wal.manifest.snapshots import (
    PartitionVersions,
    Snapshot,
    SnapshotLists,
    bound,
    from_json_with_marks,
    lists_from_json,
    lists_json,
    lists_of,
    with_lists,
    with_marks_once,
)
from imap_wal.manifest.store import (
    FORMAT,
    ManifestLog,
    Whole,
    checked,
    document_of,
    fields_of,
    require,
    without_defaults,
)


@dataclass(frozen=True, slots=True)
class Base:
    """The state of maps, as files: `snapshots`, and all entries of these maps in the log above
    `positions`. A map without a snapshot has no entry at or below `positions`."""

    positions: Mapping[str, Position]
    """Node → the position above which its log is kept."""
    removed: Mapping[str, Position]
    """Node → the last position that had been removed when the base was made. More than that and
    than `positions` is only removed if nothing is kept for the reader any more."""
    snapshots: Mapping[str, Snapshot]
    versions: Mapping[int, PartitionVersions]
    """The tables that the snapshots name, see `ClusterManifest.versions`."""
    maps: tuple[str, ...] | None = None
    """The maps whose state this is; None: all. Nothing is known of others: their entries below
    `positions` may have been removed."""
    losses: Mapping[str, int] = field(default_factory=dict)
    """`ClusterManifest.losses` when it was made."""

    def to_json(self) -> dict[str, Any]:
        snapshots, marks = with_marks_once(self.snapshots)
        versions = {str(number): table.encode() for number, table in self.versions.items()}
        document = {
            **fields_of(self),
            "snapshots": snapshots,
            "marks": marks,
            "versions": versions,
            "lists": lists_json(self.snapshots),
        }
        return without_defaults(document, ("lists",))

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        versions = checked(data["versions"], dict[int, str])
        maps = data["maps"]
        snapshots = from_json_with_marks(data["snapshots"], data["marks"])
        return cls(
            checked(data["positions"], dict[str, Position]),
            checked(data["removed"], dict[str, Position]),
            with_lists(snapshots, lists_from_json(data.get("lists", {}))),
            {number: PartitionVersions.decode(text) for number, text in versions.items()},
            None if maps is None else checked(maps, tuple[str, ...]),
            checked(data["losses"], dict[str, int]),
        )

    @property
    def until_ms(self) -> int:
        """The state of each of its maps at this Unix time, and later, is known; 0: at any time."""
        return max((snapshot.until_ms for snapshot in self.snapshots.values()), default=0)

    def dropped(self, name: str) -> int:
        """`Snapshot.dropped` of a map; 0 without a snapshot."""
        return self.snapshots[name].dropped if name in self.snapshots else 0

    def has(self, maps: Collection[str] | None) -> bool:
        """Whether it is the state of these maps; None: of all."""
        return self.maps is None or (maps is not None and set(maps) <= set(self.maps))

    def is_same(self, other: Base | None) -> bool:
        """Whether it needs the same files."""
        mine = self.positions, self.snapshots
        return other is not None and mine == (other.positions, other.snapshots)


def _base(data: Any) -> Base | None:
    return None if data is None else Base.from_json(checked(data, dict[str, Any]))


@dataclass(frozen=True, slots=True)
class ReaderManifest:
    """`positions`: node → the last position that was read; a node that is not in it has not been
    read at all. `forgotten`: nothing is kept for this reader any more. `base`: what its next batch
    begins with. `proposed`: what a later one will begin with. `later`: further bases of `HISTORY`,
    oldest first."""

    format: ClassVar[int] = FORMAT
    needed: ClassVar[tuple[str, ...]] = ("positions", "updated_ms", "forgotten")
    """As of `ClaimManifest`."""

    positions: Mapping[str, Position] = field(default_factory=dict)
    updated_ms: int = 0
    forgotten: bool = False
    base: Base | None = None
    proposed: Base | None = None
    later: tuple[Base, ...] = ()
    dropped_lists: Mapping[str, Whole] = field(default_factory=dict, compare=False)
    """As of `ClusterManifest`."""
    files_only: bool = False
    """It needs the snapshots of its bases, and no log above them."""

    def to_json(self) -> dict[str, Any]:
        return document_of(
            self,
            self.needed,
            base=self.base and self.base.to_json(),
            proposed=self.proposed and self.proposed.to_json(),
            later=[base.to_json() for base in self.later],
        )

    @classmethod
    def from_json(cls, data: dict[str, Any], file: str = "") -> Self:
        """The inverse of `to_json`. Its lists can be read if they are `bound` to their log."""
        require(data, *cls.needed)
        reader = checked({**data, "base": None, "proposed": None, "later": ()}, cls)
        later = checked(data.get("later", []), list[dict[str, Any]])
        return replace(
            reader,
            base=_base(data.get("base")),
            proposed=_base(data.get("proposed")),
            later=tuple(map(Base.from_json, later)),
        )

    @property
    def bases(self) -> Iterator[Base]:
        """Those that are kept."""
        return (base for base in (self.base, self.proposed, *self.later) if base is not None)

    def with_bases(self, change: Callable[[Base], Base]) -> ReaderManifest:
        """With what `change` makes of each base."""
        return replace(
            self,
            base=None if self.base is None else change(self.base),
            proposed=None if self.proposed is None else change(self.proposed),
            later=tuple(map(change, self.later)),
        )

    @property
    def lists(self) -> set[ListFile]:
        """The lists with the files of all bases."""
        return {
            file
            for base in self.bases
            for files in lists_of(base.snapshots).values()
            for file in files
        }

    def kept_above(self, node: str) -> Position:
        """The position above which a node's log is kept for this reader."""
        if self.files_only:
            return END
        needed = [self.positions, *(base.positions for base in self.bases)]
        return min(positions.get(node, START) for positions in needed)

    def has_read(self, node: str, end: Position) -> bool:
        """Whether a node's log up to `end` has no change that this reader has not read."""
        return self.files_only or self.positions.get(node, START) >= end

    def kept_snapshots(self, manifest: ClusterManifest) -> Iterator[tuple[str, Snapshot]]:
        """Map and snapshot of each base. Those of a map that was dropped since are of no use to a
        reader of the log, and are not kept for it; a published table still names their files.
        `manifest`: the cluster's, read before this manifest."""
        for base in self.bases:
            for name, snapshot in base.snapshots.items():
                now = manifest.snapshots.get(name)
                if self.files_only or now is None or now.dropped == snapshot.dropped:
                    yield name, snapshot

    def kept_files(self, manifest: ClusterManifest) -> Iterator[tuple[str, int]]:
        """Path and size of the files of `kept_snapshots`."""
        for _, snapshot in self.kept_snapshots(manifest):
            yield from ((file.path, file.size) for file in snapshot.files)


class BaseLists(SnapshotLists):
    """The lists of a reader. A base whose list is damaged is lost, but not the next one."""

    skips_damaged = True


class ReaderManifestLog(ManifestLog[ReaderManifest]):
    """The manifests of one reader, and the lists of files that its bases name."""

    def __init__(self, context: Context, folder: str) -> None:
        store, randomness = context.store, context.randomness
        super().__init__(store, folder, ReaderManifest, ReaderManifest(), context.clock, randomness)
        self.lists = BaseLists(store, folder, randomness, self._named)

    def _named(self) -> set[str]:
        return {file.name for file in self.read()[1].lists}

    def _decode(self, number: int) -> tuple[dict[str, Any], ReaderManifest]:
        data, manifest = super()._decode(number)
        return data, manifest.with_bases(
            lambda base: replace(base, snapshots=bound(base.snapshots, self.lists.read))
        )

    def _prepared(self, number: int, floor: int, content: ReaderManifest) -> ReaderManifest:
        former = self._follows(number)
        former_lists: dict[str, list[ListFile]] = {}
        for base in former.bases:
            for name, files in lists_of(base.snapshots).items():
                former_lists.setdefault(name, []).extend(files)
        content = content.with_bases(lambda base: self._settled(number, base, former_lists))
        names = {file.name for file in former.lists}
        named = {file.name for file in content.lists}
        dropped = dropped_names(former.dropped_lists, names, named, number, floor)
        return replace(content, dropped_lists=dropped)

    def _settled(self, number: int, base: Base, former_lists: dict[str, list[ListFile]]) -> Base:
        """With lists of this reader in place of those of the cluster, or of another reader."""
        snapshots = dict(base.snapshots)
        for name in lists_of(base.snapshots):
            files = self.lists.settled(number, snapshots[name].files, former_lists.get(name, ()))
            snapshots[name] = replace(snapshots[name], files=files)
            former_lists.setdefault(name, []).extend(files.lists)  # bases share most files
        return replace(base, snapshots=snapshots)

    def _finish(self, number: int, content: ReaderManifest) -> None:
        if content.forgotten or content.lists != self._follows(number).lists:
            names = {file.name for file in content.lists}
            self.lists.sweep(number, {*names, *content.dropped_lists})
