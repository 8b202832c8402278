"""The cluster's manifest and claims: incarnations, nodes, snapshots. Any process may publish one by
compare-and-swap."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from imap_wal.clock import Clock, Randomness
from imap_wal.errors import TooLarge
from imap_wal.format import START, Position
from imap_wal.manifest.document import Packed, Whole, checked, fields_of, require, without_defaults
from imap_wal.manifest.node import Pair, Seen, without_turn
from imap_wal.manifest.store import FORMAT, FORMAT_CLEARS, FORMAT_PACKED, PACKED_FROM, ManifestLog
from storage_backends import SegmentStore


@dataclass(frozen=True, slots=True)
class PartitionVersions:
    """Partition → the highest pair that was in the logs at some moment. A partition owner with a
    lower pair was replaced before that moment, and acknowledges nothing any more."""

    pairs: Mapping[int, Pair] = field(default_factory=dict)

    def encode(self) -> str:
        """Runs of partitions with one pair, as `first+count:incarnation.version`, with commas."""
        runs: list[tuple[int, int, Pair]] = []
        for partition, pair in sorted(self.pairs.items()):
            if runs and runs[-1][0] + runs[-1][1] == partition and runs[-1][2] == pair:
                runs[-1] = (runs[-1][0], runs[-1][1] + 1, pair)
            else:
                runs.append((partition, 1, pair))
        return ",".join(f"{first}+{count}:{pair[0]}.{pair[1]}" for first, count, pair in runs)

    @classmethod
    def decode(cls, text: str) -> Self:
        pairs: dict[int, Pair] = {}
        for run in filter(None, text.split(",")):
            partitions, _, pair = run.partition(":")
            first, count = map(int, partitions.split("+"))
            incarnation, version = map(int, pair.split("."))
            pairs |= dict.fromkeys(range(first, first + count), (incarnation, version))
        return cls(pairs)

    def raised(self, pairs: Iterable[tuple[int, Pair]]) -> Self:
        """The table with these pairs, without turns, where they are higher."""
        found = dict(self.pairs)
        for partition, given in pairs:
            pair = without_turn(given)
            if found.get(partition, ()) < pair:
                found[partition] = pair
        return replace(self, pairs=found)


NO_VERSIONS = PartitionVersions()


@dataclass(frozen=True, slots=True)
class LowWaterMark:
    """A snapshot covers the positions up to `position` of log `directory`."""

    directory: str
    position: Position


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A published snapshot of one map: `files` have the newest change of every key up to `marks`. A
    dropped map has no files."""

    generation: Whole
    files: tuple[str, ...]
    marks: Mapping[str, LowWaterMark]
    live: int
    tombstones: int
    bytes: int
    created_ms: int
    dropped: int = 0
    """Generation of the last drop of this map. A reader that merged entries before it must discard
    them."""
    checksums: tuple[int, ...] = ()
    """CRC-32C of each whole file; empty: unknown."""
    until_ms: int = 0
    """The state of the map before this Unix time is unknown: older changes of its keys are
    removed."""
    sizes: tuple[int, ...] = ()
    """Bytes of each file; empty: unknown."""
    rows: tuple[int, ...] = ()
    """The number of rows of each file; empty: unknown."""
    versions: Whole = 0
    """The table in `ClusterManifest.versions` for entries above `marks`; 0: none."""
    last_expiry_ms: int = 0
    """When the last row expires; 0: a row never expires, or unknown."""
    borders: tuple[str, ...] = ()
    """For each file, in hexadecimal digits: no key of it is lower, and each key of the files before
    it is. Empty: unknown."""
    expiries: tuple[int, ...] = ()
    """When the first row of each file expires; 0: no row does. Empty: unknown."""

    def to_json(self, shared: str | None = None) -> dict[str, Any]:
        """`shared`: the number of its marks, if several snapshots have the same."""
        document = {**fields_of(self), "marks": shared or _marks_json(self.marks)}
        return without_defaults(
            document, ("sizes", "rows", "versions", "last_expiry_ms", "borders", "expiries")
        )

    @classmethod
    def from_json(
        cls, data: dict[str, Any], shared: Mapping[str, Mapping[str, LowWaterMark]] | None = None
    ) -> Self:
        """`shared`: marks of several snapshots, by number."""
        given = data["marks"]
        marks = (
            (shared or {})[given]
            if isinstance(given, str)
            else checked(given, dict[str, LowWaterMark])
        )
        return replace(checked({**data, "marks": {}}, cls), marks=marks)


def _marks_json(marks: Mapping[str, LowWaterMark]) -> dict[str, Any]:
    return {node: fields_of(mark) for node, mark in marks.items()}


def _with_marks_once(snapshots: Mapping[str, Snapshot]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Snapshots as JSON, and the marks that several of them share, once. 1,000 maps in the logs of
    100 nodes have 100,000 marks, but after a rewrite of all maps only 100 distinct ones."""
    # The marks of one manifest or one rewrite are mostly one object. Its content is compared once.
    distinct = {id(snapshot.marks): snapshot.marks for snapshot in snapshots.values()}
    content = {
        each: tuple(sorted(marks.items(), key=lambda item: item[0]))
        for each, marks in distinct.items()
    }
    same: dict[tuple[Any, ...], int] = {}
    first = {each: same.setdefault(key, each) for each, key in content.items()}
    users = Counter(first[id(snapshot.marks)] for snapshot in snapshots.values())
    numbers = {
        each: str(number)
        for number, each in enumerate((each for each, count in users.items() if count > 1), 1)
    }
    found = {}
    for name, snapshot in snapshots.items():
        number = numbers.get(first[id(snapshot.marks)])
        found[name] = snapshot.to_json(number)
    return found, {number: _marks_json(distinct[each]) for each, number in numbers.items()}


def _from_json_with_marks(snapshots: Any, marks: Any) -> dict[str, Snapshot]:
    """The inverse of `_with_marks_once`. Raises ValueError and KeyError."""
    shared = checked(marks, dict[str, dict[str, LowWaterMark]])
    return {
        name: Snapshot.from_json(snapshot, shared)
        for name, snapshot in checked(snapshots, dict[str, dict[str, Any]]).items()
    }


def _covered(snapshots: Mapping[str, Snapshot]) -> dict[str, tuple[LowWaterMark, ...]]:
    """Node → for each of its log directories, the farthest mark of any snapshot."""
    farthest: dict[tuple[str, str], Position] = {}
    for marks in {id(snapshot.marks): snapshot.marks for snapshot in snapshots.values()}.values():
        for node, mark in marks.items():
            log = (node, mark.directory)
            farthest[log] = max(mark.position, farthest.get(log, START))
    found: dict[str, tuple[LowWaterMark, ...]] = {}
    for (node, directory), position in farthest.items():
        found[node] = (*found.get(node, ()), LowWaterMark(directory, position))
    return found


class SnapshotTable(Packed[Mapping[str, Snapshot]], Mapping[str, Snapshot]):
    """The snapshots of many maps. An open and a claim copy the table without parsing it; they use
    only `covered`, which is stored separately."""

    __slots__ = ("_covered",)

    def __init__(
        self,
        snapshots: Mapping[str, Snapshot] | None,
        text: str = "",
        covered: Mapping[str, tuple[LowWaterMark, ...]] | None = None,
        file: str = "",
    ) -> None:
        """Pass the first argument, or the other three; see `Packed`."""
        super().__init__(snapshots, text, file)
        self._covered = covered

    def _to_document(self, value: Mapping[str, Snapshot]) -> Any:
        return _with_marks_once(value)

    def _from_document(self, document: Any) -> Mapping[str, Snapshot]:
        return _from_json_with_marks(*checked(document, tuple[Any, Any]))

    @property
    def covered(self) -> Mapping[str, tuple[LowWaterMark, ...]]:
        """Node → for each of its log directories, the farthest mark of any snapshot."""
        if self._covered is None:
            self._covered = _covered(self.whole)
        return self._covered

    def __getitem__(self, name: str) -> Snapshot:
        return self.whole[name]


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

    formats: ClassVar[tuple[int, ...]] = (FORMAT, FORMAT_PACKED, FORMAT_CLEARS)

    incarnation: Whole = 0
    """The last assigned incarnation, of a cluster lifetime or an embedded open."""
    claims: Mapping[str, Whole] = field(default_factory=dict)
    """The claims of a log of version 1. Newer logs have a separate manifest, `ClaimManifest`."""
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
    forgotten: tuple[str, ...] = ()
    """Log directories of forgotten nodes. They are not registered again."""
    embedded: Whole = 0
    """The last incarnation of an embedded open."""
    clears: bool = False
    """A snapshot has, or had, clears."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Id of each key that was ever used to write here → its check value, see `key_checks`."""
    token: bool = False
    """The claims have a token. If they have none and are not closed, newer claims were lost."""

    def __post_init__(self) -> None:
        if not isinstance(self.snapshots, SnapshotTable) and len(self.snapshots) >= PACKED_FROM:
            object.__setattr__(self, "snapshots", SnapshotTable(self.snapshots))

    def to_json(self) -> dict[str, Any]:
        versions = {str(number): table.encode() for number, table in self.versions.items()}
        document = {
            **fields_of(self),
            "lifetimes": [fields_of(lifetime) for lifetime in self.lifetimes],
            "versions": versions,
        }
        if isinstance(self.snapshots, SnapshotTable):
            covered = {
                node: [fields_of(mark) for mark in marks]
                for node, marks in self.snapshots.covered.items()
            }
            document |= {
                "format": FORMAT_PACKED,
                "snapshots": self.snapshots.text,
                "covered": covered,
                "marks": {},
            }
        else:
            document["snapshots"], document["marks"] = _with_marks_once(self.snapshots)
        if self.clears:
            document["format"] = FORMAT_CLEARS
        return without_defaults(
            document,
            (
                "marks",
                "orphan_floor",
                "versions",
                "forgotten",
                "embedded",
                "clears",
                "keys",
                "token",
            ),
        )

    @classmethod
    def from_json(cls, data: dict[str, Any], file: str = "") -> Self:
        require(data, "incarnation", "claims", "lifetimes", "nodes", "snapshots", "generation")
        snapshots: Mapping[str, Snapshot]
        if isinstance(data["snapshots"], str):
            snapshots = SnapshotTable(
                None,
                data["snapshots"],
                checked(data["covered"], dict[str, tuple[LowWaterMark, ...]]),
                file,
            )
        else:
            snapshots = _from_json_with_marks(data["snapshots"], data.get("marks", {}))
        versions = {
            number: PartitionVersions.decode(text)
            for number, text in checked(data.get("versions", {}), dict[int, str]).items()
        }
        return replace(
            checked({**data, "snapshots": {}, "versions": {}}, cls),
            snapshots=snapshots,
            versions=versions,
        )

    def covered(self, node: str) -> tuple[LowWaterMark, ...]:
        """For each log directory of the node, the farthest mark of any snapshot."""
        table = self.snapshots
        return (table.covered if isinstance(table, SnapshotTable) else _covered(table)).get(
            node, ()
        )

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


MEMBERS_MAX = 1000
"""The most members of a view, and the most that are kept out of it."""
CLAIMS_KEPT = 1000
"""The number of replaced clusters that are remembered."""


CLOSED_ADVICE = (
    "decide who may: imap-wal claim --only-token FILE, or --forget-tokens for every client"
)
"""Advice for closed claims."""


@dataclass(frozen=True, slots=True)
class ClaimManifest:
    """Which Hazelcast cluster may write. This is checked between every sync and acknowledgement, so
    it is a separate, small manifest. `claims`: cluster id → its claimed incarnation. After a newer
    claim, agents acknowledge nothing for an older one. Only then are the cutoffs read and the
    lifetime published, so no acknowledged change is above a cutoff.

    The newest claim may be a view: then only `members` may write in it. The list is always
    complete: a later member is entered before its first change."""

    claims: Mapping[str, Whole] = field(default_factory=dict)
    permits: Whole = 0
    """Claims from this incarnation on have a permit (`layout.claim_path`); 0: none."""
    members: tuple[str, ...] = ()
    """UUIDs of the Hazelcast members of the newest claim; (): any member of its cluster."""
    lost: tuple[str, ...] = ()
    """UUIDs of members that were lost before the newest claim, or before their first hello. They
    may not write in it."""
    forced: bool = False
    """The newest claim is an operator's (`imap-wal claim --force`). The next cluster does not wait
    for nodes."""
    tokens: tuple[str, ...] = ()
    """SHA-256 of each token of this cluster. Agents claim only for clients with one of them; ():
    for all clients that may connect."""
    closed: bool = False
    """A repair found that claims were lost, perhaps with a token: agents claim for no cluster until
    an operator decides (`imap-wal claim`)."""

    @property
    def newest(self) -> int:
        """The last claimed incarnation; 0 without a claim."""
        return max(self.claims.values(), default=0)

    @property
    def cluster_id(self) -> str:
        """The cluster of the newest claim; "" without a claim."""
        return max(self.claims, key=lambda each: self.claims[each], default="")

    def with_claim(
        self,
        cluster_id: str,
        incarnation: int,
        members: tuple[str, ...] = (),
        lost: tuple[str, ...] = (),
    ) -> ClaimManifest:
        kept = sorted({**self.claims, cluster_id: incarnation}.items(), key=lambda claim: claim[1])[
            -CLAIMS_KEPT:
        ]
        return ClaimManifest(
            dict(kept),
            self.permits or incarnation,
            members,
            lost,
            tokens=self.tokens,
            closed=self.closed,
        )

    def admits(self, member: str, view: int) -> bool:
        """Whether this member of the newest claim's cluster may write, if its hello names this
        view."""
        return (
            not self.members
            or member in self.members
            or (view == self.newest and member not in self.lost)
        )

    def with_member(self, member: str) -> ClaimManifest:
        """The manifest with this member in the list. Raises `TooLarge` if the list is full."""
        if not self.members or member in self.members:
            return self
        if len(self.members) >= MEMBERS_MAX:
            raise TooLarge(
                f"view {self.newest} has {len(self.members)} members, which is the most; "
                f"member {member} is not one of them"
            )
        return replace(self, members=(*self.members, member))

    def barring(self, lost: Collection[str]) -> ClaimManifest | None:
        """The manifest with more lost members, none of which is in the list. None if they are too
        many: then another view follows, whose number they do not know."""
        found = {*self.lost, *lost}
        return replace(self, lost=tuple(sorted(found))) if len(found) <= MEMBERS_MAX else None

    @property
    def names_token(self) -> bool:
        """Whether it is known who may claim, if the cluster has a token."""
        return bool(self.tokens) or self.closed

    @property
    def permitted(self) -> bool:
        """Whether the newest claim has a permit."""
        return 0 < self.permits <= self.newest

    def to_json(self) -> dict[str, Any]:
        return without_defaults(
            fields_of(self), ("permits", "members", "lost", "forced", "tokens", "closed")
        )

    @classmethod
    def from_json(cls, data: dict[str, Any], file: str = "") -> Self:
        require(data, "claims")
        return checked(data, cls)


def claim_manifests(
    store: SegmentStore,
    cluster_folder: str,
    former: Mapping[str, int],
    clock: Clock,
    randomness: Randomness,
) -> ManifestLog[ClaimManifest]:
    """`former`: the claims in the cluster's own manifest, of a log of version 1."""
    return ManifestLog(
        store, f"{cluster_folder}/claims", ClaimManifest, ClaimManifest(former), clock, randomness
    )


def cluster_manifests(
    store: SegmentStore, cluster_folder: str, clock: Clock, randomness: Randomness
) -> ManifestLog[ClusterManifest]:
    return ManifestLog(store, cluster_folder, ClusterManifest, ClusterManifest(), clock, randomness)
