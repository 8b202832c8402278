"""Agents with a deliberate defect, which the judges must find:
`python -m tests.nemesis.defects NAME CONFIG`, and `python -m tests.nemesis --defect NAME`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from imap_wal.agent.membership.sessions import SessionRegistry
from imap_wal.agent.requests import About
from imap_wal.manifest.cluster import ClusterManifest
from imap_wal.manifest.node import NodeManifest
from rewrite_cli.cli import group


@dataclass(frozen=True, slots=True)
class Defect:
    """`plant` changes the code of this process. `acks`: of the plug-ins; 0: as many as copies."""

    plant: Callable[[], None]
    acks: int = 0


def _losses_ignored() -> None:
    """A second lost disk is taken for the first one."""
    ClusterManifest.losses_but = lambda self, node: 0  # type: ignore[method-assign]


def _empty_disk_opened() -> None:
    """An empty disk counts as one whose changes have copies, and so does one that is away."""
    NodeManifest.acks_from = lambda self, segment, losses: 3  # type: ignore[method-assign]


def _copy_not_awaited() -> None:
    """A caller gets its acknowledgement before the second log has the change, and the logs promise
    that two have it."""
    hello = SessionRegistry.hello

    def promising(
        self: SessionRegistry, sender: bytes, about: About, *more: Any, **named: Any
    ) -> Any:
        return hello(self, sender, msgspec.structs.replace(about, acks=2), *more, **named)

    SessionRegistry.hello = promising  # type: ignore[method-assign]


DEFECTS = {
    "losses-ignored": Defect(_losses_ignored),
    "empty-disk-opened": Defect(_empty_disk_opened),
    "copy-not-awaited": Defect(_copy_not_awaited, acks=1),
}

if __name__ == "__main__":
    name, config = sys.argv[1:]
    DEFECTS[name].plant()
    group(["agent", "--config", config])
