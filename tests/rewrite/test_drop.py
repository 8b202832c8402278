"""A drop forgets one map, also with damaged files, and no older change of it returns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from imap_wal.agent.membership.claims import find_cutoffs
from imap_wal.entry import shared_session
from imap_wal.errors import InvalidSetting
from imap_wal.format import END, START
from imap_wal.manifest.cluster import IncarnationRecord
from imap_wal.rewrite import drop
from imap_wal.rewrite.drop import drop_map
from imap_wal.rewrite.plan import prepare
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.publish import publish
from storage_backends.memory import MemoryStore
from tests.histories import put
from tests.kit.copies import NODES, SESSION
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
        plan = prepare(cluster(memory))  # one that knows nothing of partitions
        late = replace(plan, settled=dict.fromkeys(plan.settled, START), versions=None)
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


@pytest.mark.parametrize("found_in", ["a log", "an archive", "a snapshot"])
@pytest.mark.parametrize("newest", ["old", None], ids=["value", "tombstone"])
def test_drop_waits_until_no_late_copy_counts(
    memory: MemoryStore, found_in: str, newest: str | None
) -> None:
    """The change has a pair that is not lower than that of the dropped entries, so what n3 appends
    later would count."""
    first, second, third = (node(memory, name) for name in NODES)
    members(memory)
    for log in (first, second):
        append(log, put("k", "old", (1, 1, SESSION, 1)))
        if newest is None:
            append(log, put("k", None, (1, 1, SESSION, 2)))
        if found_in == "an archive":
            archive(memory, log)
    if found_in == "a snapshot":
        run(memory)
        prune(cluster(memory))
    before = cluster(memory).manifest()
    for dry_run in (True, False):
        with pytest.raises(InvalidSetting, match="claim --force"):
            drop_map(cluster(memory), "orders", dry_run=dry_run)
    assert cluster(memory).manifest() == before
    members(memory, 2)
    assert drop_map(cluster(memory), "orders", dry_run=True).generation == 0
    assert values(view(memory)) == ({} if newest is None else {"k": newest})
    drop_map(cluster(memory), "orders")
    append(third, put("k", "old", (1, 1, SESSION, 1)))
    assert values(view(memory)) == {}
    append(first, put("k", "new", (2, 1, shared_session("a plug-in", 2), 1)))
    assert values(view(memory)) == {"k": "new"}


def test_drop_waits_for_a_node_that_was_not_cut(memory: MemoryStore) -> None:
    first, second = node(memory, "n1"), node(memory, "n2")
    members(memory)
    append(first, put("k", "old", (1, 1, SESSION, 1)))
    cuts = {**find_cutoffs(cluster(memory)).cuts, "n2": END}
    born = IncarnationRecord("id-2", 2, cuts)
    cluster(memory).manifests.update(lambda now: replace(now, lifetimes=(*now.lifetimes, born)))
    with pytest.raises(InvalidSetting):
        drop_map(cluster(memory), "orders")
    members(memory, 3)
    drop_map(cluster(memory), "orders")
    append(second, put("k", "old", (1, 1, SESSION, 1)))
    assert values(view(memory)) == {}


def test_drop_looks_again_after_a_rewrite(memory: MemoryStore, monkeypatch: Any) -> None:
    """A rewrite in between covers a change with copies that the drop has not seen."""
    log = node(memory)
    members(memory)
    append(log, put("a", "1", (1, 1, 1, 1)))
    publish_drop = drop._publish

    def disturbed(*given: Any) -> int:
        append(log, put("k", "old", (1, 1, SESSION, 1)))
        run(memory)
        return publish_drop(*given)

    monkeypatch.setattr(drop, "_publish", disturbed)
    with pytest.raises(InvalidSetting):
        drop_map(cluster(memory), "orders")
    assert values(view(memory)) == {"a": "1", "k": "old"}


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
