"""A drop forgets one map, also with damaged files, and no older change of it returns."""

from __future__ import annotations

from dataclasses import replace

import pytest

from imap_wal.format import START
from imap_wal.rewrite.drop import drop_map
from imap_wal.rewrite.plan import prepare
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.publish import publish
from storage_backends.memory import MemoryStore
from tests.histories import put
from tests.kit.logs import append, cluster, node, values, view
from tests.kit.rewrites import ENGINE, archive, members, run, snapshot
from tests.support import overwrite


@pytest.mark.parametrize("found_in", ["a log", "an archive", "a snapshot"])
def test_replaced_owners_change_stays_void_after_drop(memory: MemoryStore, found_in: str) -> None:
    """The drop covers the entry that hid the change, so it must keep the partition version."""
    first, second = node(memory), node(memory, "n2")
    members(memory)
    append(second, put("a", None, (1, 2, 1, 1)), put("b", "newer", (1, 2, 1, 2)))
    if found_in == "an archive":
        archive(memory, second)
    elif found_in == "a snapshot":
        job = prepare(cluster(memory))  # one that knows nothing of partitions
        late = replace(job, settled=dict.fromkeys(job.settled, START), versions=None)
        publish(cluster(memory), late, ENGINE.run(late, cluster(memory)))
        assert snapshot(memory).tombstones == 1 and cluster(memory).manifest().versions == {}
    drop_map(cluster(memory), "orders")
    prune(cluster(memory))
    append(first, put("a", "late", (1, 1, 1, 1)), put("b", "late", (1, 1, 1, 2)))
    assert values(view(memory)) == {}
    append(second, put("b", "after the drop", (1, 2, 1, 3)))
    assert values(view(memory)) == {"b": "after the drop"}
    run(memory)
    assert values(view(memory)) == {"b": "after the drop"}


def test_map_with_a_damaged_file_can_be_dropped(memory: MemoryStore) -> None:
    """The damaged file is an archive of the map."""
    first = node(memory)
    members(memory)
    append(first, put("a", "1", (1, 1, 1, 1)))
    archive(memory, first)
    (path,) = [file.path for file in memory.list("ns/c/nodes/n1/archive")]
    overwrite(memory, path, bytes(memory.size(path)))
    drop_map(cluster(memory), "orders")
    assert values(view(memory)) == {}


def test_drop_forgets_a_map_and_only_that(memory: MemoryStore) -> None:
    log = node(memory)
    append(log, put("a", "1", (1, 1, 1, 1)), put("a", "1", (1, 1, 1, 2), "other"))
    drop_map(cluster(memory), "orders")
    assert view(memory).maps() == ["other"]
    append(log, put("a", None, (1, 1, 1, 3)), put("b", "1", (1, 1, 1, 4)))
    assert values(view(memory)) == {"b": "1"}
    run(memory)
    prune(cluster(memory))
    assert values(view(memory)) == {"b": "1"} and values(view(memory), "other") == {"a": "1"}
