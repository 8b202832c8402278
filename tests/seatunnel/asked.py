"""A JVM that answers requests, one a line, on its standard input and output."""

from __future__ import annotations

import queue
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from tests.cluster.processes import Child

HERE = Path(__file__).parent


def compiled(name: str, folder: Path, classpath: str) -> Path:
    """The folder with a class of `java/`, compiled if it is not newer than its source."""
    source, built = HERE / "java" / f"{name}.java", folder / f"{name}.class"
    if not built.exists() or built.stat().st_mtime < source.stat().st_mtime:
        command = ["javac", "-nowarn", "-d", str(folder), "-cp", classpath, str(source)]
        subprocess.run(command, check=True)
    return folder


class Asked(Child):
    """Its answers begin with "ok" or "error"."""

    def __init__(self, name: str, log: Path, command: Sequence[str]) -> None:
        super().__init__(name, log)
        self._command = command
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()

    def start(self) -> None:
        process = self.spawn(self._command, talks=True)
        assert process.stdout is not None
        threading.Thread(target=self._read, args=(process.stdout,), daemon=True).start()

    def _read(self, lines: IO[str]) -> None:
        for line in lines:
            self._answers.put(line.strip())

    def answer(self, seconds: float = 60) -> str:
        """Raises RuntimeError for an error."""
        try:
            kind, _, text = self._answers.get(timeout=seconds).partition(" ")
        except queue.Empty:
            raise TimeoutError(f"no answer: {self.last_words()}") from None
        if kind != "ok":
            raise RuntimeError(text)
        return text

    def ask(self, request: str, seconds: float = 60) -> str:
        assert isinstance(self.process, subprocess.Popen)
        assert self.process.stdin is not None
        self.process.stdin.write(f"{request}\n")
        return self.answer(seconds)
