"""The feature level of a copy that repair, a backup or restore makes: never below the log's."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import imap_wal
from imap_wal.backup.restore import restore_backup
from imap_wal.backup.run import back_up
from imap_wal.clock import SystemClock
from imap_wal.entry import shared_session
from imap_wal.manifest.feature_level import NEWEST, FeatureLevel
from imap_wal.read.cluster import ClusterLog
from imap_wal.rewrite.prune import prune
from rewrite_cli.cli import group
from storage_backends import open_store
from storage_backends.memory import MemoryStore
from tests.histories import put
from tests.kit.effort import thorough
from tests.kit.logs import append, cluster, node, values, view
from tests.kit.repairs import repaired
from tests.kit.rewrites import archive, members, run

_numbers = itertools.count()
COPY = shared_session("a plug-in", 1)


def written(store: MemoryStore, session: int = 1, level: int = 0, reads: int = NEWEST) -> None:
    """A log of two nodes whose older manifests have no level; `level`: in the newest ones. `reads`:
    what the programs of the nodes can read."""
    logs = [node(store, name) for name in ("n1", "n2")]
    for path in [each.path for each in store.list(f"{cluster(store).folder}/manifest")][:-1]:
        store.delete(path)
    cluster(store).manifests.update(lambda now: replace(now, level=0, incarnation=1))
    members(store)
    for log in logs:
        append(log, put("k", "1", (1, 1, session, 1)))
        log.rotate()
        log.manifests.update(lambda now: replace(now, level=reads))
        log.close()
    cluster(store).manifests.update(lambda now: replace(now, level=level, orphan_floor=1))


def lose(store: MemoryStore, *, all_of_them: bool = False) -> None:
    """Damage the cluster's newest manifest, or all."""
    paths = sorted(each.path for each in store.list(f"{cluster(store).folder}/manifest"))
    for path in paths if all_of_them else paths[-1:]:
        store.replace(path, b"damaged")


def copied_level(store: MemoryStore) -> int:
    """The level in the manifest of a repaired copy."""
    copy, _ = repaired(store, f"levels-{next(_numbers)}")
    assert values(view(copy)) == {"k": "1"}
    return cluster(copy).manifest().level


@pytest.mark.parametrize("session", [1, COPY])
def test_without_manifests_it_is_the_newest_level(memory: MemoryStore, session: int) -> None:
    written(memory, session)
    lose(memory, all_of_them=True)
    assert copied_level(memory) == NEWEST


@pytest.mark.parametrize("reads", [0, FeatureLevel.SORTED_ARCHIVES, NEWEST, NEWEST + 1])
def test_a_lost_manifest_may_have_raised_it(memory: MemoryStore, reads: int) -> None:
    """The copy then has the highest level that the nodes can read."""
    written(memory, level=min(reads, NEWEST), reads=reads)
    lose(memory)
    assert copied_level(memory) == min(reads, NEWEST)


@pytest.mark.parametrize("place", ["segment", "archive", "snapshot"])
def test_copies_in_files_need_their_level(memory: MemoryStore, place: str) -> None:
    written(memory, COPY, reads=0)
    if place == "archive":
        for name in ("n1", "n2"):
            log = node(memory, name)
            archive(memory, log)
            log.manifests.update(lambda now: replace(now, level=0))
            log.close()
    elif place == "snapshot":
        run(memory)
        prune(cluster(memory))
    cluster(memory).manifests.update(lambda now: replace(now, level=NEWEST, orphan_floor=2))
    lose(memory)
    assert copied_level(memory) == FeatureLevel.COPIES


def test_sorted_archives_need_their_level(memory: MemoryStore) -> None:
    written(memory, level=FeatureLevel.SORTED_ARCHIVES)
    log = node(memory)
    archive(memory, log)
    assert log.manifests.read()[1].by_key
    log.manifests.update(lambda now: replace(now, level=0))
    log.close()
    lose(memory)
    assert copied_level(memory) == FeatureLevel.SORTED_ARCHIVES


def test_a_node_with_a_lost_manifest_does_not_lower_it(memory: MemoryStore) -> None:
    """Its older manifest may name an older release."""
    written(memory, level=NEWEST)
    log = node(memory)
    log.manifests.update(lambda now: replace(now, level=0))
    log.manifests.update(lambda now: replace(now, level=NEWEST))
    newest = max(each.path for each in memory.list(f"{log.identity.node_folder}/manifest"))
    memory.replace(newest, b"damaged")
    lose(memory)
    assert copied_level(memory) == NEWEST


BACKFILL = "backfill-0f8fad5b-d9cb-469f-a165-70867728950e"


@pytest.mark.parametrize("nodes", [{BACKFILL: 0}, {"former": 0, "program": NEWEST}])
def test_nodes_that_nobody_reads_do_not_lower_it(
    memory: MemoryStore, nodes: dict[str, int]
) -> None:
    """A backfill, and a program that another one has fenced."""
    written(memory)
    for name, reads in nodes.items():
        log = node(memory, name)
        log.manifests.update(lambda now, reads=reads: replace(now, level=reads, embedded=True))
        log.close()
    cluster(memory).manifests.update(lambda now: replace(now, level=NEWEST))
    lose(memory)
    assert copied_level(memory) == NEWEST


@pytest.mark.parametrize("level", [0, FeatureLevel.SORTED_ARCHIVES, NEWEST])
def test_an_intact_manifest_keeps_it(memory: MemoryStore, level: int) -> None:
    written(memory, level=level)
    assert copied_level(memory) == level


@pytest.mark.parametrize("level", [0, NEWEST])
def test_an_older_manifest_is_not_copied_unchanged(memory: MemoryStore, level: int) -> None:
    """Only its number shows that a newer one is missing, which had the level. A node that has seen
    the newer one would refuse a copy of it."""
    written(memory, level=level, reads=level)
    number, newest = cluster(memory).manifests.read()
    log = node(memory)
    log.manifests.update(lambda now: replace(now, level=level, cluster=newest.seen(number)))
    log.close()
    memory.delete(max(each.path for each in memory.list(f"{cluster(memory).folder}/manifest")))
    copy, items = repaired(memory, f"levels-{next(_numbers)}")
    (item,) = [each for each in items if each["file"].startswith("ns/c/manifest/")]
    assert (item["status"], item["action"]) == ("corrupt", "rewritten")
    assert cluster(copy).manifests.read()[0] > number
    assert cluster(copy).manifest().level == level
    node(copy).close()


def test_a_backup_keeps_level_and_marks(memory: MemoryStore, tmp_path: Path) -> None:
    """Its files are those of the log, at the same positions."""
    written(memory, COPY, level=FeatureLevel.COPIES)
    run(memory)
    backups, place = open_store(f"{tmp_path}/backups"), MemoryStore(f"levels-{next(_numbers)}")
    made = back_up([cluster(memory)], backups, clock=SystemClock(), holder="test")
    restore_backup(backups, made.backup, place)
    manifest = cluster(place).manifest()
    assert manifest == cluster(memory).manifest()
    assert (manifest.level, manifest.all_maps.keys()) == (FeatureLevel.COPIES, {"n1", "n2"})


@thorough
def test_a_clean_copy_begins_again(tmp_path: Path) -> None:
    """`imap-wal restore --to` writes another log, with other positions."""
    with imap_wal.open(f"file://{tmp_path}/log") as store:
        store.map("orders")["k"] = 1
        store.compact()
    command = ["restore", f"{tmp_path}/log", "--to", f"file://{tmp_path}/copy"]
    ended = CliRunner().invoke(group, command)
    assert ended.exit_code == 0, ended.output
    manifests = [
        ClusterLog(open_store(f"{tmp_path}/{name}"), "default", "embedded").manifest()
        for name in ("log", "copy")
    ]
    assert [bool(each.all_maps) for each in manifests] == [True, False]
    assert [each.level for each in manifests] == [NEWEST, NEWEST]
