"""The local rewrite engine: one machine, by columns, with bounded memory.

    logs, then touched ranges of snapshots ─▶ `ColumnMerge` ─▶ part files   `PartWriter`

The logs are read before the snapshots. So the snapshot of an unchanged map is not read, and of a
changed map only the files whose key ranges have new entries (`imap_wal.rewrite.ranges`). This is
done in one process. If several processes are allowed and useful, they do the tasks of ranges
instead (`imap_wal.rewrite.processes`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from imap_wal.read.cluster import ClusterLog
from imap_wal.read.scan import ahead
from imap_wal.read.scan_list import snapshot_scans
from imap_wal.read.statistics import MergeProgress
from imap_wal.retention.overlap import Overlap
from imap_wal.rewrite.columns.merge import ColumnMerge, scratch_errors
from imap_wal.rewrite.part_writer import KeyRange, PartWriter
from imap_wal.rewrite.plan import Merged, Result, RewritePlan, worth_reading
from imap_wal.rewrite.processes import ProcessEngine, useful_processes
from imap_wal.rewrite.ranges import KeptPart, kept_parts, parts_of
from imap_wal.rewrite.tally import Totals
from imap_wal.settings import Settings


class LocalEngine:
    """See the module. Memory: about `settings.restore_memory_bytes`, and about 100 MB more for each
    process; the rest is written to `settings.scratch`. `run` raises `StorageUnavailable` if that
    folder is full or fails, and the errors of reading the log and of `ProcessEngine`."""

    name = "local"

    def __init__(
        self,
        settings: Settings | None = None,
        progress: Callable[[MergeProgress], None] | None = None,
        processes: int = 1,
    ) -> None:
        """`processes`: how many may work at the same time, at most."""
        self._settings = settings or Settings()
        self._progress = progress
        self._processes = processes

    def run(self, plan: RewritePlan, log: ClusterLog) -> Result:
        count = useful_processes(plan, self._settings, self._processes)
        if count > 1:
            return ProcessEngine(self._settings, count, self._progress).run(plan, log)
        with (
            scratch_errors(self._settings),
            closing(ColumnMerge(plan, log, self._settings)) as merge,
        ):
            return self._run(merge, plan, log)

    def _run(self, merge: ColumnMerge, plan: RewritePlan, log: ClusterLog) -> Result:
        scans = plan.log_scans()
        total, done = sum(scan.bytes for scan in scans), 0
        for count, (scan, context) in enumerate(ahead(log.context, scans)):
            merge.read_log(scan, context)
            done += scan.bytes
            if self._progress is not None:
                self._progress(MergeProgress(count + 1, len(scans), done, total, merge.records))
        merge.sources.flush()
        merged: list[Merged] = []
        tally = merge.tally
        touched = set(tally.maps)
        kept_by_map: dict[str, tuple[KeptPart, ...]] = {}
        for name, snapshot in sorted(plan.state.manifest.snapshots.items()):
            if not plan.wants(name):
                continue
            if name not in touched and not worth_reading(plan, snapshot, log.context):
                merged.append(Merged(name, 0, 0, (), unchanged=True))
                continue
            if name not in merge.cleared:
                parts = parts_of(snapshot, log.context.keys)
                kept_by_map[name] = kept_parts(plan, parts, merge.keys.keys(name), log.context)
            paths = {kept_part.part.path for kept_part in kept_by_map.get(name, ())}
            for scan in snapshot_scans(name, snapshot):
                if scan.path not in paths:
                    merge.read_snapshot(scan)
            touched.add(name)
        merge.sources.flush()
        writers: dict[str, PartWriter] = {}
        with (
            tempfile.TemporaryDirectory(
                prefix="imap-wal-rewrite-", dir=self._settings.scratch, ignore_cleanup_errors=True
            ) as folder,
            Overlap[None]() as publishing,
        ):
            for name in sorted(touched):
                writers[name] = writer = PartWriter(
                    log.context,
                    plan,
                    name,
                    Path(folder),
                    KeyRange(kept=kept_by_map.get(name, ())),
                    log.randomness,
                    publishing.run,
                )
                writer.add_clears(merge.cleared.claims(name), merge.tally.late)
                merge.write(name, writer)
                writer.end()
            publishing.results()
        for name, writer in writers.items():
            totals = tally.maps.get(name, Totals())
            merged.append(Merged(name, totals.records, totals.bytes, writer.parts()))
        return Result(tuple(merged), tuple(tally.pairs.items()))
