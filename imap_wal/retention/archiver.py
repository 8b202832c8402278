"""Writes archives in a separate process (`imap_wal.retention.other_process`).

    archive_sealed: manifest, listing, job ─▶ reads segments, writes and stores Parquet files
    names them in the manifest ◀────────────  what it wrote

The files count only when this process names them in the manifest. A small amount is archived in
this process, because starting another one would take longer. The command `imap-wal archive` uses
several processes, each for some of the segments (`in_processes`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from imap_wal.clock import SystemRandomness
from imap_wal.context import Context
from imap_wal.read.file_scan import FileScan
from imap_wal.retention.archive_writer import ArchiveJob, Write, WrittenArchives, write_archives
from imap_wal.retention.other_process import OtherProcess, Report, is_reachable
from imap_wal.retention.processes import begin, processes
from storage_backends.location import Location

HERE_BYTES_MAX = 1024 * 1024
"""Up to this size, segments are archived in this process."""


@dataclass(frozen=True, slots=True)
class _Archiving:
    job: ArchiveJob

    @property
    def folder(self) -> Path:
        return self.job.folder

    def run(self, context: Context, report: Report) -> WrittenArchives:
        return write_archives(context, self.job)


class ArchiverProcess(OtherProcess):
    """Writes archives with a process for each run."""

    def write(self, context: Context, job: ArchiveJob) -> WrittenArchives:
        """`write_archives` in another process. Raises the same errors, and those of
        `OtherProcess.run`."""
        if job.bytes <= HERE_BYTES_MAX:
            return write_archives(context, job)
        written: WrittenArchives = self.run(_Archiving(job))
        return written


def writer_for(place: Location) -> ArchiverProcess | None:
    """An archiver for this storage; None if another process cannot open it."""
    return ArchiverProcess(place) if is_reachable(place) else None


PORTION_BYTES_MIN = 64 * 1024 * 1024
"""A process of `in_processes` reads at least this much, because it writes its own files for each
map."""


@contextmanager
def in_processes(place: Location, count: int) -> Iterator[Write]:
    """`write_archives` in up to `count` other processes, which are kept for all runs within the
    block. It raises the same errors, and `ProcessDied`."""
    if count < 2 or not is_reachable(place):
        yield write_archives
        return
    with (
        tempfile.TemporaryDirectory(
            prefix="imap-wal-archive-", ignore_cleanup_errors=True
        ) as folder,
        processes(place, count, Path(folder)) as others,
    ):

        def write(context: Context, job: ArchiveJob) -> WrittenArchives:
            portions = portions_of(job, count)
            if len(portions) < 2:
                return write_archives(context, job)
            by_number = dict(others.run([partial(_Portion, portion) for portion in portions]))
            return joined([by_number[number] for number in range(len(portions))])

        yield write


def portions_of(job: ArchiveJob, count: int) -> list[ArchiveJob]:
    """A job cut into at most `count` jobs, each with consecutive segments. Readable columns need
    the schemas of all earlier segments, so such a job is not cut."""
    total = sum(scan.bytes for scan in job.scans)
    count = min(count, total // PORTION_BYTES_MIN)
    if count < 2 or job.decoded:
        return [job]
    groups: list[list[FileScan]] = [[]]
    done = 0
    for scan in job.scans:
        if done * count >= total * len(groups):
            groups.append([])
        groups[-1].append(scan)
        done += scan.bytes
    # Only the first job absorbs: a new archive must begin where the absorbed ones end.
    absorbs = [job.archives, *(() for _ in groups[1:])]
    return [
        replace(job, scans=tuple(group), archives=archives)
        for group, archives in zip(groups, absorbs, strict=True)
    ]


def joined(portions: Sequence[WrittenArchives]) -> WrittenArchives:
    """The results of portions, in the order of the log."""
    first, *others = portions
    for other in others:
        first.summary.join(other.summary)
    return WrittenArchives(
        tuple(archive for portion in portions for archive in portion.archives),
        first.absorbed,
        first.summary,
    )


@dataclass(frozen=True, slots=True)
class _Portion:
    """A part of a job, for `Processes`. Each attempt gives its files other names, because encrypted
    files differ each time."""

    job: ArchiveJob
    folder: Path

    def run(self, context: Context, report: Report) -> WrittenArchives:
        begin(self.folder)
        nonce = self.job.nonce + SystemRandomness().token().hex()[:8]
        return write_archives(context, replace(self.job, folder=self.folder, nonce=nonce))
