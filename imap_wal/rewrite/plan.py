"""Plans a rewrite for any engine: up to which positions the logs are read, which entries are kept,
and what the result covers. The engines (`local`, `spark`) only merge. They get the list of files
from `RewritePlan.log_scans`.

    prepare   ends of all logs (settled), manifests, ends again (until)
    engine    everything up to `until`, newest first: per map the delete set and the data set
              ─▶ part files of a new generation
    publish   one compare-and-swap of the cluster's manifest: snapshots with low-water marks;
              `LostRace` if another rewrite, a drop, a new lifetime or a new node was first

When may a tombstone be dropped? It must hide every older change of its key that this snapshot does
not cover. So it is dropped if no such change can exist:
  - The logs of all registered nodes were read up to their ends (`until`), and the ends were read
    after the tombstone was appended (it is at or below `settled`, which is read first).
  - An older change that is appended later has a lower (incarnation, partition version), or is
    from the same node and session and is refused because it was sent before. The snapshot has the
    highest pair of each partition up to `settled`; above the snapshot's marks, readers treat
    entries with a lower pair as void (`PartitionVersions`).
  - A change with a shared session may be appended to a further log later, with the same pair, by an
    agent that was stopped meanwhile. So its tombstones are kept until a later incarnation has
    begun that cut the log of every node: then what such an agent appends is void. A lifetime that
    could not read a node's log does not cut it.
  - Embedded stores have no such pairs: there, only the tombstone's own node may be open.
Otherwise it is kept, and a later rewrite decides again. A clear (`imap_wal.rules.cleared`)
counts as a tombstone here; the entries that it hides are dropped in any case. Expired entries
follow the same rule, some minutes after they expired, because the clock of this machine may differ
from the storage's by this time.

For keys that several nodes claim (`imap_wal.read.newest.rivals`), the snapshot keeps all claims,
tombstones and expired ones too, until `resolve` decides or something newer is written.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from imap_wal import layout
from imap_wal.clock import SKEW_MS_MAX
from imap_wal.context import Context
from imap_wal.entry import TIMESTAMP_MS
from imap_wal.errors import InvalidSetting, LogError, LostRace
from imap_wal.format import END, START, Position
from imap_wal.manifest.cluster import ClusterManifest, IncarnationRecord
from imap_wal.manifest.snapshots import NO_VERSIONS, PartitionVersions, Snapshot
from imap_wal.parquet.file import written_otherwise
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.file_scan import FileScan, Metadata, Scope
from imap_wal.read.scan_list import cluster_scans
from imap_wal.read.schemas import known_schemas, schemas_of
from imap_wal.read.state import ClusterState
from imap_wal.rewrite.report import StepReport
from imap_wal.rules.decided import UNDECIDED, Decisions
from imap_wal.rules.dropped import TombstonePolicy
from imap_wal.segment.snapshot import is_segment
from imap_wal.settings import RecoveryPolicy
from storage_backends.location import Location

if TYPE_CHECKING:  # a program without pyarrow plans rewrites too
    from imap_wal.parquet.decoded_columns import DecodedColumns

ATTEMPTS = 3

Key: TypeAlias = bytes


class MergeRules(Protocol):
    """What a merge needs of a plan; the fields are those of `RewritePlan`."""

    @property
    def maps(self) -> frozenset[str] | None: ...

    @property
    def settled(self) -> Mapping[str, Position]: ...

    @property
    def rule(self) -> TombstonePolicy: ...

    @property
    def versions(self) -> PartitionVersions | None: ...

    @property
    def decisions(self) -> Decisions: ...


@dataclass(frozen=True, slots=True)
class RewritePlan:
    """All input of an engine; it can be sent to another process. `generation`: 0 for a dry run."""

    place: Location
    namespace: str
    cluster: str
    folder: str
    state: ClusterState
    maps: frozenset[str] | None
    settled: Mapping[str, Position]
    until: Mapping[str, Position]
    rule: TombstonePolicy
    generation: int
    dry_run: bool
    as_of_ms: int | None = None
    versions: PartitionVersions | None = None
    """The partition versions that were known before `settled` was read. The rewrite adds the pairs
    that it reads up to `settled`. None: it must not add any."""
    decisions: Decisions = UNDECIDED
    """For keys in conflict: which node's claim counts."""
    schemas: tuple[Metadata, ...] = ()
    """Those of the log, if a map has decoded columns."""

    def part_path(
        self, name: str, partition: int, number: int, token: str, suffix: str = ".parquet"
    ) -> str:
        """The path of a new part file; `token` makes it unique among all attempts."""
        folder = layout.snapshot_folder(self.folder, name, self.generation)
        return f"{folder}/part-{partition:05d}-{number:05d}-{token}{suffix}"

    def run_path(self, name: str, token: str) -> str:
        """The path of a sorted run (`imap_wal.rewrite.sorted_runs`), beside the part files."""
        return f"{layout.snapshot_folder(self.folder, name, self.generation)}/run-{token}.parquet"

    def log_scans(self) -> list[FileScan]:
        """The files of the logs that an engine reads: those with an entry that no snapshot
        covers."""
        return cluster_scans(
            self.state, until=self.until, maps=self.maps, snapshots=False, metadata=False
        )

    def decoded(self, name: str) -> DecodedColumns | None:
        """The decoded columns of a map's files."""
        if not self.state.manifest.decoded:
            return None
        from imap_wal.parquet.decoded_columns import DecodedColumns

        return DecodedColumns(self.state.manifest.decoded, self.schemas).of(name)

    def wants(self, name: str) -> bool:
        return self.maps is None or name in self.maps


@dataclass(frozen=True, slots=True)
class Part:
    """One file of a new snapshot: file `number` of the key range `partition`. `last_expiry_ms`: as
    in `Snapshot`."""

    path: str
    live: int
    tombstones: int
    bytes: int
    checksum: int
    partition: int = 0
    number: int = 0
    last_expiry_ms: int = 0
    conflicts: int = 0
    """Undecided keys that several nodes claim. The losing claims are kept too, and count as
    tombstones."""
    clears: bool = False
    """It contains clears; they count as tombstones."""
    lower: Key | None = None
    """No key of it is lower, and each key of the parts before it is; None: unknown."""
    first_expiry_ms: int = 0
    """When the first of its rows expires, in Unix time; 0: none expires."""
    is_kept: bool = False
    """It is a file of the former snapshot."""

    @property
    def rows(self) -> int:
        return self.live + self.tombstones


@dataclass(frozen=True, slots=True)
class Merged:
    """An engine's result for one map, with its parts in key order. `read_bytes`: bytes that were
    read from segments. `unchanged`, without `parts`: the logs have nothing new, and the former
    snapshot has nothing to drop (`worth_reading`)."""

    map: str
    records: int
    read_bytes: int
    parts: tuple[Part, ...]
    unchanged: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """The result of an engine. `pairs`: partition → highest pair of entries at or below `settled`,
    for a plan with `versions`. `confirmed`: each new file was read again by the task that wrote it.
    `steps`: of an engine that has tasks."""

    maps: tuple[Merged, ...]
    pairs: tuple[tuple[int, tuple[int, int]], ...] = ()
    confirmed: bool = False
    steps: tuple[StepReport, ...] = ()


class Engine(Protocol):
    """Merges the entries of a plan and writes part files; in a dry run, it measures and discards
    them."""

    name: str

    def run(self, plan: RewritePlan, log: ClusterLog) -> Result: ...


def rewrite_folder(scratch: Path | None) -> tempfile.TemporaryDirectory[str]:
    """A temporary folder for part files and runs before they are stored."""
    return tempfile.TemporaryDirectory(
        prefix="imap-wal-rewrite-", dir=scratch, ignore_cleanup_errors=True
    )


def worth_reading(plan: RewritePlan, snapshot: Snapshot, context: Context) -> bool:
    """Whether a snapshot without new entries may become smaller, or is not encrypted with the
    active key."""
    if snapshot.tombstones > 0 or plan.rule.expired(snapshot.last_expiry_ms):
        return True
    return any(written_otherwise(context, path) for path in snapshot.paths)


def former_to_read(
    plan: RewritePlan, changed: Collection[str], context: Context, *, by_rows: bool = False
) -> tuple[list[tuple[str, Snapshot]], list[Merged]]:
    """The former snapshots that a merge reads, by map: those of maps that the logs have `changed`,
    and those `worth_reading`. Then the results for the other maps. `by_rows`: the engine writes
    segment snapshots; others read them, and write Parquet."""
    read: list[tuple[str, Snapshot]] = []
    unchanged: list[Merged] = []
    for name, snapshot in sorted(plan.state.manifest.snapshots.items()):
        if not plan.wants(name):
            continue
        segments = not by_rows and any(map(is_segment, snapshot.paths))
        if name in changed or segments or worth_reading(plan, snapshot, context):
            read.append((name, snapshot))
        else:
            unchanged.append(Merged(name, 0, 0, (), unchanged=True))
    return read, unchanged


def prepare(
    log: ClusterLog,
    *,
    maps: Collection[str] | None = None,
    as_of_ms: int | None = None,
    policy: RecoveryPolicy = RecoveryPolicy.FULL,
    dry_run: bool = False,
    skew_ms_max: int = SKEW_MS_MAX,
) -> RewritePlan:
    """Read the ends of the logs twice, and decide what a rewrite covers. `as_of_ms` (Unix time in
    milliseconds): only entries written until then; newer ones remain in the log.

    Raises `MissingNode`, `LogError`, `LostRace`, and `InvalidSetting` for a time before an earlier
    rewrite, because the state of the map at that time is no longer known."""
    before, settled, until, state = _look_twice(log)
    state.demand_all(policy)
    until = {node: until.get(node, START) for node in state.nodes}
    complete = not state.missing
    now_ms = log.clock.now_ms()
    if as_of_ms is not None and as_of_ms < now_ms:
        demand_history(state, as_of_ms, maps)
        last = {node: _last_until(log, state, node, as_of_ms) for node in until}
        if not any(maps is None or name in maps for name in state.manifest.snapshots):
            _demand_begun([oldest for _, oldest in last.values()], as_of_ms)
        until = {node: min(until[node], last[node][0]) for node in until}
        settled = until
        now_ms = as_of_ms
        # These ends are not from one moment, and the known partition versions are newer than the
        # ends.
        complete = False
    members = is_of_members(state.manifest)
    generation = 0
    if not dry_run:
        generation = log.manifests.update(
            lambda manifest: replace(manifest, generation=manifest.generation + 1)
        ).generation
    return RewritePlan(
        place=log.context.place,
        namespace=log.namespace,
        cluster=log.cluster,
        folder=log.folder,
        state=state,
        maps=None if maps is None else frozenset(maps),
        settled=settled,
        until=until,
        rule=TombstonePolicy(
            now_ms,
            complete,
            frozenset()
            if members
            else frozenset(
                node for node, node_state in state.nodes.items() if not node_state.manifest.clean
            ),
            skew_ms_max,
            first_unfinished(before.lifetimes, state.manifest.nodes),
        ),
        generation=generation,
        dry_run=dry_run,
        as_of_ms=as_of_ms,
        versions=known_versions(before) if complete and members else None,
    )


def with_schemas(plan: RewritePlan, log: ClusterLog) -> RewritePlan:
    """The plan with the schemas of the log, if a map has decoded columns. Raises `NotFound`."""
    if not plan.state.manifest.decoded or not (
        plan.maps is None or any(map(plan.decoded, plan.maps))
    ):
        return plan
    try:
        return replace(plan, schemas=schemas_of(log, plan.state))
    except LogError:  # damage that the merge finds too, or that it does not need to read
        return replace(plan, schemas=known_schemas(plan.state))


def _look_twice(
    log: ClusterLog,
) -> tuple[ClusterManifest, dict[str, Position], dict[str, Position], ClusterState]:
    """The manifest, the ends of all logs, the ends again, and the state. No snapshot was published
    in between: so the manifest's tables were valid before the first ends, and its marks are not
    above the second ones. Raises `LostRace`."""
    for _ in range(ATTEMPTS):
        before = log.manifest()
        settled = log.ends()
        until = log.ends(settled)
        state = log.state()  # after the ends, so that its listings have all files up to them
        if state.manifest.snapshots == before.snapshots:
            return before, settled, until, state
    raise LostRace(
        f"other rewrites were published {ATTEMPTS} times while this one read the ends of the "
        "logs; run it again when they are done"
    )


def is_of_members(manifest: ClusterManifest) -> bool:
    """Whether Hazelcast members write this log: only their changes have partition versions."""
    return bool(manifest.lifetimes)


def first_unfinished(lifetimes: Iterable[IncarnationRecord], nodes: Iterable[str]) -> int:
    """The lowest incarnation in which one of these nodes may still append an entry that counts.
    What a node appends from now on is void if it is older than the newest lifetime that cuts the
    node's log at its end; a lifetime that could not read the log cuts it at `END`, and voids
    nothing."""
    newest = dict.fromkeys(nodes, 0)
    for lifetime in lifetimes:
        for node in newest:
            if lifetime.cuts.get(node, START) < END:
                newest[node] = max(newest[node], lifetime.incarnation)
    return min(newest.values(), default=0)


def known_versions(manifest: ClusterManifest) -> PartitionVersions:
    versions = NO_VERSIONS
    for table in manifest.versions.values():
        versions = versions.raised(table.pairs.items())
    return versions


def demand_history(state: ClusterState, as_of_ms: int, maps: Collection[str] | None = None) -> None:
    """Raises `InvalidSetting` if a snapshot has replaced changes that are needed to know the state
    of a map at `as_of_ms`."""
    for name, snapshot in state.manifest.snapshots.items():
        if (maps is None or name in maps) and snapshot.until_ms > as_of_ms:
            raise InvalidSetting(
                f"map {name!r} was rewritten as of {snapshot.until_ms} (Unix ms): its state at "
                f"{as_of_ms} is no longer known; choose a later time"
            )


def _demand_begun(oldest: Iterable[int | None], as_of_ms: int) -> None:
    """Raises `InvalidSetting` if the first entry of every log is newer: a rewrite would cover
    nothing. A time in `oldest` is None for a log without entries."""
    times = [time for time in oldest if time is not None]
    if times and min(times) > as_of_ms:
        raise InvalidSetting(
            f"there is no entry at or before {as_of_ms} (Unix ms); the first one is of {min(times)}"
        )


def _last_until(
    log: ClusterLog, state: ClusterState, node: str, as_of_ms: int
) -> tuple[Position, int | None]:
    """The position before the first entry of a node that is newer than `as_of_ms`, and the time of
    its oldest entry. Entries of one commit are not separated."""
    newer: Position | None = None
    oldest: int | None = None
    for changes in log.changes(
        scope=Scope((node,), snapshots=False),
        positions=True,
        policy=RecoveryPolicy.PARTIAL,
        state=state,
    ):
        times = [row[TIMESTAMP_MS] for row in changes.rows]
        if times:
            oldest = min(times) if oldest is None else min(oldest, *times)
        if times and max(times) > as_of_ms:
            first = min(
                place
                for time, place in zip(times, changes.positions or (), strict=True)
                if time > as_of_ms
            )
            newer = first if newer is None else min(newer, first)
    end = (
        Position(2**62, 0, 0, 0)
        if newer is None
        else newer._replace(frame=newer.frame - 1, index=0)
    )
    return end, oldest
