"""Machines of limited speed: groups of processes that share a part of one processor. With it, three
members on a machine of two processors compute as if each had a machine of its own."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

PERIOD_US = 10_000
VERSION_1 = Path("/sys/fs/cgroup/cpu")
VERSION_2 = Path("/sys/fs/cgroup")


def can_limit() -> bool:
    """Whether this process may limit others: Linux control groups that it may write to."""
    return os.access(_root(), os.W_OK) and os.access(_root() / "cgroup.procs", os.W_OK)


@contextmanager
def limited(machines: Sequence[Sequence[int]], share: float) -> Iterator[None]:
    """While the block runs, the processes of each machine have this share of one processor
    together.

    Args:
        machines: process ids of each machine.
        share: of one processor, such as 0.5.
    """
    groups = [_root() / f"imap-wal-{uuid.uuid4().hex}" for _ in machines]
    try:
        for group, pids in zip(groups, machines, strict=True):
            group.mkdir()
            quota = int(share * PERIOD_US)
            if (group / "cpu.cfs_quota_us").exists():
                (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
                (group / "cpu.cfs_quota_us").write_text(str(quota))
            else:
                (group / "cpu.max").write_text(f"{quota} {PERIOD_US}")
            for pid in pids:
                (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        for group, pids in zip(groups, machines, strict=True):
            if group.exists():
                for pid in pids:
                    (_root() / "cgroup.procs").write_text(str(pid))
                group.rmdir()


def _root() -> Path:
    return VERSION_1 if (VERSION_1 / "cgroup.procs").exists() else VERSION_2
