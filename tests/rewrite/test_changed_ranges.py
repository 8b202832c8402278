"""Which ranges of keys a rewrite in tasks merges again."""

from __future__ import annotations

import pytest

from imap_wal.rewrite import part_writer
from imap_wal.rewrite.run import rewrite
from storage_backends.memory import MemoryStore
from tests.histories import put
from tests.kit.logs import append, cluster, node, values, view
from tests.kit.task_engine import TaskEngine


def test_a_range_with_a_new_entry_is_merged_again(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of the other ranges are kept."""
    monkeypatch.setattr(part_writer, "PART_ROWS_MAX", 2)
    log = node(memory)
    append(log, *(put(f"k{number}", "1", (1, 1, 1, number)) for number in range(1, 9)))
    rewrite(cluster(memory), TaskEngine())
    before = cluster(memory).manifest().snapshots["orders"].paths
    append(log, put("k4", "2", (1, 1, 1, 9)))
    rewrite(cluster(memory), TaskEngine())
    after = cluster(memory).manifest().snapshots["orders"].paths
    assert len(set(before) - set(after)) == 1 and len(set(before) & set(after)) >= 3
    assert values(view(memory)) == {f"k{number}": "1" for number in range(1, 9)} | {"k4": "2"}
