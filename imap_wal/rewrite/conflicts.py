"""Conflicts: two nodes have a change of one key with the same pair (incarnation, partition
version), and no change of it is newer (`imap_wal.read.newest.rivals`). The cause is a split
network, or a copied node directory.

    find      partitions with a pair that two nodes claim ─▶ the keys in conflict in them
    decide    `Resolution`: which claim wins ─▶ `Decisions`, which a merge applies to each row
    aside     the losing claims, kept as Parquet beside the log

Until an operator decides, every reader uses the same claim, and a rewrite keeps all claims.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from imap_wal.entry import DELETED, KEY, MAP, ORDER, PARTITION, TIMESTAMP_MS, Pair
from imap_wal.errors import InvalidSetting
from imap_wal.format import Position
from imap_wal.layout import set_aside_folder
from imap_wal.manifest.cluster import ClusterManifest
from imap_wal.names import map_component
from imap_wal.parquet.columns import SNAPSHOT_SCHEMA, to_batch
from imap_wal.parquet.writer import ParquetFile
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.file_scan import EntryBatch, Scope
from imap_wal.read.newest.index import NewestIndex
from imap_wal.read.newest.rivals import RivalClaims
from imap_wal.read.scan import read_scan
from imap_wal.read.scan_list import cluster_scans
from imap_wal.read.state import ClusterState
from imap_wal.rewrite.report import Winner
from imap_wal.rules.decided import Decisions
from imap_wal.rules.newer import Claim
from imap_wal.security.encryption_keys import Keys
from imap_wal.settings import RecoveryPolicy, Settings
from storage_backends import NotFound

NEWEST = "newest"
SHOWN_MAX = 100
WINNERS_MAX = 10
"""Decided keys that a report names, for each map."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """The rule that decides which claim wins: the claim of `node`, if it has one; otherwise, unless
    `alone`, the one with the latest timestamp. The result depends only on the claims."""

    node: str = ""
    alone: bool = False

    @classmethod
    def parse(cls, text: str) -> Resolution:
        """The resolution from `newest` or `node=NAME`. Raises `InvalidSetting`."""
        kind, _, node = text.partition("=")
        if text == NEWEST:
            return cls()
        if kind == "node" and node:
            return cls(node)
        raise InvalidSetting(f"--resolve is {text!r}; it takes newest or node=NAME")

    def winner(self, claims: Sequence[Claim]) -> Claim | None:
        """The claim that wins; None: this resolution does not decide."""
        if self.alone and all(node != self.node for _, node in claims):
            return None

        def rank(claim: Claim) -> tuple[bool, int, tuple[int, int, int, int], str]:
            row, node = claim
            return node == self.node, row[TIMESTAMP_MS], row[ORDER], node

        return max(claims, key=rank)


def find(
    log: ClusterLog,
    *,
    maps: Collection[str] | None = None,
    state: ClusterState | None = None,
    until: Mapping[str, Position] | None = None,
    settings: Settings | None = None,
    check: Callable[[], None] = lambda: None,
) -> Iterator[RivalClaims]:
    """All conflicts, map by map in key order. Reads the log once, and a second time only if two
    nodes claim the same version of a partition. `check` is called for every batch, and may
    raise."""
    settings = settings or Settings()
    state = state or log.state()
    if len(writers(state.manifest)) < 2:
        return
    if until is None:
        until = log.ends(state=state.demand(RecoveryPolicy.PARTIAL))
    claimed = _claimed_twice(log, maps, state, until, check)
    if not claimed:
        return
    index = NewestIndex(settings.restore_memory_bytes, settings.scratch)
    try:
        for changes in _changes(log, maps, state, until, check):
            rows = [row for row in changes.rows if row[PARTITION] in claimed]
            if rows:
                index.add(changes.node, rows, clears=changes.clears)
        for name in index.maps():
            for _, _, conflicts in index.batches_with_rivals(name):
                check()
                yield from conflicts.values()
    finally:
        index.close()


def found(
    log: ClusterLog,
    *,
    maps: Collection[str] | None = None,
    check: Callable[[], None] = lambda: None,
    resolution: Resolution | None = None,
) -> list[str]:
    """The conflicts as text, with files and positions: the first `SHOWN_MAX`, then the number of
    the others. Omits conflicts that `resolution` decides."""
    conflicts: list[RivalClaims] = []
    more = 0
    for conflict in find(log, maps=maps, check=check):
        if resolution is not None and resolution.winner(conflict.claims) is not None:
            continue
        if len(conflicts) < SHOWN_MAX:
            conflicts.append(conflict)
        else:
            more += 1
    if not conflicts:
        return []
    orders = {
        (claim[1], conflict.map, conflict.key): claim[0][ORDER]
        for conflict in conflicts
        for claim in conflict.claims
    }
    places: dict[tuple[str, str, bytes], str] = {}
    maps = {conflict.map for conflict in conflicts}
    for scan in cluster_scans(log.state(), maps=maps):
        with suppress(NotFound):  # it was archived meanwhile: the text has no position
            for changes in read_scan(log.context, scan, maps, positions=True):
                check()
                for index, row in enumerate(changes.rows):
                    key = (changes.node, row[MAP], row[KEY])
                    if orders.get(key) == row[ORDER]:
                        places[key] = scan.path + (
                            f" at {changes.positions[index]}" if changes.positions else ""
                        )
    said = [conflict.text(places) for conflict in conflicts]
    return [*said, f"and {more} more keys"] if more else said


def decide(
    conflicts: Iterable[RivalClaims], resolution: Resolution, aside: Aside | None = None
) -> Decisions:
    """Decide each conflict, and put the losing claims aside."""
    winners: dict[tuple[str, bytes], tuple[Pair, str]] = {}
    for conflict in conflicts:
        winner = resolution.winner(conflict.claims)
        if winner is None:
            continue
        winners[conflict.map, conflict.key] = (conflict.pair, winner[1])
        if aside is not None:
            lost = [claim for claim in conflict.claims if claim is not winner]
            aside.add(conflict, winner, lost)
    return Decisions(winners)


class Aside:
    """Losing claims, in one Parquet file per map, `{cluster}/set-aside/{map}/…`, with the columns
    of a snapshot. A context manager; `publish` stores the files."""

    def __init__(self, encryption: Keys, scratch: Path | None = None) -> None:
        """`encryption`: the keys for the files. `scratch`: local folder for temporary files."""
        self._encryption = encryption
        self._folder = tempfile.TemporaryDirectory(
            prefix="imap-wal-aside-", dir=scratch, ignore_cleanup_errors=True
        )
        self._files: dict[str, ParquetFile] = {}
        self.keys: Counter[str] = Counter()
        """Map → number of decided keys."""
        self.winners: dict[str, list[Winner]] = {}
        """Map → the first of them."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def add(self, conflict: RivalClaims, winner: Claim, claims: Sequence[Claim]) -> None:
        """`claims`: those that lost."""
        name, (row, node) = conflict.map, winner
        winners = self.winners.setdefault(name, [])
        if len(winners) < WINNERS_MAX:
            over = tuple(node for _, node in claims)
            winners.append(
                Winner(conflict.key_text, node, row[TIMESTAMP_MS], bool(row[DELETED]), over)
            )
        file = self._files.get(name)
        if file is None:
            file = self._files[name] = ParquetFile(
                Path(self._folder.name), SNAPSHOT_SCHEMA, self._encryption
            )
        rows = [row for row, _ in claims]
        file.write(to_batch(rows, [node for _, node in claims]), sum(row[DELETED] for row in rows))
        self.keys[name] += 1

    def publish(self, log: ClusterLog, generation: int) -> dict[str, str]:
        """Store the files. Returns map → path of its file."""
        paths = {}
        for name, file in self._files.items():
            token = log.randomness.name()
            paths[name] = (
                f"{set_aside_folder(log.folder)}/{map_component(name)}/"
                f"{generation:08d}-{token}.parquet"
            )
            file.publish(log.store, paths[name])
        return paths


def writers(manifest: ClusterManifest) -> set[str]:
    """Nodes whose entries may exist, including forgotten nodes with entries in snapshots."""
    return manifest.nodes.keys() | {
        node for snapshot in manifest.snapshots.values() for node in snapshot.marks
    }


def _changes(
    log: ClusterLog,
    maps: Collection[str] | None,
    state: ClusterState,
    until: Mapping[str, Position],
    check: Callable[[], None],
) -> Iterator[EntryBatch]:
    for changes in log.changes(
        maps, Scope(until=until), policy=RecoveryPolicy.PARTIAL, state=state
    ):
        check()
        yield changes


def _claimed_twice(
    log: ClusterLog,
    maps: Collection[str] | None,
    state: ClusterState,
    until: Mapping[str, Position],
    check: Callable[[], None],
) -> set[int]:
    """Partitions with a pair that two nodes claim."""
    owners: dict[tuple[int, int, int], str] = {}
    partitions: set[int] = set()
    for changes in _changes(log, maps, state, until, check):
        for place in {(row[PARTITION], row[ORDER][0], row[ORDER][1]) for row in changes.rows}:
            if owners.setdefault(place, changes.node) != changes.node:
                partitions.add(place[0])
    return partitions
