"""Writes archives in a separate process (`imap_wal.retention.other_process`).

    archive_sealed: manifest, listing, job ─▶ reads segments, writes and stores Parquet files
    names them in the manifest ◀────────────  what it wrote

The files count only when this process names them in the manifest. A small amount is archived in
this process, because starting another one would take longer.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from imap_wal.context import Context
from imap_wal.retention.archive_writer import ArchiveJob, WrittenArchives, write_archives
from imap_wal.retention.other_process import OtherProcess, Report, is_reachable
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
