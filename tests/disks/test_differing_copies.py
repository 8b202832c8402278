"""A segment on a node's own disk and its uploaded copy differ: one of them is damaged, or the disk
is an older copy. The good one is never deleted, and nothing is lost without an error."""

from __future__ import annotations

import itertools
from dataclasses import replace

from storage_backends.memory import MemoryStore
from tests.disks.test_uploads import Writer

_names = itertools.count()


def stores() -> tuple[MemoryStore, MemoryStore]:
    """A root and a disk."""
    name = f"differing-{next(_names)}"
    return MemoryStore(f"{name}-root"), MemoryStore(f"{name}-disk")


def test_a_lost_disk_makes_former_answers_unknown() -> None:
    """Request 2 was acknowledged, and was on the lost disk alone: no member may be told that it
    counts."""
    root, disk = stores()
    writer = Writer(root, disk, 1)
    writer.put("a", "1", 1)
    writer.log.rotate()
    writer.uploads.run()
    writer.put("a", "2", 2)
    writer.log.manifests.update(lambda manifest: replace(manifest, former={7: 2, 8: 0}))
    writer.log._lock.release()  # as the end of its process would
    later = Writer(root, stores()[1], 2, "partial")
    assert later.log.manifests.read()[1].former == {7: -1, 8: -1}
