"""Tasks for the processes of a rewrite, and a rewrite whose tasks wait until they are killed."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imap_wal.errors import CorruptLog
from tests.support import eventually


@dataclass(frozen=True, slots=True)
class Held:
    """Says that it runs, leaves a scratch file, and waits without end."""

    gate: str

    def __call__(self, log: Any, task_input: Any, number: int, randomness: Any) -> Any:
        tempfile.mkstemp()
        Path(self.gate, str(os.getpid())).touch()
        threading.Event().wait()


@dataclass(frozen=True, slots=True)
class Fails:
    """Raises an error for the input "fails" when two tasks run. Never returns for others."""

    gate: str

    def __call__(self, log: Any, task_input: Any, number: int, randomness: Any) -> Any:
        if task_input != "fails":
            Held(self.gate)(log, task_input, number, randomness)
        Path(self.gate, str(os.getpid())).touch()
        eventually(lambda: len(os.listdir(self.gate)) > 1, "another task", 60)
        raise CorruptLog("a path", 7, "a defect", "some advice")


@dataclass(frozen=True, slots=True)
class Killed:
    """Its process is killed the first `times` times; then it returns its input."""

    gate: str
    times: int

    def __call__(self, log: Any, task_input: Any, number: int, randomness: Any) -> Any:
        attempt = len(os.listdir(self.gate))
        Path(self.gate, str(os.getpid())).touch()
        if attempt < self.times:
            os.kill(os.getpid(), signal.SIGKILL)
        return task_input


@dataclass(frozen=True, slots=True)
class Leaves:
    """Leaves a scratch file. Its process is killed the first time; then it returns how many files
    others have left."""

    gate: str

    def __call__(self, log: Any, task_input: Any, number: int, randomness: Any) -> Any:
        found = len(os.listdir(tempfile.gettempdir()))
        tempfile.mkstemp()
        work = Killed(self.gate, 1)
        work(log, task_input, number, randomness)
        return found


class Counted:
    """Counts how often it is unpickled, by files in `gate`."""

    def __init__(self, gate: str) -> None:
        self.gate = gate

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        tempfile.mkstemp(dir=self.gate)

    def __call__(self, log: Any, task_input: Any, number: int, randomness: Any) -> Any:
        return task_input


def main(root: str, gate: str) -> None:
    from imap_wal.rewrite import local_engine, task_engine
    from rewrite_cli.__main__ import main
    from tests.kit import process_works

    local_engine.ARCHIVES_BYTES_MIN = local_engine.OTHERS = 0
    task_engine.Sorting = lambda *_: process_works.Held(gate)  # type: ignore[assignment]
    sys.argv = ["imap-wal", "rewrite", root, "--processes", "2"]
    main()


if __name__ == "__main__":
    main(*sys.argv[1:])
