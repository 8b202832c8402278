"""Readers that follow a log from outside: how far each one has read, and what is kept for it. What
a reader has not read is not removed, even if a snapshot covers it.

A reader publishes its positions in numbered manifests of its own, in `readers/{name}/`. They only
grow, unless the reader begins again. So a removal that used an older position of the reader has
removed less than it could.

A reader that needs what maps had before its next batch also names a *base*: snapshots that may have
been replaced since, and the log above them. It moves from one base to a newer one in this order:

    propose    both bases are kept
    look       are the snapshots of the new base still those of the cluster's manifest?
    advance    only the new base is kept

A removal reads the cluster's manifest before the manifests of readers. If it found one in which a
snapshot was replaced, the snapshot was replaced after the look, so the removal also found the
proposal, and keeps the files.

One race is left, when a reader begins at a position that needs *former* snapshots. They were
replaced before the look, so a removal that read the readers before the proposal deletes them, or
the log above them. The same removal may raise `NodeManifest.removed` above a first base of current
snapshots. A process that uses a base first checks whether it is whole. If it is not, a newer one is
made from the current snapshots, if they cover nothing that the reader has not read. Otherwise the
reader gets an error and begins again. It never gets a wrong state.

The reader `HISTORY` is the log's own: it keeps what reads of former moments need
(`imap_wal.retention.history`). It has bases only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Self

from imap_wal import layout
from imap_wal.clock import Clock, Randomness, SystemClock, SystemRandomness
from imap_wal.errors import CorruptLog, InvalidSetting, LogError
from imap_wal.format import START, Position
from imap_wal.manifest.cluster import ClusterManifest
from imap_wal.manifest.document import Whole, checked, fields_of, require, without_defaults
from imap_wal.manifest.list_files import dropped_names
from imap_wal.manifest.part_lists import PartLists, lists_from_json, lists_json, lists_of
from imap_wal.manifest.parts import ListedParts, PartList
from imap_wal.manifest.snapshots import (
    PartitionVersions,
    Snapshot,
    bound,
    from_json_with_marks,
    with_lists,
    with_marks_once,
)
from imap_wal.manifest.store import ManifestLog
from imap_wal.names import decode, encode
from storage_backends import NotFound, SegmentStore

HISTORY = "history"
ATTEMPTS = 8


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
    """`ClusterManifest.losses` when it was made; empty too if an earlier release made it."""

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
            checked(data.get("losses", {}), dict[str, int]),
        )

    @property
    def until_ms(self) -> int:
        """The state of each of its maps at this Unix time, and later, is known; 0: at any time."""
        return max((each.until_ms for each in self.snapshots.values()), default=0)

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
    oldest first. An earlier release may remove their files; `base` is then enough."""

    positions: Mapping[str, Position] = field(default_factory=dict)
    updated_ms: int = 0
    forgotten: bool = False
    base: Base | None = None
    proposed: Base | None = None
    later: tuple[Base, ...] = ()
    dropped_lists: Mapping[str, Whole] = field(default_factory=dict, compare=False)
    """As of `ClusterManifest`."""

    def to_json(self) -> dict[str, Any]:
        document = fields_of(self)
        later = [base.to_json() for base in document.pop("later")]
        if later:
            document["later"] = later
        for name in ("base", "proposed"):
            base = document.pop(name)
            if base is not None:
                document[name] = base.to_json()
        return without_defaults(document, ("dropped_lists",))

    @classmethod
    def from_json(cls, data: dict[str, Any], file: str = "") -> Self:
        """The inverse of `to_json`. Its lists can be read if they are `bound` to their log."""
        require(data, "positions", "updated_ms", "forgotten")
        found = checked({**data, "base": None, "proposed": None, "later": ()}, cls)
        later = checked(data.get("later", []), list[dict[str, Any]])
        return replace(
            found,
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
    def lists(self) -> set[PartList]:
        """The lists with the files of all bases."""
        return {
            each
            for base in self.bases
            for of_map in lists_of(base.snapshots).values()
            for each in of_map
        }

    def kept_above(self, node: str) -> Position:
        """The position above which a node's log is kept for this reader."""
        needed = [self.positions, *(base.positions for base in self.bases)]
        return min(positions.get(node, START) for positions in needed)

    def kept_snapshots(self, manifest: ClusterManifest) -> Iterator[tuple[str, Snapshot]]:
        """Map and snapshot of each base. Those of a map that was dropped since are of no use to the
        reader, and are not kept. `manifest`: the cluster's, read before this manifest."""
        for base in self.bases:
            for name, snapshot in base.snapshots.items():
                now = manifest.snapshots.get(name)
                if now is None or now.dropped == snapshot.dropped:
                    yield name, snapshot

    def kept_files(self, manifest: ClusterManifest) -> Iterator[tuple[str, int]]:
        """Path and size of the files of `kept_snapshots`; size 0: unknown."""
        for _, snapshot in self.kept_snapshots(manifest):
            unknown = (0,) * len(snapshot.files)
            yield from zip(snapshot.files, (*snapshot.sizes, *unknown), strict=False)


def readers_of(store: SegmentStore, cluster_folder: str) -> dict[str, ReaderManifest]:
    """Name → the state of every reader for which something is kept."""
    found = {}
    for name in _names(store, cluster_folder):
        number, reader = _read(store, cluster_folder, name)
        if number and not reader.forgotten:
            found[name] = reader
    return found


def examined(
    store: SegmentStore, cluster_folder: str
) -> tuple[dict[str, ReaderManifest], dict[str, LogError]]:
    """`readers_of`, without those that are damaged; and name → what is damaged, of every reader
    whose newest manifest cannot be read, or a list that it names. Nothing is removed from the log
    until such a reader is forgotten."""
    sound: dict[str, ReaderManifest] = {}
    damaged: dict[str, LogError] = {}
    for name in _names(store, cluster_folder):
        try:
            number, reader = _read(store, cluster_folder, name)
        except CorruptLog as error:
            damaged[name] = error
            continue
        wrong: list[tuple[PartList, LogError]] = []
        for base in reader.bases:
            for snapshot in base.snapshots.values():
                if snapshot.listed is not None:
                    with suppress(NotFound):  # the reader has other lists now
                        snapshot.listed.readable(wrong)
        if wrong:
            damaged[name] = _with_advice(wrong[0][1], name)
        elif number and not reader.forgotten:
            sound[name] = reader
    return sound, damaged


def _names(store: SegmentStore, cluster_folder: str) -> list[str]:
    return [decode(each) for each in store.folders(layout.readers_folder(cluster_folder))]


def _read(store: SegmentStore, cluster_folder: str, name: str) -> tuple[int, ReaderManifest]:
    try:
        return _manifests(store, cluster_folder, name, SystemClock(), SystemRandomness()).read()
    except CorruptLog as error:
        raise _with_advice(error, name) from error


def _with_advice(error: LogError, name: str) -> CorruptLog:
    return CorruptLog(
        error.file,
        error.offset,
        error.what,
        f"bring it back from a copy; or run `imap-wal prune --forget-reader {name}`: nothing is "
        "then kept for this reader",
    )


def read_by_all(store: SegmentStore, cluster_folder: str, node: str, end: Position) -> Position:
    """The position up to which no reader needs a node's entries; `end` without readers."""
    readers = readers_of(store, cluster_folder).values()
    return min((reader.kept_above(node) for reader in readers), default=end)


def kept_files(
    store: SegmentStore, cluster_folder: str, manifest: ClusterManifest, attempts: int = ATTEMPTS
) -> set[str]:
    """The snapshot files that a reader needs. `manifest`: the cluster's, read before this call."""
    try:
        return {
            path
            for reader in readers_of(store, cluster_folder).values()
            for path, _ in reader.kept_files(manifest)
        }
    except NotFound:  # a reader published or was forgotten meanwhile, so its lists are deleted
        if not attempts:
            raise
    return kept_files(store, cluster_folder, manifest, attempts - 1)


def bases_of_history(store: SegmentStore, cluster_folder: str) -> tuple[Base, ...]:
    """The bases of `HISTORY`, oldest first; () without a history."""
    return tuple(_read(store, cluster_folder, HISTORY)[1].bases)


class Reader:
    """How far one reader has read, in its manifests."""

    def __init__(
        self,
        store: SegmentStore,
        cluster_folder: str,
        name: str,
        clock: Clock,
        randomness: Randomness,
    ) -> None:
        self._name, self._clock = name, clock
        self._manifests = _manifests(store, cluster_folder, name, clock, randomness)

    def begin(self, positions: Mapping[str, Position]) -> None:
        """Register the reader, or let it begin again, without a base. Nothing changes if it is
        registered at these positions: Spark asks several times where a query begins. What it wants
        to read may have been removed before, so it has to check that after this call."""
        new = ReaderManifest(dict(positions), self._clock.now_ms())

        def change(reader: ReaderManifest) -> ReaderManifest:
            is_here = reader.updated_ms and not reader.forgotten
            return reader if is_here and reader.positions == new.positions else new

        self._manifests.update(change)

    def read(self) -> ReaderManifest:
        """What is registered. Raises `InvalidSetting` if the reader was forgotten."""
        return self._demand(self._manifests.read()[1])

    def propose(self, base: Base | None) -> None:
        """Keep the files of another base too. Raises `InvalidSetting` if the reader was
        forgotten."""
        self._manifests.update(lambda reader: replace(self._demand(reader), proposed=base))

    def advance(
        self,
        positions: Mapping[str, Position],
        base: Base | None = None,
        proposed: Base | None = None,
    ) -> None:
        """Publish how far the reader has read, and what is kept for it besides the log above. A
        lower position than before changes nothing. Raises `InvalidSetting` if the reader was
        forgotten."""

        def change(reader: ReaderManifest) -> ReaderManifest:
            self._demand(reader)
            farther = {
                node: max(position, reader.positions.get(node, START))
                for node, position in positions.items()
            }
            new = replace(
                reader,
                positions={**reader.positions, **farther},
                base=base,
                proposed=proposed,
            )
            if reader.updated_ms and new == reader:
                return reader
            return replace(new, updated_ms=self._clock.now_ms())

        self._manifests.update(change)

    def keep(
        self, change: Callable[[tuple[Base, ...]], tuple[Base, ...]], same_ms: int
    ) -> tuple[Base, ...]:
        """Of `HISTORY`: keep the bases that `change` makes of the present ones. It gets and returns
        them oldest first, and may run several times. The reader is registered if there are any;
        otherwise it is forgotten. If nothing changes, this is published again after `same_ms`.
        Returns what is kept."""

        def published(reader: ReaderManifest) -> ReaderManifest | None:
            now_ms = self._clock.now_ms()
            bases = change(tuple(reader.bases))
            if not bases:  # registered without a base, it would keep the whole log
                gone = ReaderManifest(reader.positions, now_ms, forgotten=True)
                return gone if reader.updated_ms and not reader.forgotten else None
            new = ReaderManifest(
                positions=bases[0].positions, updated_ms=now_ms, base=bases[0], later=bases[1:]
            )
            same = replace(new, updated_ms=reader.updated_ms) == reader
            return None if same and 0 <= now_ms - reader.updated_ms < same_ms else new

        return tuple(self._manifests.update(published).bases)

    def _demand(self, reader: ReaderManifest) -> ReaderManifest:
        if reader.forgotten:
            raise InvalidSetting(
                f"reader {self._name!r} was forgotten (`imap-wal prune --forget-reader`), so "
                "the log no longer keeps what it has not read: start the query again without "
                "its checkpoint"
            )
        return reader


def forget(
    store: SegmentStore, cluster_folder: str, name: str, clock: Clock, randomness: Randomness
) -> bool:
    """Keep nothing for a reader any more, even if its manifest is damaged. False if there is none
    of this name."""
    if name not in _names(store, cluster_folder):
        return False
    manifests = _manifests(store, cluster_folder, name, clock, randomness)
    known = False

    def change(reader: ReaderManifest) -> ReaderManifest:
        nonlocal known
        known = bool(reader.updated_ms) and not reader.forgotten
        gone = ReaderManifest(reader.positions, clock.now_ms(), forgotten=True)
        return gone if known else reader

    try:
        manifests.update(change, alone=True)  # so its lists are deleted, too
    except CorruptLog:
        gone = ReaderManifest({}, clock.now_ms(), forgotten=True)
        return manifests.replace_damaged(gone) or forget(
            store, cluster_folder, name, clock, randomness
        )
    return known


class BaseLists(PartLists):
    """The lists of a reader. A base whose list is damaged is lost, but not the next one."""

    skips_damaged = True


class ReaderManifestLog(ManifestLog[ReaderManifest]):
    """The manifests of one reader, and the lists of files that its bases name."""

    def __init__(
        self, store: SegmentStore, folder: str, clock: Clock, randomness: Randomness
    ) -> None:
        super().__init__(store, folder, ReaderManifest, ReaderManifest(), clock, randomness)
        self.lists = BaseLists(store, folder, randomness, self._named)

    def _named(self) -> set[str]:
        return {each.name for each in self.read()[1].lists}

    def _decode(self, number: int) -> tuple[dict[str, Any], ReaderManifest]:
        data, manifest = super()._decode(number)
        return data, manifest.with_bases(
            lambda base: replace(base, snapshots=bound(base.snapshots, self.lists.read))
        )

    def _prepared(self, number: int, floor: int, content: ReaderManifest) -> ReaderManifest:
        former = self._follows(number)
        known: dict[str, list[ListedParts]] = {}
        for base in former.bases:
            for name, lists in lists_of(base.snapshots).items():
                known.setdefault(name, []).append(ListedParts(lists, self.lists.read))
        content = content.with_bases(lambda base: self._settled(number, base, known))
        names = {each.name for each in former.lists}
        named = {each.name for each in content.lists}
        dropped = dropped_names(former.dropped_lists, names, named, number, floor)
        return replace(content, dropped_lists=dropped)

    def _settled(self, number: int, base: Base, known: dict[str, list[ListedParts]]) -> Base:
        """With lists of this reader in place of those of the cluster, or of another reader."""
        snapshots = dict(base.snapshots)
        for name in lists_of(base.snapshots):
            snapshots[name] = self.lists.settled(number, snapshots[name], known.get(name, ()))
            listed = snapshots[name].listed
            if listed is not None:
                known.setdefault(name, []).append(listed)  # bases share most files
        return replace(base, snapshots=snapshots)

    def _finish(self, number: int, content: ReaderManifest) -> None:
        if content.forgotten or content.lists != self._follows(number).lists:
            names = {each.name for each in content.lists}
            self.lists.sweep(number, {*names, *content.dropped_lists})


def _manifests(
    store: SegmentStore, cluster_folder: str, name: str, clock: Clock, randomness: Randomness
) -> ReaderManifestLog:
    folder = f"{layout.readers_folder(cluster_folder)}/{encode(name)}"
    return ReaderManifestLog(store, folder, clock, randomness)
