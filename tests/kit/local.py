"""Processes that use a local directory, and what they leave."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from storage_backends.paths import TEMPORARY_PREFIX

ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def python(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Start a process that runs `code`, and wait until it has written to its output."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{code}",
            *map(str, arguments),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "ready"
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its children too
        process.communicate()


def temporaries(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob(f"{TEMPORARY_PREFIX}*")]
