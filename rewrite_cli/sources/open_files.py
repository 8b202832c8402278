"""Which process writes to a file, as Linux shows it."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

PROCESSES = Path("/proc")


def writer_of(paths: Collection[str]) -> int:
    """A process that has one of these files open for writing; 0: none that this user may see."""
    wanted = {(status.st_dev, status.st_ino) for status in map(os.stat, paths)}
    if not wanted:
        return 0
    for process in _numbered(PROCESSES):
        for opened in _numbered(process / "fd"):
            with suppress(OSError):
                status = os.stat(opened)
                if (status.st_dev, status.st_ino) in wanted and _writes(process, opened.name):
                    return int(process.name)
    return 0


def _numbered(folder: Path) -> Iterator[Path]:
    with suppress(OSError):
        yield from [path for path in folder.iterdir() if path.name.isdecimal()]


def _writes(process: Path, number: str) -> bool:
    for line in (process / "fdinfo" / number).read_text().splitlines():
        name, _, flags = line.partition(":")
        if name == "flags":
            return int(flags, 8) & os.O_ACCMODE != os.O_RDONLY
    return False
