"""A rewrite engine that runs its last step twice at once, as Spark does with a task that is slow.

The merge is that of `LocalEngine`; the rows then go through
`pyspark_imap_wal.rewrite_engine._write`, the real task, in two tasks of one partition. The result
of the first that ends counts; the other keeps running.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from imap_wal.read.cluster import ClusterLog
from imap_wal.read.file_scan import SEGMENT
from imap_wal.read.newest.clears import Cleared
from imap_wal.read.newest.index import NewestIndex
from imap_wal.read.scan import read_scan
from imap_wal.read.scan_list import cluster_scans, snapshot_scans
from imap_wal.rewrite.plan import Merged, Result, RewritePlan, Tally, worth_reading
from pyspark_imap_wal import rewrite_engine
from tests.simulation.executors import executor
from tests.simulation.parquet import to_record_batch
from tests.simulation.threads import Event


class TwoAttempts:
    name = "spark"

    def __init__(self, actor: Any, kills: bool) -> None:
        self._actor, self._kills = actor, kills

    def run(self, job: RewritePlan, log: ClusterLog) -> Result:
        index = NewestIndex(1 << 30)
        tally = Tally(job)
        for scan in cluster_scans(job.state, until=job.until, maps=job.maps, snapshots=False):
            for changes in log.read_on(scan, job.maps):
                if changes.rows:
                    tally.add(changes, count_bytes=scan.kind == SEGMENT)
                    index.add(changes.node, changes.rows, changes.bytes, clears=changes.clears)
        merged: list[Merged] = []
        touched = set(tally.maps)
        for name, snapshot in sorted(job.state.manifest.snapshots.items()):
            if name not in touched and not worth_reading(job, snapshot, log.store):
                merged.append(Merged(name, 0, 0, (), unchanged=True))
                continue
            for scan in snapshot_scans(name, snapshot):
                for changes in read_scan(log.store, scan):
                    tally.add(changes, count_bytes=False, settled=True)
                    index.add(changes.node, changes.rows, changes.bytes, clears=changes.clears)
            touched.add(name)
        batches = []
        for name in sorted(touched):
            for rows, nodes in index.batches_with_nodes(name, ordered=True):
                batch = to_record_batch(rows, nodes)
                late = [(name, row[1]) in tally.late for row in rows]
                columns = [*batch.columns, pa.array(late, pa.bool_())]
                names = [*batch.schema.names, "late"]
                batches.append(pa.RecordBatch.from_arrays(columns, names=names))
        parts = rewrite_engine.taken(self._write(job, batches))
        for name in sorted(touched):
            totals = tally.maps[name]
            clears = rewrite_engine.clears_part(log, job, name, index.clears(name), tally.late, 99)
            written = (*clears, *parts.get(name, ()))
            merged.append(Merged(name, totals.records, totals.bytes, written))
        return Result(tuple(merged), tuple(tally.pairs.items()))

    def _write(self, job: RewritePlan, batches: list[Any]) -> list[dict[str, Any]]:
        actor = self._actor
        done = Event()
        answers: list[Any] = []
        failures: list[BaseException] = []

        def attempt() -> None:
            answer = next(iter(rewrite_engine._write(job, Cleared())(iter(batches))))
            rows = answer.to_pylist()
            errors = [row["error"] for row in rows if row["error"]]
            if errors:
                failures.append(rewrite_engine._thaw(errors[0]))
            else:
                answers.append(rows)
            if answers or len(failures) == 2:
                done.set()

        executors = [
            executor(
                actor,
                f"attempt {number}",
                partition=0,
                seed=job.generation * 4 + number,
                offset_ms=actor.spec.offset_ms,
            )
            for number in (1, 2)
        ]
        for each in executors:
            actor.world.spawn(each, each.name, attempt)
        done.wait()
        if self._kills:  # as Spark does with those that are no longer needed
            for each in executors:
                if not each.dead:
                    actor.world.kill(each)
        if not answers:
            raise failures[0]
        return list(answers[0])
