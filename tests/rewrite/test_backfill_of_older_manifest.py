"""A backfill trusts no manifest that is older than the log."""

from __future__ import annotations

import pytest

from imap_wal.context import Context
from imap_wal.errors import CorruptLog
from imap_wal.read.cluster import ClusterLog
from imap_wal.retention import backfill
from storage_backends.memory import MemoryStore
from tests.support import embedded


def test_a_backfill_refuses_an_older_cluster_manifest(memory: MemoryStore) -> None:
    """It would claim an incarnation that the log has already used."""
    for number in range(2):
        with embedded(memory) as store:
            store.map("m")["k"] = number
    log = ClusterLog(Context(memory), "default", "embedded")
    manifests = [file.path for file in memory.list(f"{log.folder}/manifest")]
    memory.delete(max(manifests))
    with pytest.raises(CorruptLog, match="older"):
        backfill.begin(log)
