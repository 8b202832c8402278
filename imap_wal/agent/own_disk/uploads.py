"""Copies the sealed segments of an agent's own disk to the root.

    sealed segment ─▶ root: create, exclusive and whole ─▶ read back, compare checksums ─▶ next one

If they differ, their frames decide (`imap_wal.segment.copies`): the copy in the root is deleted and
made again if the one on the disk is whole. If not, uploads stop with an error.

The oldest is copied first, so the segments in the root have no gaps. A run that was killed is
repeated: a segment that is in the root already has the same name, and only the last one may be
unchecked. A segment is kept on the disk until it is archived: reading it there is faster.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from imap_wal import layout
from imap_wal.clock import Clock, Randomness
from imap_wal.disposal import dispose
from imap_wal.errors import LogError
from imap_wal.placement.router import OwnDiskStore
from imap_wal.segment.copies import checksum, demand_disk_is_right
from imap_wal.segment.reader import SegmentReader
from imap_wal.tracing import span
from imap_wal.worker import Worker
from imap_wal.write.node_log import NodeLog
from storage_backends import (
    AlreadyExists,
    NotFound,
    StorageError,
    StoredFile,
    Unavailable,
)
from storage_backends.paths import local_folder

LOOK_S = 0.5
"""How often to look for a sealed segment. The storage is read only if there is one."""
PAUSE_S, PAUSE_S_MAX = 1.0, 120.0
"""The pause after a failed run; it doubles each time, up to the maximum. A run that brought a
segment to the root begins again with the first pause. A random part of up to a half is added or
left out: agents that lost the same storage do not all return at once."""

_log = structlog.get_logger("imap_wal.agent")


@dataclass(frozen=True, slots=True)
class UploadStatistics:
    """What only the node's own disk has, including the segment that is being written: `bytes`, and
    `seconds` since the oldest of its segments was begun. Both grow while the root cannot be read;
    until it was read once, all segments on the disk count. `uploaded`, `uploaded_bytes`: segments
    since the log was opened. `failures`: failed runs; `error`: why the last run failed, or ""."""

    bytes: int = 0
    seconds: float = 0.0
    uploaded: int = 0
    uploaded_bytes: int = 0
    failures: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Sealed segments that are not in the root. `since_ms`: Unix time when the first was begun."""

    bytes: int = 0
    since_ms: int = 0


class Uploads:
    """The uploads of one open log. `run` belongs to its thread, or to the caller of `finish`."""

    def __init__(
        self, store: OwnDiskStore, log: NodeLog, clock: Clock, randomness: Randomness
    ) -> None:
        assert store.disk is not None
        self._store, self._root, self._disk = store, store.root, store.disk
        self._log, self._clock, self._randomness = log, clock, randomness
        self._folder = f"{store.own}/wal"
        self._below = 0
        """All segments with a lower number were looked at, and are in the root."""
        self._checked = False
        """Whether the last uploaded segment was compared with the disk, since the agent started and
        since the last run that failed."""
        self._waiting = _Waiting()
        self._in_root: dict[str, int] | None = None
        """Path → size of the segments that are known to be in the root; None: it was not read."""
        self._archived = (0, 0)
        self._oldest = ("", 0)
        """Path of the oldest waiting segment, and Unix time in ms when it was begun."""
        self._advanced = False
        """Whether the last run found or brought a segment in the root that was not known there."""
        self._uploaded = self._uploaded_bytes = self._failures = 0
        self._error = ""
        self._failed_in_a_row, self._pause = 0, 0.0
        self._wake = threading.Event()
        self.worker = Worker("imap-wal-uploads", self._turn)

    @property
    def statistics(self) -> UploadStatistics:
        """Safe to read from any thread."""
        waiting, log = self._waiting, self._log
        unsealed, age_s = log.unsealed_bytes, log.age_s
        seconds = (
            max(0.0, (self._clock.now_ms() - waiting.since_ms) / 1000)
            if waiting.bytes
            else age_s
            if unsealed
            else 0.0
        )
        return UploadStatistics(
            waiting.bytes + unsealed,
            seconds,
            self._uploaded,
            self._uploaded_bytes,
            self._failures,
            self._error,
        )

    def finish(self, timeout_s: float) -> None:
        """End the thread, and upload what is sealed, for at most `timeout_s`; 0: only end the
        thread, without waiting for it."""
        self.worker.stopping.set()
        self._wake.set()
        until = self._clock.monotonic() + timeout_s
        if not self.worker.stop(timeout_s) or not timeout_s:
            return
        try:
            self.run(lambda: self._clock.monotonic() >= until)
        except (StorageError, LogError) as error:
            _log.warning(
                "not all segments are in the root; the next start of this agent uploads them",
                node=self._log.identity.node,
                error=str(error),
            )

    def _turn(self, worker: Worker) -> bool:
        waited = min(self._pause or LOOK_S, LOOK_S)
        if self._wake.wait(waited) or self._log.unsealed <= self._below:
            return False
        self._pause = max(0.0, self._pause - waited)
        if self._in_root is not None or self._failed_in_a_row:
            self._look()
        if self._pause:
            return False
        try:
            self.run(worker.stopping.is_set)
        except (StorageError, LogError) as error:
            self._failures += 1
            self._failed_in_a_row = 1 if self._advanced else self._failed_in_a_row + 1
            self._error = f"{type(error).__name__}: {error}"
            self._pause = self._next_pause()
            _log.warning("upload failed", error=self._error, again_in_s=round(self._pause, 1))
            return False
        self._error, self._failed_in_a_row, self._pause = "", 0, 0.0
        return True

    def _next_pause(self) -> float:
        doubled = PAUSE_S * 2 ** min(self._failed_in_a_row - 1, 10)
        part = int.from_bytes(self._randomness.token()[:4], "big") / 2**32
        return float(min(doubled, PAUSE_S_MAX) * (0.5 + part))

    def run(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Upload what is sealed now, until `stop`. Raises `StorageError` and `LogError`; what was
        uploaded before is in the root."""
        self._advanced = False
        try:
            self._upload_sealed(stop)
        finally:
            self._look()

    def _upload_sealed(self, stop: Callable[[], bool]) -> None:
        writing = self._log.unsealed  # first: a segment begun after this is not sealed
        self._archived = self._log.manifests.read()[1].archived
        listed = [file for file in self._root.list(self._folder) if _number(file) < 2**32]
        former, in_root = self._in_root, {file.path: file.size for file in listed}
        self._in_root = in_root
        self._advanced = former is not None and not in_root.keys() <= former.keys()
        on_disk = self._disk.list(self._folder)
        self._sweep([*in_root, *(file.path for file in on_disk)], self._archived)
        sealed = self._sealed(on_disk, writing)
        last = max((_number(file) for file in sealed if file.path in in_root), default=0)
        missing = [
            file
            for file in sealed
            if in_root.get(file.path) != file.size or (_number(file) == last and not self._checked)
        ]
        for file in missing:
            self._look()
            if stop():
                return
            with span(self._clock, "upload") as facts:
                facts["bytes"] = file.size
                self._checked = False
                is_new = self._upload(file.path, is_there=in_root.get(file.path) == file.size)
            self._advanced |= file.path not in in_root
            in_root[file.path] = file.size
            if is_new:
                self._uploaded += 1
                self._uploaded_bytes += file.size
        self._checked, self._below = True, writing

    def _sealed(self, on_disk: list[StoredFile], writing: int) -> list[StoredFile]:
        """The sealed segments that are not archived, in log order."""
        return [
            file
            for file in sorted(on_disk, key=_number)
            if self._archived < (layout.parse_wal_path(file.path) or self._archived)
            and _number(file) < writing
        ]

    def _look(self) -> None:
        """See what waits: what the disk has, without what is known to be in the root. The root is
        not asked. If the disk cannot be read, the former result remains."""
        writing, in_root = self._log.unsealed, self._in_root or {}
        with suppress(StorageError):
            sealed = self._sealed(self._disk.list(self._folder), writing)
            left = [file for file in sealed if in_root.get(file.path) != file.size]
            if left:
                since_ms = self._begun(left[0].path)
                self._waiting = _Waiting(sum(file.size for file in left), since_ms)
            else:
                self._waiting = _Waiting()

    def _begun(self, path: str) -> int:
        """Unix time in ms when a segment was begun; if it cannot be read, when that was found."""
        if self._oldest[0] != path:
            try:
                begun = SegmentReader(self._disk, path).header.created_ms
            except (StorageError, LogError):
                begun = self._clock.now_ms()
            self._oldest = path, begun
        return self._oldest[1]

    def _upload(self, path: str, *, is_there: bool) -> bool:
        """Bring one segment to the root unless `is_there`, and check it there. False: it was there,
        or it was archived meanwhile."""
        new = not is_there
        try:
            if new:
                self._create(path)
        except AlreadyExists:
            new = False
        except NotFound:
            return False
        try:
            on_disk = checksum(self._disk, path)
        except NotFound:
            return False
        there = checksum(self._root, path)
        if on_disk != there:
            demand_disk_is_right(self._store, path, self._log.manifests.read()[1].directory)
            self._root.delete(path)
            if self._in_root is not None:
                self._in_root.pop(path, None)
            raise Unavailable(
                f"the uploaded copy has checksum {there:08x}, the segment on the disk "
                f"{on_disk:08x}; the copy was deleted, and the next run uploads the segment again",
                path,
            )
        return new

    def _create(self, path: str) -> None:
        folder = local_folder(self._disk.url)
        file = Path(folder, path)
        if folder and file.is_file():
            self._root.create_from(path, str(file))
        else:
            self._root.create(path, self._disk.read(path))

    def _sweep(self, paths: list[str], archived: tuple[int, int]) -> None:
        """Delete archived segments that another process deleted only in the root, or that were
        archived while they were uploaded."""
        gone = {path for path in paths if (layout.parse_wal_path(path) or (2**32, 0)) <= archived}
        if gone:
            dispose(self._store, sorted(gone), self._folder)


def _number(file: StoredFile) -> int:
    name = layout.parse_wal_path(file.path)
    return name[1] if name is not None else 2**32
