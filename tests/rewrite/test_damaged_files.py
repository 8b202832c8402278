"""A changed file of a snapshot or an archive is not read, and the files that it covers are kept."""

from __future__ import annotations

from dataclasses import replace

import pytest

from imap_wal.errors import (
    CorruptLog,
    LogError,
    ShortLog,
)
from imap_wal.manifest.list_files import Listed
from imap_wal.read.cluster import ClusterLog
from imap_wal.retention.removal import remove_covered
from imap_wal.retention.snapshots import demand_whole
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.plan import Result, RewritePlan
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.run import rewrite
from imap_wal.segment.reader import SegmentReader
from imap_wal.settings import Settings
from storage_backends import SegmentStore
from storage_backends.memory import MemoryStore
from tests.histories import put
from tests.kit.logs import SMALL, append, cluster, node, values, view
from tests.kit.rewrites import archive, run, snapshot
from tests.support import overwrite, segments


@pytest.mark.parametrize("damage", ["missing", "cut", "changed", "another"])
def test_rewrite_with_a_changed_part_publishes_nothing(memory: MemoryStore, damage: str) -> None:
    """A file of the new snapshot differs from what was written."""
    append(node(memory), put("a", "1", (1, 1, 1, 1)), put("b", "1", (1, 1, 1, 2), "other"))

    class Losing(LocalEngine):
        def run(self, plan: RewritePlan, log: ClusterLog) -> Result:
            result = super().run(plan, log)
            spoil(memory, result.maps[0].parts[0].path, damage, result.maps[1].parts[0].path)
            return result

    with pytest.raises(LogError, match="part-00000-00000-"):
        rewrite(cluster(memory), Losing(SMALL))
    assert cluster(memory).manifest().snapshots == {}
    assert values(view(memory)) == {"a": "1"} and values(view(memory), "other") == {"b": "1"}


def spoil(store: SegmentStore, path: str, damage: str, other: str) -> None:
    data = store.read(path)
    store.delete(path)
    if damage == "cut":
        store.create(path, data[:-1])
    elif damage == "changed":
        store.create(path, data[:40] + bytes([data[40] ^ 1]) + data[41:])
    elif damage == "another":  # whole, but of another snapshot
        store.create(path, store.read(other))


@pytest.mark.parametrize("damage", ["missing", "cut", "changed", "another"])
def test_covered_files_stay_while_their_snapshot_is_damaged(
    memory: MemoryStore, damage: str
) -> None:
    """Neither `prune` nor retention removes them."""
    log = node(memory)
    append(log, put("a", "1", (1, 1, 1, 1)), put("b", "1", (1, 1, 1, 2), "other"))
    archive(memory, log)
    run(memory)
    spoil(memory, snapshot(memory).paths[0], damage, snapshot(memory, "other").paths[0])
    before = {file.path for file in memory.list("ns/c/nodes")}
    with pytest.raises(CorruptLog, match="snapshot/orders/"):
        prune(cluster(memory))
    with pytest.raises(CorruptLog, match="snapshot/orders/"):
        remove_covered(cluster(memory), "n1", Settings(wal_ttl_seconds=1), log.unsealed)
    assert {file.path for file in memory.list("ns/c/nodes")} == before
    with pytest.raises((CorruptLog, ShortLog)):
        view(memory)


def test_snapshot_replaced_during_a_read_is_no_damage(
    memory: MemoryStore,
) -> None:
    """The manifest was read before a newer snapshot replaced the files."""
    log = node(memory)
    append(log, put("a", "1", (1, 1, 1, 1)))
    run(memory)
    before = cluster(memory).manifest()
    append(log, put("a", "2", (1, 1, 1, 2)))
    run(memory)
    prune(cluster(memory))
    demand_whole(cluster(memory), before, ["orders"])
    memory.delete(snapshot(memory).paths[0])
    with pytest.raises(CorruptLog, match="is missing"):
        demand_whole(cluster(memory), before, ["orders"])


def test_snapshot_of_another_map_or_with_missing_rows_is_refused(memory: MemoryStore) -> None:
    """The manifest has the number of rows: a file that is consistent in itself is not enough."""
    append(node(memory), put("a", "1", (1, 1, 1, 1)), put("b", "1", (1, 1, 1, 2)))
    run(memory)
    kept = snapshot(memory)
    wrong = replace(kept, files=Listed([kept.files[0]._replace(rows=3)]))
    cluster(memory).manifests.update(lambda now: now.with_snapshot("orders", wrong))
    with pytest.raises(CorruptLog, match="has 2 rows, but the manifest says 3"):
        view(memory)


def test_an_archive_that_was_exchanged_is_not_served(memory: MemoryStore) -> None:
    log = node(memory)
    append(log, put("a", "1", (1, 1, 1, 1)), put("b", "1", (1, 1, 1, 2), "other"))
    archive(memory, log)
    paths = {each.map: each.path for each in cluster(memory).node("n1").manifest.archives}
    overwrite(memory, paths["orders"], memory.read(paths["other"]))
    with pytest.raises(CorruptLog, match=r"archive/orders/.*checksum in the manifest"):
        view(memory)


def test_a_rewrite_stops_at_damage_before_the_end(memory: MemoryStore) -> None:
    """The manifest of a closed log names its end, so a rewrite need not find it. The entries after
    the damage must not seem to be read: the snapshot would cover them."""
    log = node(memory)
    for number, key in enumerate("abc", 1):
        append(log, put(key, "1", (1, 1, 1, number)))
    log.close()
    (path,) = segments(memory)
    data = memory.read(path)
    place = SegmentReader(memory, path).first + 30
    overwrite(memory, path, data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
    with pytest.raises(CorruptLog, match=path):
        run(memory)
    assert cluster(memory).manifest().snapshots == {}
    overwrite(memory, path, data)
    run(memory)
    assert values(view(memory)) == dict.fromkeys("abc", "1")
