"""A file of a snapshot that is missing: damage, or the snapshot was replaced."""

from __future__ import annotations

import pytest

from imap_wal.errors import CorruptLog
from imap_wal.retention.snapshots import demand_whole
from storage_backends.faults import Fault, FaultyStore, Plan
from storage_backends.memory import MemoryStore
from tests.histories import put
from tests.kit.logs import append, cluster, node
from tests.kit.rewrites import run, snapshot


def test_a_missing_file_of_the_newest_snapshot_is_damage(memory: MemoryStore) -> None:
    """It is not looked for again and again: a manifest that names it is read at most twice."""
    append(node(memory), put("a", "1", (1, 1, 1, 1)))
    run(memory)
    before = cluster(memory).manifest()
    memory.delete(snapshot(memory).paths[0])
    bounded = FaultyStore(memory, Plan((Fault("kill", at=100),)))
    with pytest.raises(CorruptLog, match="is missing"):
        demand_whole(cluster(bounded), before, ["orders"])
