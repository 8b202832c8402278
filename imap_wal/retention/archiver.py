"""A process of its own writes the archives: packing and compressing hold Python's interpreter lock,
and commits would wait for it.

    this process                                       the other one, for one run
    archive_sealed: manifest, listing, job ─▶ stdin ─▶ reads segments, writes and publishes Parquet
        files
    publishes them in the manifest ◀─ its stdout ◀──── what it wrote, or why it could not

What it writes counts only once this process names it in the manifest, so it may die or be killed at
any moment. It ends with this process, because its standard input then ends. A small amount is
archived in this process: starting another would take longer.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO

from imap_wal.errors import Closed, ImapWalError
from imap_wal.retention.archive_writer import ArchiveJob, Written, write_archives
from imap_wal.security.encryption import open_store
from storage_backends import SegmentStore

HERE_BYTES_MAX = 1024 * 1024
"""Segments that take no more are archived in this process."""
NICENESS = 10
"""Commits and Hazelcast come first."""

_MAIN = (
    "import sys; sys.path[:] = sys.argv[1:]; from imap_wal.retention.archiver import main; main()"
)


class ArchiverDied(ImapWalError):
    """The process that wrote archives ended too early. Nothing is lost, the segments are kept; it
    is tried again."""


@dataclass(frozen=True, slots=True)
class _Request:
    url: str
    wal_dir: str
    job: ArchiveJob


class ArchiverProcess:
    """Writes archives of the log at `url`, in a process for each run. One run at a time; `stop`
    from another thread."""

    def __init__(self, url: str, wal_dir: str = "") -> None:
        self._url, self._wal_dir = url, wal_dir
        self._mutex = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def write(self, store: SegmentStore, job: ArchiveJob) -> Written:
        """`write_archives`, elsewhere. Raises what it raises there; `ArchiverDied`; `Closed` after
        `stop`."""
        if job.bytes <= HERE_BYTES_MAX:
            return write_archives(store, job)
        with self._mutex:
            if self._stopped:
                raise Closed(
                    "the log was closed before this archive run; nothing is lost, it is "
                    "archived after the next open"
                )
            try:
                process = self._process = subprocess.Popen(
                    [sys.executable, "-c", _MAIN, *sys.path],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    process_group=0,  # Ctrl-C is for this process, which then stops the other one
                )
            except OSError as error:
                raise ArchiverDied(
                    f"a process to archive node {job.node!r} could not be started: {error}; "
                    "nothing is lost, its segments stay"
                ) from error
        try:
            answer = _ask(process, pickle.dumps(_Request(self._url, self._wal_dir, job)))
        finally:
            process.kill()  # it is done, or of no use any more
            code = process.wait()
            for pipe in (process.stdin, process.stdout):
                with suppress(OSError):
                    if pipe is not None:
                        pipe.close()
            with self._mutex:
                self._process = None
        if isinstance(answer, Written):
            return answer
        if isinstance(answer, Exception):
            raise answer
        if self._stopped:
            raise Closed(
                "the log was closed during this archive run; nothing is lost, it is archived "
                "after the next open"
            )
        raise ArchiverDied(
            f"the process that archived node {job.node!r} ended with {code}; nothing is "
            "lost, its segments stay"
        )

    def stop(self) -> None:
        """End the run under way, and begin no other. Safe from any thread."""
        with self._mutex:
            self._stopped = True
            if self._process is not None:
                self._process.kill()


def writer_for(url: str, wal_dir: str = "") -> ArchiverProcess | None:
    """None where another process cannot open the same storage."""
    here_only = url.startswith("memory://") or wal_dir.startswith("memory://") or not sys.executable
    return None if here_only else ArchiverProcess(url, wal_dir)


def _ask(process: subprocess.Popen[bytes], request: bytes) -> Any:
    """The answer; None when the process ended without one."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(request)
        # And it is kept open: its end shows the other process that this one has ended.
        process.stdin.flush()
        return _received(pickle.load(process.stdout))  # noqa: S301  # our own child wrote it
    except (BrokenPipeError, EOFError, pickle.UnpicklingError):
        return None


# ---- in the other process ------------------------------------------------------------------------


def main() -> None:
    """Do what standard input asks for, and answer on standard output."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a driver prints is no answer
    os.nice(NICENESS)
    request: _Request = pickle.load(sys.stdin.buffer)  # noqa: S301  # our own parent wrote it
    threading.Thread(target=_end_with, args=(sys.stdin.buffer,), daemon=True).start()
    try:
        store = open_store(request.url, wal_dir=request.wal_dir)
        try:
            answer: Any = write_archives(store, request.job)
        finally:
            store.close()
    except Exception as error:  # noqa: BLE001  # all are raised where the archive was asked for
        answer = error
    answers.write(_sendable(answer))
    answers.flush()
    os._exit(0)  # at once: the other thread is in the middle of a read


def _end_with(parent: BinaryIO) -> None:
    """Wait until the parent's end of the pipe is closed, and end."""
    parent.read()
    os._exit(1)


@dataclass(frozen=True, slots=True)
class _Raised:
    """An exception as it travels: without its `__init__`, which may take other arguments than it
    keeps."""

    kind: type[Exception]
    args: tuple[Any, ...]
    fields: dict[str, Any]


def _sendable(answer: Any) -> bytes:
    if not isinstance(answer, Exception):
        return pickle.dumps(answer)
    try:
        return pickle.dumps(_Raised(type(answer), answer.args, vars(answer)))
    except Exception:  # noqa: BLE001  # it holds what cannot travel
        return pickle.dumps(_Raised(RuntimeError, (f"{type(answer).__name__}: {answer}",), {}))


def _received(answer: Any) -> Any:
    if not isinstance(answer, _Raised):
        return answer
    error = answer.kind.__new__(answer.kind, *answer.args)
    vars(error).update(answer.fields)
    return error
