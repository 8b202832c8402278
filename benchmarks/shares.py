"""A part of a processor for some processes: a control group of Linux, version 1 or 2. This shows on
one machine what several machines show."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PERIOD_US = 100_000
_numbers = itertools.count(1)


@contextlib.contextmanager
def shares(count: int, processors: float) -> Iterator[list[Path]]:
    """That many groups, each with this part of a processor. None where this machine does not allow
    it: that needs root, and a controller `cpu`. The processes in them must end first."""
    groups: list[Path] = []
    try:
        with contextlib.suppress(OSError):
            while len(groups) < count:
                groups.append(_group(processors))
        yield groups if len(groups) == count else []
    finally:
        for group in groups:
            with contextlib.suppress(OSError):  # a process ends late: the empty group remains
                group.rmdir()


def _group(processors: float) -> Path:
    quota = int(PERIOD_US * processors)
    first = (ROOT / "cpu").is_dir()
    group = ROOT / ("cpu" if first else "") / f"imap-wal-{os.getpid()}-{next(_numbers)}"
    group.mkdir()
    try:
        if first:
            (group / "cpu.cfs_period_us").write_text(f"{PERIOD_US}")
            (group / "cpu.cfs_quota_us").write_text(f"{quota}")
        else:
            (group / "cpu.max").write_text(f"{quota} {PERIOD_US}")
    except OSError:
        group.rmdir()
        raise
    return group
