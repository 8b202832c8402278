"""Writes archives in a separate process, because converting and compressing hold Python's
interpreter lock, and commits would wait for it.

    this process                                       the other process, for one run
    archive_sealed: manifest, listing, job ─▶ stdin ─▶ reads segments, writes and stores Parquet
                                                       files
    names them in the manifest ◀──────────── stdout ◀─ the result, or the error

The files count only when this process names them in the manifest, so the other process may be
killed at any time. It ends when this process ends, because then its standard input ends. A small
amount is archived in this process, because starting another one would take longer.
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
"""Up to this size, segments are archived in this process."""
NICENESS = 10
"""Commits and Hazelcast have priority."""

_MAIN = (
    "import sys; sys.path[:] = sys.argv[1:]; from imap_wal.retention.archiver import main; main()"
)


class ArchiverDied(ImapWalError):
    """The process that wrote archives ended too early. Nothing is lost; the segments are kept, and
    archiving is tried again."""


@dataclass(frozen=True, slots=True)
class _Request:
    url: str
    wal_dir: str
    job: ArchiveJob


class ArchiverProcess:
    """Writes archives of the log at `url`, with a process for each run. Only one run at a time;
    `stop` may be called from another thread."""

    def __init__(self, url: str, wal_dir: str = "") -> None:
        self._url, self._wal_dir = url, wal_dir
        self._mutex = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def write(self, store: SegmentStore, job: ArchiveJob) -> Written:
        """`write_archives` in another process. Raises the same errors, `ArchiverDied`, and `Closed`
        after `stop`."""
        if job.bytes <= HERE_BYTES_MAX:
            return write_archives(store, job)
        with self._mutex:
            if self._stopped:
                raise Closed(
                    "the log was closed before this archive run; nothing is lost, the segments "
                    "are archived after the next open"
                )
            try:
                process = self._process = subprocess.Popen(
                    [sys.executable, "-c", _MAIN, *sys.path],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    process_group=0,  # Ctrl-C must reach only this process, which stops the other
                )
            except OSError as error:
                raise ArchiverDied(
                    f"a process to archive node {job.node!r} could not be started: {error}; "
                    "nothing is lost, its segments are kept"
                ) from error
        try:
            answer = _ask(process, pickle.dumps(_Request(self._url, self._wal_dir, job)))
        finally:
            process.kill()  # it is done, or no longer needed
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
                "the log was closed during this archive run; nothing is lost, the segments are "
                "archived after the next open"
            )
        raise ArchiverDied(
            f"the process that archived node {job.node!r} ended with {code}; nothing is "
            "lost, its segments are kept"
        )

    def stop(self) -> None:
        """End the current run, and refuse later ones. Thread-safe."""
        with self._mutex:
            self._stopped = True
            if self._process is not None:
                self._process.kill()


def writer_for(url: str, wal_dir: str = "") -> ArchiverProcess | None:
    """An archiver for this storage; None if another process cannot open it."""
    here_only = url.startswith("memory://") or wal_dir.startswith("memory://") or not sys.executable
    return None if here_only else ArchiverProcess(url, wal_dir)


def _ask(process: subprocess.Popen[bytes], request: bytes) -> Any:
    """The answer of the process; None: it ended without one."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(request)
        # Not closed: the end of the pipe tells the other process that this one has ended.
        process.stdin.flush()
        return _received(pickle.load(process.stdout))  # noqa: S301  # our own child wrote it
    except (BrokenPipeError, EOFError, pickle.UnpicklingError):
        return None


# ---- in the other process ------------------------------------------------------------------------


def main() -> None:
    """Read a request from standard input, and write the answer to standard output."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # the output of a storage driver must not mix with the answer
    os.nice(NICENESS)
    request: _Request = pickle.load(sys.stdin.buffer)  # noqa: S301  # our own parent wrote it
    threading.Thread(target=_end_with, args=(sys.stdin.buffer,), daemon=True).start()
    try:
        store = open_store(request.url, wal_dir=request.wal_dir)
        try:
            answer: Any = write_archives(store, request.job)
        finally:
            store.close()
    except Exception as error:  # noqa: BLE001  # raised again in the process that sent the request
        answer = error
    answers.write(_sendable(answer))
    answers.flush()
    os._exit(0)  # at once: the other thread waits in a read


def _end_with(parent: BinaryIO) -> None:
    """Exit when the parent's end of the pipe is closed."""
    parent.read()
    os._exit(1)


@dataclass(frozen=True, slots=True)
class _Raised:
    """An exception in a form that can be pickled. It is restored without `__init__`, whose
    parameters may differ from `args`."""

    kind: type[Exception]
    args: tuple[Any, ...]
    fields: dict[str, Any]


def _sendable(answer: Any) -> bytes:
    if not isinstance(answer, Exception):
        return pickle.dumps(answer)
    try:
        return pickle.dumps(_Raised(type(answer), answer.args, vars(answer)))
    except Exception:  # noqa: BLE001  # it contains something that cannot be pickled
        return pickle.dumps(_Raised(RuntimeError, (f"{type(answer).__name__}: {answer}",), {}))


def _received(answer: Any) -> Any:
    if not isinstance(answer, _Raised):
        return answer
    error = answer.kind.__new__(answer.kind, *answer.args)
    vars(error).update(answer.fields)
    return error
