"""What a rewrite is, whoever does the work: which entries, which of them stay, and how the result
is published. The engines (`local`, `spark`) only merge.

    prepare   ends of all logs (settled), manifests, ends again (until)
    engine    everything up to `until`, newest first: per map the delete set and the data set
              ─▶ part files of a new generation
    publish   one compare-and-swap of the cluster's manifest: snapshots with low-water marks;
              `LostRace` when another rewrite, a drop, a new lifetime or a new node came first

When may a tombstone be dropped? It must still hide every older change of its key that this snapshot
does not cover. It is dropped when there can be none:
  - The logs of all registered nodes were read, up to ends that were read (`until`) after the
    tombstone was there (`settled`, read first).
  - What is appended later and is older has a lower (incarnation, partition version), or comes from
    the same node and session and is refused as a resend. The snapshot carries the highest pair of
    each partition up to `settled`, and readers void what is lower above its marks
    (`PartitionVersions`).
  - Embedded stores have no such pairs: there, no node but the tombstone's own may be open.
Otherwise it is kept, and a later rewrite decides again. A clear (`imap_wal.read.newest.clears`)
counts as a tombstone here; what it hides is dropped, whether the clear is kept or not. Expired
entries follow the same rule, some minutes after they expired: the clock of this machine may differ
from the storage's by so much.

Keys that several nodes claim (`imap_wal.read.newest.rivals`) keep all their claims in the snapshot,
tombstones and expired ones too, until `resolve` decides or something newer is written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Protocol, TypeAlias

from imap_wal import layout
from imap_wal.entry import DELETED, EXPIRES_AT_MS, ORDER, PARTITION, TIMESTAMP_MS, Row, subject
from imap_wal.errors import InvalidSetting, LostRace
from imap_wal.format import START, Position
from imap_wal.manifest.cluster import NO_VERSIONS, ClusterManifest, PartitionVersions, Snapshot
from imap_wal.parquet.file import written_otherwise
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.file_scan import EntryBatch
from imap_wal.read.state import ClusterState
from imap_wal.rewrite.conflicts import UNDECIDED, Decisions
from imap_wal.settings import RecoveryPolicy
from imap_wal.storage_clock import SKEW_MS_MAX
from storage_backends import SegmentStore

ATTEMPTS = 3

LIVE, KEEP, DROP = "live", "kept", "gone"

Subject: TypeAlias = tuple[str, bytes | tuple[int, int]]
"""A key of a map, or one of its partitions (`imap_wal.entry.subject`)."""


@dataclass(frozen=True, slots=True)
class TombstonePolicy:
    """Which newest rows a snapshot holds. `open_nodes`: of embedded stores, those that may append
    more; empty in a cluster of members."""

    now_ms: int
    complete: bool
    open_nodes: frozenset[str] = frozenset()
    skew_ms_max: int = SKEW_MS_MAX

    def expired(self, expires_at_ms: int) -> bool:
        """Whether it has expired by every clock that differs by no more than is allowed."""
        return 0 < expires_at_ms <= self.now_ms - self.skew_ms_max

    def decide(self, row: Row, node: str, late: bool) -> str:
        """LIVE, KEEP (a tombstone that must stay) or DROP. `late`: it was appended after the logs
        were looked at the first time."""
        if not row[DELETED] and not self.expired(row[EXPIRES_AT_MS]):
            return LIVE
        return DROP if self.complete and not late and self.open_nodes <= {node} else KEEP


@dataclass(frozen=True, slots=True)
class RewritePlan:
    """All an engine needs to know; it can be sent to another process. `generations` is empty for a
    dry run."""

    url: str
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
    """What was known of partitions before the first look; the pairs that are read up to it are
    added. None: this rewrite may not add any."""
    decisions: Decisions = UNDECIDED
    """Which of two nodes' claims counts, of keys in conflict."""

    def part_path(self, name: str, partition: int, number: int, token: str) -> str:
        """`token` makes the name one that no other attempt at the same work uses."""
        folder = layout.snapshot_folder(self.folder, name, self.generation)
        return f"{folder}/part-{partition:05d}-{number:05d}-{token}.parquet"

    def wants(self, name: str) -> bool:
        return self.maps is None or name in self.maps


@dataclass(frozen=True, slots=True)
class Part:
    """One file of a new snapshot: file `number` of the range of keys `partition`. `last_expiry_ms`
    as in `Snapshot`."""

    path: str
    live: int
    tombstones: int
    bytes: int
    checksum: int
    partition: int = 0
    number: int = 0
    last_expiry_ms: int = 0
    conflicts: int = 0
    """Keys that several nodes claim, without a decision: the claims that lost are kept too, and
    count as tombstones."""
    clears: bool = False
    """There are clears in it; they count as tombstones."""

    @property
    def rows(self) -> int:
        return self.live + self.tombstones


@dataclass(frozen=True, slots=True)
class Merged:
    """One map as an engine left it, its parts in key order. `read_bytes` counts what was read of
    segments. No `parts` and `unchanged`: nothing new was in the logs, and the former snapshot has
    nothing to be rid of (`worth_reading`)."""

    map: str
    records: int
    read_bytes: int
    parts: tuple[Part, ...]
    unchanged: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """What an engine found and wrote. `pairs`: partition → highest pair of entries at or below
    `settled`, for a job with `versions`."""

    maps: tuple[Merged, ...]
    pairs: tuple[tuple[int, tuple[int, int]], ...] = ()


class Engine(Protocol):
    """Merges what a job names and writes part files (of a dry run: measures and discards them)."""

    name: str

    def run(self, job: RewritePlan, log: ClusterLog) -> Result: ...


def worth_reading(job: RewritePlan, snapshot: Snapshot, store: SegmentStore) -> bool:
    """Whether a snapshot to which nothing was added may get smaller, or is not encrypted with the
    key that writes now."""
    if snapshot.tombstones > 0 or job.rule.expired(snapshot.last_expiry_ms):
        return True
    return any(written_otherwise(store, path) for path in snapshot.files)


@dataclass(slots=True)
class Totals:
    """What was read of one map."""

    records: int = 0
    bytes: int = 0


class Tally:
    """Counts what goes into a merge, remembers tombstones that came after the first look at the
    logs, and the highest pair of each partition before it."""

    def __init__(self, job: RewritePlan) -> None:
        self._settled, self._pairs_wanted = job.settled, job.versions is not None
        self.maps: dict[str, Totals] = {}
        self.late: set[Subject] = set()
        self.pairs: dict[int, tuple[int, int]] = {}

    def add(self, changes: EntryBatch, *, count_bytes: bool, settled: bool = False) -> None:
        """A batch; `settled` when it is of a snapshot."""
        rows = changes.rows
        counts = Counter(map(itemgetter(0), rows))
        for name, count in counts.items():
            totals = self.maps.setdefault(name, Totals())
            totals.records += count
            if count_bytes:
                totals.bytes += changes.bytes * count // len(rows)
        if settled:
            # A tombstone that an earlier rewrite kept may be dropped now, and is no longer in a
            # log.
            self._learn([row for row in rows if row[DELETED] or row[EXPIRES_AT_MS]])
        elif changes.last > self._settled.get(changes.node, START):
            self.late.update(subject(row) for row in rows if row[DELETED] or row[EXPIRES_AT_MS])
        else:
            self._learn(rows)

    def _learn(self, rows: Iterable[Row]) -> None:
        """Record the pairs of rows that existed before the first look."""
        if self._pairs_wanted:
            raise_versions(self.pairs, rows)


def raise_versions(pairs: dict[int, tuple[int, int]], rows: Iterable[Row]) -> None:
    for partition, incarnation, version in {
        (row[PARTITION], row[ORDER][0], row[ORDER][1]) for row in rows
    }:
        if pairs.get(partition, (-1, -1)) < (incarnation, version):
            pairs[partition] = incarnation, version


def prepare(
    log: ClusterLog,
    *,
    maps: Collection[str] | None = None,
    as_of_ms: int | None = None,
    policy: RecoveryPolicy = RecoveryPolicy.FULL,
    dry_run: bool = False,
    skew_ms_max: int = SKEW_MS_MAX,
) -> RewritePlan:
    """Look at the logs twice and fix what a rewrite covers. `as_of_ms`: only what was written until
    then; what is newer stays in the log as it is. `MissingNode`, `LogError`; `InvalidSetting` for a
    time that an earlier rewrite has made untellable."""
    before, settled, until, state = _look_twice(log)
    state.demand(policy)
    until = {node: until.get(node, START) for node in state.nodes}
    complete = not state.missing
    now_ms = log.clock.now_ms()
    if as_of_ms is not None and as_of_ms < now_ms:
        demand_history(state, as_of_ms, maps)
        until = {node: min(until[node], _last_until(log, state, node, as_of_ms)) for node in until}
        settled = until
        now_ms = as_of_ms
        # The cuts were not made at one moment, and what was known of partitions is newer than they
        # are.
        complete = False
    members = is_of_members(state.manifest)
    generation = 0
    if not dry_run:
        generation = log.manifests.update(
            lambda manifest: replace(manifest, generation=manifest.generation + 1)
        ).generation
    return RewritePlan(
        url=log.store.url,
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
            else frozenset(node for node, found in state.nodes.items() if not found.manifest.clean),
            skew_ms_max,
        ),
        generation=generation,
        dry_run=dry_run,
        as_of_ms=as_of_ms,
        versions=known_versions(before) if complete and members else None,
    )


def _look_twice(
    log: ClusterLog,
) -> tuple[ClusterManifest, dict[str, Position], dict[str, Position], ClusterState]:
    """The manifest, the ends of all logs, the ends again, the state. No snapshot is published in
    between: so its tables were true before the first look, and its marks are not above the
    second."""
    for _ in range(ATTEMPTS):
        before = log.manifest()
        settled = log.ends()
        until = log.ends(settled)
        state = log.state()  # after the ends: its listings have all files up to them
        if state.manifest.snapshots == before.snapshots:
            return before, settled, until, state
    raise LostRace(
        f"other rewrites were published {ATTEMPTS} times while this one looked at the logs; "
        "run it again when they are done"
    )


def is_of_members(manifest: ClusterManifest) -> bool:
    """Whether Hazelcast members write this log: only their changes have partition versions."""
    return bool(manifest.claims or manifest.lifetimes)


def known_versions(manifest: ClusterManifest) -> PartitionVersions:
    known = NO_VERSIONS
    for table in manifest.versions.values():
        known = known.raised(table.pairs.items())
    return known


def demand_history(state: ClusterState, as_of_ms: int, maps: Collection[str] | None = None) -> None:
    """`InvalidSetting` when a snapshot has replaced changes that are needed to tell how a map stood
    at `as_of_ms`."""
    for name, snapshot in state.manifest.snapshots.items():
        if (maps is None or name in maps) and snapshot.until_ms > as_of_ms:
            raise InvalidSetting(
                f"map {name!r} was rewritten as of {snapshot.until_ms} (Unix ms): how it "
                f"stood at {as_of_ms} is no longer known"
            )


def _last_until(log: ClusterLog, state: ClusterState, node: str, as_of_ms: int) -> Position:
    """The position before the first entry of a node that is newer than `as_of_ms`; entries of one
    commit stay together."""
    newer: Position | None = None
    for changes in log.changes(
        nodes=(node,), snapshots=False, positions=True, policy=RecoveryPolicy.PARTIAL, state=state
    ):
        if changes.rows and max(row[TIMESTAMP_MS] for row in changes.rows) > as_of_ms:
            first = min(
                place
                for row, place in zip(changes.rows, changes.positions or (), strict=True)
                if row[TIMESTAMP_MS] > as_of_ms
            )
            newer = first if newer is None else min(newer, first)
    return (
        Position(2**62, 0, 0, 0)
        if newer is None
        else newer._replace(frame=newer.frame - 1, index=0)
    )
