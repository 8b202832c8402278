"""A log whose manifest names list files, through its life: every command reads it, a damaged list
is found and repaired, and no removal takes a file that a list names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import imap_wal
import imap_wal.rewrite.prune as pruning
from imap_wal import layout
from imap_wal.context import Context
from imap_wal.errors import CorruptLog, LogError, ShortLog
from imap_wal.manifest.list_files import ListFile
from imap_wal.manifest.node import NodeManifest, NodeManifestLog
from imap_wal.read.cluster import ClusterLog
from imap_wal.retention.removal import plan_covered
from storage_backends import open_store
from storage_backends.faults import FaultyStore
from tests.cli.conftest import Run
from tests.kit.effort import every, first, thorough
from tests.kit.list_files import archive, damage, lose, short_lists
from tests.kit.repairs import repair

FOLDER = "default/embedded/nodes/n1"
MAPS = 9


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    short_lists(monkeypatch)


@pytest.fixture
def log(tmp_path: Path) -> tuple[str, dict[str, dict[Any, Any]]]:
    """The URL of a log with archives in lists, and its contents."""
    url, expected = f"file://{tmp_path}/log", {}
    for turn in range(4):
        with imap_wal.open(url, node="n1", preallocate=False) as store:
            for number in range(MAPS):
                store.map(f"m{number}").update({turn: turn, "same": turn})
                expected.setdefault(f"m{number}", {}).update({turn: turn, "same": turn})
            store.archive()
    assert len(lists(url)) > 2
    return url, expected


def manifest(url: str) -> NodeManifest:
    return NodeManifestLog(Context(open_store(url)), FOLDER).read()[1]


def lists(url: str) -> tuple[ListFile, ...]:
    return manifest(url).archives.lists


def contents(url: str) -> dict[str, dict[Any, Any]]:
    with imap_wal.open(url, node="n1", preallocate=False) as store:
        return {name: dict(store.map(name)) for name in sorted(store.maps())}


def there(url: str) -> set[str]:
    return {file.path for file in open_store(url).list(FOLDER)}


def check(url: str) -> None:
    """Every list that the manifest names is there, and every archive that a list names."""
    named = {layout.list_path(FOLDER, each.name) for each in lists(url)}
    assert named <= there(url)
    assert {archive.path for archive in manifest(url).archives} <= there(url)


def test_a_log_with_lists_lives_on(log: tuple[str, dict[str, Any]], run: Run) -> None:
    url, expected = log
    kinds = run("verify", url, "-o", "json").json["files"]
    assert {file["status"] for file in kinds} == {"clean"}
    assert sum(file["kind"] == "list" for file in kinds) == len(lists(url))
    assert contents(url) == expected
    check(url)
    with imap_wal.open(url, node="n1", preallocate=False) as store:
        store.map("m3")["after"] = "the rewrite"
    for words in (["rewrite", "--map", "m3"], ["prune", "--yes"], ["rewrite"]):
        ended = run(words[0], url, *words[1:])
        assert ended.code == 0, ended.err
        check(url)
    expected["m3"]["after"] = "the rewrite"
    assert contents(url) == expected
    with imap_wal.open(url, node="n1", preallocate=False) as store:
        store.map("m4")["after"] = "the rewrite"
        store.archive()
    assert run("prune", url, "--yes").code == 0
    check(url)
    assert {archive.map for archive in manifest(url).archives} == {"m4"}
    expected["m4"]["after"] = "the rewrite"
    assert contents(url) == expected
    assert run("verify", url).code == 0


@thorough
def test_a_backup_has_the_lists(log: tuple[str, dict[str, Any]], run: Run, tmp_path: Path) -> None:
    url, expected = log
    place, back = f"file://{tmp_path}/backups", f"file://{tmp_path}/back"
    assert run("backup", url, place).code == 0
    ended = run("backup-restore", place, back)
    assert ended.code == 0, ended.err
    check(back)
    assert run("verify", back).code == 0
    assert contents(back) == expected


@thorough
def test_a_repaired_copy_without_damage_has_the_lists(
    log: tuple[str, dict[str, Any]], run: Run, tmp_path: Path
) -> None:
    url, expected = log
    repair(run, tmp_path, code=0)
    copy = f"file://{tmp_path}/copy"
    assert lists(copy) == lists(url)
    check(copy)
    assert contents(copy) == expected


@every(2)
@pytest.mark.parametrize(
    ("harm", "error", "status"), [(lose, ShortLog, "missing"), (damage, CorruptLog, "corrupt")]
)
@pytest.mark.parametrize("which", first([0, 1, -1], 1))
def test_a_harmed_list_is_found_and_repaired(
    log: tuple[str, dict[str, Any]],
    run: Run,
    tmp_path: Path,
    harm: Callable[[Path], None],
    error: type[LogError],
    status: str,
    which: int,
) -> None:
    url, expected = log
    file = lists(url)[which]
    path = layout.list_path(FOLDER, file.name)
    before = there(url)
    harm(tmp_path / "log" / path)
    run("prune", url, "--yes")
    assert run("rewrite", url).code != 0
    with pytest.raises(error, match=rf"{path} at byte 0.*repair"):
        contents(url)
    assert {each for each in before - there(url) if each.endswith(".parquet")} == set()
    found = run("verify", url, "-o", "json")
    assert found.code == 3
    (wrong,) = [each for each in found.json["files"] if each["status"] != "clean"]
    assert (wrong["file"], wrong["kind"], wrong["offset"]) == (path, "list", 0)
    assert (wrong["first_lost"], wrong["last_lost"]) == (str(file.lowest), str(file.highest))
    (item,) = [
        each
        for each in repair(run, tmp_path, code=0)["files"]
        if each["kind"] == "list" and each["status"] != "clean"
    ]
    assert (item["file"], item["status"], item["given_up"]) == (path, status, None)
    assert f"{file.items} archives of {file.items} were found" in item["what"]
    copy = f"file://{tmp_path}/copy"
    assert {each.path for each in manifest(copy).archives} == {
        each for each in before if each.endswith(".parquet")
    }
    assert contents(copy) == expected


@every(2)
@pytest.mark.parametrize("harm", [lose, damage])
def test_prune_deletes_nothing_that_a_damaged_list_names(
    log: tuple[str, dict[str, Any]], run: Run, tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    url, _ = log
    assert run("rewrite", url).code == 0
    path = layout.list_path(FOLDER, lists(url)[0].name)
    harm(tmp_path / "log" / path)
    before = there(url)
    refused = run("prune", url, "--yes")
    assert refused.code == 1
    assert path in refused.err
    assert there(url) == before


def test_a_reader_reads_each_list_once(log: tuple[str, dict[str, Any]]) -> None:
    url, _ = log
    store = FaultyStore(open_store(url))
    reader = ClusterLog(Context(store), "default", "embedded")
    for _ in range(3):
        assert len({each.map for each in reader.state().nodes["n1"].manifest.archives}) == MAPS
    read = [each.path for each in store.operations if layout.list_number(each.path)]
    assert sorted(read) == sorted(layout.list_path(FOLDER, each.name) for each in lists(url))


@thorough
def test_a_prune_slower_than_manifests_are_kept_ends(
    run: Run, log: tuple[str, dict[str, dict[Any, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile its node publishes more manifests than are kept, without the lists that the prune
    has seen: it reads the manifests again."""
    url, expected = log
    assert run("rewrite", url).code == 0
    plan = plan_covered
    turns = []

    def slow(*arguments: Any, **options: Any) -> Any:
        turns.append(1)
        if len(turns) == 1:
            manifests = NodeManifestLog(Context(open_store(url)), FOLDER)
            seen = set(lists(url))
            while seen & set(lists(url)):
                manifests.update(lambda now: now.with_archives((), tuple(now.archives)[:1]))
            known = {layout.list_path(FOLDER, each.name) for each in seen}
            extra = archive(99)
            while known & there(url):
                manifests.update(lambda now: now.with_archives((extra,), ()))
                manifests.update(lambda now: now.with_archives((), (extra,)))
                manifests.update(lambda now: now.with_archives((), tuple(now.archives)[:1]))
        return plan(*arguments, **options)

    monkeypatch.setattr(pruning, "plan_covered", slow)
    pruned = run("prune", url, "--yes")
    assert pruned.code == 0, pruned.err
    assert len(turns) > 1
    assert contents(url) == expected
