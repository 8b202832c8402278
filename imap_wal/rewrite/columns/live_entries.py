"""The live entries of some files, by columns: for readers that need the newest of each key once,
in key order."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from imap_wal.format import END, Position
from imap_wal.manifest.snapshots import PartitionVersions
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.file_scan import SNAPSHOT, FileScan
from imap_wal.read.scan import ahead
from imap_wal.rewrite.columns.merge import ALL_KEYS, ColumnMerge, MergeSpan
from imap_wal.rules.alive import are_alive
from imap_wal.rules.decided import UNDECIDED, Decisions
from imap_wal.rules.dropped import TombstonePolicy
from imap_wal.settings import Settings
from storage_backends import NotFound

NO_INCARNATION = 2**63 - 1
"""Above those of all entries."""


@dataclass(frozen=True, slots=True)
class _Rules:
    """Of a merge for a read (`imap_wal.rewrite.plan.MergeRules`): only live entries are needed."""

    maps: frozenset[str] | None
    settled: Mapping[str, Position]
    rule: TombstonePolicy
    versions: PartitionVersions | None = None
    decisions: Decisions = UNDECIDED


def live_entries(
    log: ClusterLog,
    scans: Iterable[FileScan],
    now_ms: int,
    settings: Settings,
    *,
    maps: Collection[str] = (),
    without: Collection[str] = (),
    span: MergeSpan = ALL_KEYS,
    newest_ms: int | None = None,
) -> Iterator[Any]:
    """Record batches with `SNAPSHOT_SCHEMA`. `maps`: only these; (): all but those of `without`.
    `newest_ms`: later entries are left out. Memory: about `settings.restore_memory_bytes`. Raises
    `NotFound` if the entries were removed, `ShortLog` if a file is missing, `MissingNode`, and
    `LogError`."""
    scans = list(scans)
    rules = _Rules(
        frozenset(maps) or None,
        dict.fromkeys((scan.node for scan in scans), END),
        TombstonePolicy(now_ms, complete=True, skew_ms_max=0, current=NO_INCARNATION),
    )
    try:
        with closing(ColumnMerge(rules, log, settings, span=span, newest_ms=newest_ms)) as merge:
            for scan, source in ahead(log.context, scans):
                if scan.kind == SNAPSHOT and scan.keys is None:
                    merge.read_snapshot(scan)
                else:
                    merge.read_log(scan, source)
            merge.sources.flush()
            for name in sorted(merge.tally.maps.keys() - without):
                for batch in merge.winners(name):
                    alive = batch.filter(are_alive(batch, now_ms))
                    if len(alive):
                        yield alive
    except NotFound as error:
        raise log.lost(error) from error
