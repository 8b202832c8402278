"""Agents with a deliberate defect, which the judges must find:
`python -m tests.nemesis.defects NAME CONFIG`, and `python -m tests.nemesis --defect NAME`."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable

from imap_wal import format
from imap_wal.format import Position
from imap_wal.manifest.cluster import ClusterManifest
from imap_wal.manifest.node import NodeManifest
from imap_wal.write.node_log import NodeLog
from rewrite_cli.cli import group


def _losses_ignored() -> None:
    """A second lost disk is taken for the first one."""
    ClusterManifest.losses_but = lambda self, node: 0  # type: ignore[method-assign]


def _empty_disk_opened() -> None:
    """An empty disk counts as one whose changes have copies, and so does one that is away."""
    NodeManifest.acks_from = lambda self, segment, losses: 3  # type: ignore[method-assign]


def _copy_not_written() -> None:
    """One agent acknowledges changes that it has not written. Other logs have them."""
    write = NodeLog.write

    def partly(self: NodeLog, kind: int, count: int, payload: list[bytes]) -> Position:
        drops = self.identity.node == "node-1" and kind in format.OF_ENTRIES
        return self.end if drops and random.random() < 0.5 else write(self, kind, count, payload)

    NodeLog.write = partly  # type: ignore[method-assign]


DEFECTS: dict[str, Callable[[], None]] = {
    "losses-ignored": _losses_ignored,
    "empty-disk-opened": _empty_disk_opened,
    "copy-not-written": _copy_not_written,
}
"""Name → what changes the code of this process."""

if __name__ == "__main__":
    name, config = sys.argv[1:]
    DEFECTS[name]()
    group(["agent", "--config", config])
