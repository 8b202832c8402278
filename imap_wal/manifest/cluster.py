"""The cluster's manifest: incarnations, nodes, snapshots. Any process may publish one by
compare-and-swap."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from imap_wal.context import Context
from imap_wal.errors import InvalidSetting
from imap_wal.format import START, Position
from imap_wal.manifest import epochs
from imap_wal.manifest.list_files import dropped_names
from imap_wal.manifest.node import NodeManifest, Seen
from imap_wal.manifest.snapshots import (
    NO_VERSIONS,
    LowWaterMark,
    PartitionVersions,
    Snapshot,
    SnapshotLists,
    SnapshotTable,
    bound,
    from_json_with_marks,
    lists_from_json,
    lists_json,
    lists_of,
    marks_by_node,
    marks_json,
    names_of,
    position_in,
    with_lists,
    with_marks_once,
)
from imap_wal.manifest.store import (
    CLUSTER_FORMAT,
    ManifestLog,
    Whole,
    checked,
    document_of,
    fields_of,
    require,
    without_defaults,
)

TABLE_FROM = 256
"""The snapshots of this many maps or more are a `SnapshotTable`."""


@dataclass(frozen=True, slots=True)
class IncarnationRecord:
    """One lifetime of a Hazelcast cluster: its id, its incarnation, and the cutoff of each node's
    log. Entries of older incarnations after the cutoff are void."""

    cluster_id: str
    incarnation: Whole
    cuts: Mapping[str, Position]


@dataclass(frozen=True, slots=True)
class ClusterManifest:
    """The state that all nodes of a cluster share."""

    format: ClassVar[int] = CLUSTER_FORMAT
    needed: ClassVar[tuple[str, ...]] = (
        "incarnation",
        "lifetimes",
        "nodes",
        "snapshots",
        "generation",
    )
    """As of `ClaimManifest`."""

    incarnation: Whole = 0
    """The last assigned incarnation, of a cluster lifetime or an embedded open."""
    lifetimes: tuple[IncarnationRecord, ...] = ()
    nodes: Mapping[str, str] = field(default_factory=dict)
    """Node name → UUID of its log directory, for every node that has written and was not
    forgotten."""
    snapshots: Mapping[str, Snapshot] = field(default_factory=dict)
    """Map name → its snapshot."""
    generation: Whole = 0
    """The last assigned snapshot generation."""
    orphan_floor: Whole = 0
    """Snapshots of lower generations are not published any more. Their files may be deleted."""
    versions: Mapping[int, PartitionVersions] = field(default_factory=dict)
    """Generation of the rewrite that made a table → the table. Above the marks of a snapshot that
    names it, an entry of a lower pair was never acknowledged: it is void."""
    forgotten: Mapping[str, Position] = field(default_factory=dict)
    """Log directory of each forgotten node → the last position in it. These directories are never
    registered again."""
    embedded: Whole = 0
    """The last incarnation of an embedded open."""
    clears: bool = False
    """A snapshot has, or had, clears."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Id of each key that was ever used to write here → its check value, see `key_checks`."""
    token: bool = False
    """The claims have a token. If they have none and are not closed, newer claims were lost."""
    all_maps: Mapping[str, LowWaterMark] = field(default_factory=dict)
    """Node → the mark of the last rewrite of all maps: each map with an entry at or below it has a
    snapshot."""
    losses: Mapping[str, Whole] = field(default_factory=dict)
    """Node → how many times a part of its log was lost. Five events count: segments of its own disk
    were given up; a recovery cut frames; the cut of a lifetime made entries void that are only on
    its disk; another log replaced it; it was forgotten. A change with a copy there then has one
    copy less."""
    epochs: Mapping[str, tuple[epochs.Name, ...]] = field(default_factory=dict)
    """Log directory → the epochs that its marks are of, see `imap_wal.manifest.epochs`."""
    decoded: tuple[str, ...] = ()
    """Names of maps, with `*` and `?`, whose files have keys and values in readable form too."""
    tables: Mapping[str, Mapping[str, Whole]] = field(default_factory=dict)
    """Map → the tables that each rewrite publishes: `delta`, or `iceberg` and its name → how many
    published snapshots keep their files."""
    dropped_lists: Mapping[str, Whole] = field(default_factory=dict, compare=False)
    """Name of a list of files that former manifests have → number of the first manifest without
    it. Set by the publication."""

    def __post_init__(self) -> None:
        if not isinstance(self.snapshots, SnapshotTable) and len(self.snapshots) >= TABLE_FROM:
            object.__setattr__(self, "snapshots", SnapshotTable(self.snapshots))

    def to_json(self) -> dict[str, Any]:
        document = document_of(
            self,
            self.needed,
            lifetimes=[fields_of(lifetime) for lifetime in self.lifetimes],
            versions={str(number): table.encode() for number, table in self.versions.items()},
            all_maps=marks_json(self.all_maps),
        )
        document["lists"] = lists_json(self.snapshots)
        if isinstance(self.snapshots, SnapshotTable):
            covered = {
                node: [fields_of(mark) for mark in marks]
                for node, marks in self.snapshots.covered.items()
            }
            document |= {"snapshots": self.snapshots.text, "covered": covered, "marks": {}}
        else:
            document["snapshots"], document["marks"] = with_marks_once(self.snapshots)
        return without_defaults(document, ("marks", "lists"))

    @classmethod
    def from_json(cls, data: dict[str, Any], file: str = "") -> Self:
        """The inverse of `to_json`. Its lists can be read if they are `bound` to their log."""
        require(data, *cls.needed)
        snapshots: Mapping[str, Snapshot]
        lists = lists_from_json(data.get("lists", {}))
        if isinstance(data["snapshots"], str):
            snapshots = SnapshotTable(
                None,
                data["snapshots"],
                checked(data["covered"], dict[str, tuple[LowWaterMark, ...]]),
                file,
                lists,
            )
        else:
            snapshots = from_json_with_marks(data["snapshots"], data.get("marks", {}))
            snapshots = with_lists(snapshots, lists)
        versions = {
            number: PartitionVersions.decode(text)
            for number, text in checked(data.get("versions", {}), dict[int, str]).items()
        }
        return replace(
            checked({**data, "snapshots": {}, "versions": {}}, cls),
            snapshots=snapshots,
            versions=versions,
        )

    def with_node(self, node: str, directory: str) -> ClusterManifest:
        """Registers a node's log."""
        return replace(self, nodes={**self.nodes, node: directory})

    def losses_but(self, node: str) -> int:
        """The losses of all other nodes."""
        return sum(count for name, count in self.losses.items() if name != node)

    def with_loss(self, *nodes: str) -> ClusterManifest:
        """Counts a loss of these nodes, before their logs count as whole again."""
        counts = {node: self.losses.get(node, 0) + 1 for node in nodes}
        return replace(self, losses={**self.losses, **counts})

    def acks_from(self, node: str, manifest: NodeManifest, segment: int) -> int:
        """At least how many logs have each acknowledged change in this segment of a node and in
        later ones."""
        return manifest.acks_from(segment, self.losses_but(node))

    def covered(self, node: str) -> tuple[LowWaterMark, ...]:
        """For each log directory of the node, the farthest mark of any snapshot."""
        table = self.snapshots
        return (table.covered if isinstance(table, SnapshotTable) else marks_by_node(table)).get(
            node, ()
        )

    def reach_in(self, log: NodeManifest) -> Callable[[LowWaterMark | None], Position]:
        """The rule which entries of a node's log a mark covers: a function that returns the
        position up to which it does. A mark of another log directory covers nothing, and one of
        another copy of this log only what both copies share."""
        end = epochs.fork(self.epochs.get(log.directory, ()), log.epochs)

        def reach(mark: LowWaterMark | None) -> Position:
            position = position_in(log.directory, mark)
            return position if end is None else min(position, end)

        return reach

    def marks(self, node: str, log: NodeManifest) -> dict[str, Position]:
        """Map → position up to which its snapshot covers this log of the node."""
        reach = self.reach_in(log)
        marks = {name: snapshot.marks.get(node) for name, snapshot in self.snapshots.items()}
        return {
            name: reach(mark)
            for name, mark in marks.items()
            if mark is not None and mark.directory == log.directory
        }

    def complete(self, node: str, log: NodeManifest) -> Position:
        """The position up to which snapshots cover every entry of this log of the node, of any map;
        START: unknown. A snapshot without a mark of the directory, of a rewrite that could not read
        it, leaves it unknown."""
        end = self.reach_in(log)(self.all_maps.get(node))
        if end == START:
            return START
        marks = self.marks(node, log)
        return min(end, min((marks.get(name, START) for name in self.snapshots), default=START))

    def with_epochs(self, logs: Iterable[NodeManifest]) -> ClusterManifest:
        """With the epochs of these logs, whose entries marks cover from now on."""
        registered = set(self.nodes.values())
        names = {log: named for log, named in self.epochs.items() if log in registered}
        for log in logs:
            if log.epochs:
                names[log.directory] = epochs.named(log.epochs, names.get(log.directory, ()))
        return replace(self, epochs=names)

    def seen(self, number: int) -> Seen:
        """The progress that a reader of this manifest, with this number, has seen."""
        return Seen(number, self.generation, self.incarnation)

    def versions_of(self, name: str) -> PartitionVersions:
        """The table for a map's entries above the marks of its snapshot; empty if there is none."""
        snapshot = self.snapshots.get(name)
        return self.versions.get(snapshot.versions, NO_VERSIONS) if snapshot else NO_VERSIONS

    def with_snapshot(self, name: str, snapshot: Snapshot) -> ClusterManifest:
        return replace(
            self,
            snapshots={**self.snapshots, name: snapshot},
            generation=max(self.generation, snapshot.generation),
        )

    def without_unused_tables(self) -> ClusterManifest:
        """Removes tables of partitions that no snapshot names."""
        used = {snapshot.versions for snapshot in self.snapshots.values()}
        return replace(
            self,
            versions={number: table for number, table in self.versions.items() if number in used},
        )


class ClusterManifestLog(ManifestLog[ClusterManifest]):
    """The manifests of a cluster, and the lists of files that they name."""

    def __init__(self, context: Context, cluster_folder: str) -> None:
        store, randomness = context.store, context.randomness
        super().__init__(
            store, cluster_folder, ClusterManifest, ClusterManifest(), context.clock, randomness
        )
        self.lists = SnapshotLists(store, cluster_folder, randomness, self._named)

    def _named(self) -> set[str]:
        return names_of(lists_of(self.read()[1].snapshots))

    def _decode(self, number: int) -> tuple[dict[str, Any], ClusterManifest]:
        data, manifest = super()._decode(number)
        return data, replace(manifest, snapshots=bound(manifest.snapshots, self.lists.read))

    def _prepared(self, number: int, floor: int, content: ClusterManifest) -> ClusterManifest:
        former = self._follows(number)
        if content.snapshots is not former.snapshots:
            content = replace(content, snapshots=self._settled(number, content, former))
        former_lists, named = lists_of(former.snapshots), names_of(lists_of(content.snapshots))
        dropped = dropped_names(former.dropped_lists, names_of(former_lists), named, number, floor)
        return replace(content, dropped_lists=dropped)

    def _demand_whole(self, content: ClusterManifest) -> None:
        len(content.snapshots)

    def _settled(
        self, number: int, content: ClusterManifest, former: ClusterManifest
    ) -> dict[str, Snapshot]:
        lists = lists_of(former.snapshots)
        return {
            name: replace(
                snapshot, files=self.lists.settled(number, snapshot.files, lists.get(name, ()))
            )
            for name, snapshot in content.snapshots.items()
        }

    def _finish(self, number: int, content: ClusterManifest) -> None:
        lists = lists_of(content.snapshots)
        if lists != lists_of(self._follows(number).snapshots):
            self.lists.sweep(number, {*names_of(lists), *content.dropped_lists})


def set_decoded(manifests: ManifestLog[ClusterManifest], maps: Iterable[str]) -> tuple[str, ...]:
    """From now on, new files of these maps have the columns `key_text` and `value_json`, and those
    of other maps do not (decision 73 in docs/decisions/files.md).

    Args:
        manifests: Those of the cluster.
        maps: Names, in which `*` and `?` match any text and any character.

    Returns:
        What is recorded.

    Raises:
        InvalidSetting: A name is empty.
        LostRace: Other processes changed the manifest too often.
    """
    decoded = tuple(sorted(set(maps)))
    if "" in decoded:
        raise InvalidSetting("the name of a map must not be empty")

    return manifests.update(lambda manifest: replace(manifest, decoded=decoded)).decoded
