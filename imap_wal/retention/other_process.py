"""Runs long work on a log in a separate process. Conversion and compression hold Python's
interpreter lock, so in this process commits would wait for them.

    this process                 the other process
    task ─▶ stdin ────────────▶  opens the storage, runs the task
    report ◀──── stdout ◀──────  how much of it is done, from 0 to 1, at most once a second
    result ◀──── stdout ◀──────  the result, or the error
    ends it when there was no
    other task for some seconds

The other process may be killed at any time: what it wrote counts only when it is named in a
manifest. It ends when this process ends, because then its standard input ends. Otherwise only this
process ends it, and waits for it: so it never stays as a zombie.
"""

from __future__ import annotations

import os
import pickle
import queue
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeAlias

from imap_wal.collector import collect_rarely
from imap_wal.context import Context, open_context
from imap_wal.errors import Closed, ImapWalError
from storage_backends.location import Location, Place

NICENESS = 10
"""Beside a log that is open, the other process runs at a low priority: commits and Hazelcast come
first."""
END_S = 5.0
REPORT_S = 1.0
"""At most one report in this time."""

Report: TypeAlias = Callable[[float], None]
"""Gets how much of a task is done, from 0 to 1."""


def unreported(part: float) -> None:
    """A `Report` that is not wanted."""


_MAIN = (
    "import sys; sys.path[:] = sys.argv[2:]; from imap_wal.retention.other_process import main; "
    "main(int(sys.argv[1]))"
)


class ProcessDied(ImapWalError):
    """A process that worked for this one ended too early: it was killed, perhaps because memory ran
    out, or it could not be started. Nothing is lost. An open log tries its maintenance again later,
    and a rewrite tries each task once more."""


class Task(Protocol):
    """Work that can be pickled, and so can its result and its errors."""

    @property
    def folder(self) -> Path:
        """A local folder for its files. The caller that runs the task removes it."""
        ...

    def run(self, context: Context, report: Report) -> Any: ...


@dataclass(frozen=True, slots=True)
class _Done:
    """What `Task.run` reported."""

    part: float


@dataclass(frozen=True, slots=True)
class _Request:
    place: Place
    task: Task


class OtherProcess:
    """Runs tasks on the storage at `place` in another process, one at a time. `keep_s`: how long
    the process is kept for another task; its start takes longer than many tasks. `niceness`: added
    to that of this process. `stop` may be called from another thread."""

    def __init__(self, place: Place, *, keep_s: float = 0, niceness: int = NICENESS) -> None:
        self._niceness = niceness
        self._place, self._keep_s = place, keep_s
        self._folder = _working_folder()
        """Relative paths start here, even if the program has changed to another folder since."""
        self._running = threading.RLock()
        self._mutex = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._idle: threading.Timer | None = None
        """Ends the process if no task comes. Used under `_running`."""
        self._stopped = False

    def run(self, task: Task, report: Report = unreported) -> Any:
        """Run the task and return its result. `report`: called by this thread. Raises the same
        errors as the task, `ProcessDied`, and `Closed` after `stop`."""
        request = pickle.dumps(_Request(self._place, task))
        with self._running:
            process = self._begin()
            try:
                answer = _ask(process, request, report)
            except BaseException:
                self._end(process)
                raise
            if answer is None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(END_S)  # it has closed its pipe
                code = self._end(process)
                if self._stopped:
                    raise self._closed()
                raise ProcessDied(
                    f"a process that worked on {self._place} ended with exit code {code}; nothing "
                    "is lost"
                )
            if self._keep_s:
                self._keep(process)
            else:
                self._end(process)
            if isinstance(answer, Exception):
                raise answer
            return answer

    def _keep(self, process: subprocess.Popen[bytes]) -> None:
        """Keep the process for another task, for `keep_s`."""

        def end() -> None:
            with self._running:
                if self._idle is timer:  # no task has come
                    self._end(process)

        timer = threading.Timer(self._keep_s, end)
        timer.name, timer.daemon = "imap-wal-idle", True
        self._idle = timer
        timer.start()

    def _begin(self) -> subprocess.Popen[bytes]:
        """The process; a new one if there is none."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        with self._mutex:
            if self._stopped:
                raise self._closed()
            if self._process is not None:
                return self._process
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _MAIN, str(self._niceness), *sys.path],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    cwd=self._folder if os.path.isdir(self._folder) else None,
                    process_group=0,  # Ctrl-C must reach only this process, which stops the other
                )
            except OSError as error:
                raise ProcessDied(
                    f"a process to work on {self._place} could not be started: {error}; nothing is "
                    "lost"
                ) from error
            return self._process

    def _end(self, process: subprocess.Popen[bytes]) -> int:
        """End the process, and wait for it. Returns its exit code."""
        with suppress(OSError):
            if process.stdin is not None:
                process.stdin.close()
        if process.poll() is None:
            process.kill()
        code = process.wait()
        with suppress(OSError):
            if process.stdout is not None:
                process.stdout.close()
        with self._mutex:
            self._process = None
        return code

    def _closed(self) -> Closed:
        return Closed(
            "the log was closed before its maintenance was done; nothing is lost, and the work is "
            "done after the next open"
        )

    def stop(self) -> None:
        """End the current task, and refuse later ones. Thread-safe."""
        with self._mutex:
            self._stopped = True
            if self._process is not None:
                self._process.kill()
        with self._running:
            if self._idle is not None:
                self._idle.cancel()
                self._idle = None
            if self._process is not None:
                self._end(self._process)


def _working_folder() -> str:
    """The current folder; "" if it was removed."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def is_reachable(place: Location) -> bool:
    """Whether another process can open this storage. Not if this program was frozen into one file,
    or if another program contains Python: a second process of it would run the whole program."""
    return (
        place.scheme != "memory"
        and (place.wal_dir is None or place.wal_dir.scheme != "memory")
        and Path(sys.executable or "").name.startswith(("python", "pypy"))
        and not getattr(sys, "frozen", False)
    )


def _ask(process: subprocess.Popen[bytes], request: bytes, report: Report) -> Any:
    """Send the request and return the answer; None: the process ended without one."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(request)
        # The pipe stays open: its end shows the other process that this one has ended.
        process.stdin.flush()
        while True:
            answer = pickle.load(process.stdout)  # noqa: S301  # our own child wrote it
            if not isinstance(answer, _Done):
                return _received(answer)
            report(answer.part)
    except (BrokenPipeError, EOFError, pickle.UnpicklingError):
        return None


# ---- in the other process ------------------------------------------------------------------------


def main(niceness: int) -> None:
    """Read requests from standard input, and write the answers to standard output."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # the output of a storage driver must not mix with the answer
    os.nice(niceness)
    collect_rarely()  # no program of a user runs here
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123
        file.write("500")  # if memory runs out, this process ends first
    parent = _Parent(sys.stdin.buffer)
    threading.Thread(target=parent.follow, daemon=True).start()
    while True:
        request = parent.requests.get()
        _send(answers, _answer(request, _Reports(answers).send))


def _send(answers: BinaryIO, answer: Any) -> None:
    try:
        answers.write(_sendable(answer))
        answers.flush()
    except OSError:  # the parent has died
        threading.Event().wait()


class _Reports:
    """Sends what a task reports, but not too often."""

    def __init__(self, answers: BinaryIO) -> None:
        self._answers = answers
        self._next = 0.0

    def send(self, part: float) -> None:
        if (now := time.monotonic()) >= self._next:
            self._next = now + REPORT_S
            _send(self._answers, _Done(part))


def _answer(request: _Request, report: Report) -> Any:
    """The result of a task, or its error."""
    try:
        context = open_context(request.place)
        try:
            return request.task.run(context, report)
        finally:
            context.store.close()
    except Exception as error:  # noqa: BLE001  # raised again in the process that sent the request
        return error


class _Parent:
    """Reads the requests of the parent, and ends this process with it."""

    def __init__(self, pipe: BinaryIO) -> None:
        self._pipe = pipe
        self.requests: queue.Queue[_Request] = queue.Queue()

    def follow(self) -> None:
        """Exit when the parent's end of the pipe is closed. The parent may have been killed, so its
        temporary folder is removed here."""
        folder: Path | None = None
        try:
            while True:
                request: _Request = pickle.load(self._pipe)  # noqa: S301  # our own parent wrote it
                folder = request.task.folder
                self.requests.put(request)
        finally:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
            os._exit(1)


@dataclass(frozen=True, slots=True)
class _Raised:
    """An exception in a form that can be pickled. It is restored without calling `__init__`, whose
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
