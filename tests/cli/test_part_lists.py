"""A log whose snapshots have their files in lists, through its life: every command reads it, a
damaged list is found and repaired, and no removal takes a file that a list names."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

import imap_wal
from imap_wal import layout
from imap_wal.context import Context, open_context
from imap_wal.errors import CorruptLog, LogError, ShortLog
from imap_wal.manifest.cluster import ClusterManifest, ClusterManifestLog
from imap_wal.manifest.list_files import ListFile
from imap_wal.manifest.readers import HISTORY, bases_of_history
from imap_wal.manifest.snapshots import Snapshot
from imap_wal.read.cluster import ClusterLog
from imap_wal.rewrite import part_writer
from imap_wal.rewrite.run import rewrite
from imap_wal.rewrite.sorted_runs import Sizes
from storage_backends import open_store
from tests.cli.conftest import Run
from tests.kit.effort import every, first, thorough
from tests.kit.list_files import check_parts, damage, lose, short_part_lists
from tests.kit.repairs import repair
from tests.kit.task_engine import TaskEngine

FOLDER = "default/embedded"
SPLIT = Sizes(range_bytes=1, group_rows=2)
KEYS = 100
Contents = dict[str, dict[Any, Any]]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    short_part_lists(monkeypatch, 3, 4)
    monkeypatch.setattr(part_writer, "PART_ROWS", 4)
    monkeypatch.setattr(part_writer, "PART_ROWS_MAX", 4)


@pytest.fixture
def log(tmp_path: Path, run: Run) -> tuple[str, Contents]:
    """The URL of a log whose map `m` has 25 files in lists, and its contents."""
    url = f"file://{tmp_path}/log"
    expected: Contents = {"m": {f"{key:03d}": 0 for key in range(KEYS)}, "small": {"a": 1}}
    with opened(url) as store:
        for name, entries in expected.items():
            store.map(name).update(entries)
    rewritten(run, url)
    assert len(snapshot(url).files) == KEYS // 4 and len(lists(url)) > 4
    return url, expected


def opened(url: str, **options: Any) -> imap_wal.Store:
    return imap_wal.open(url, node="n1", preallocate=False, **options)


def rewritten(run: Run, url: str, *words: str) -> None:
    for command in (["rewrite", url, *words], ["prune", url, "--yes"]):
        ended = run(*command)
        assert ended.code == 0, ended.err


def manifest(url: str) -> ClusterManifest:
    return ClusterManifestLog(Context(open_store(url)), FOLDER).read()[1]


def snapshot(url: str) -> Snapshot:
    return manifest(url).snapshots["m"]


def lists(url: str) -> tuple[ListFile, ...]:
    found = snapshot(url).files
    assert found is not None
    return found.lists


def contents(url: str, **options: Any) -> Contents:
    with opened(url, **options) as store:
        return {name: dict(store.map(name)) for name in sorted(store.maps())}


def there(url: str) -> set[str]:
    return {file.path for file in open_store(url).list(FOLDER)}


def check(url: str) -> None:
    """Every list that a manifest names is there, and every file that a list names."""
    check_parts(open_store(url), FOLDER)
    assert {path for each in manifest(url).snapshots.values() for path in each.paths} <= there(url)


def test_a_log_with_part_lists_lives_on(log: tuple[str, Contents], run: Run) -> None:
    url, expected = log
    kinds = run("verify", url, "-o", "json").json["files"]
    assert {file["status"] for file in kinds} == {"clean"}
    assert sum(file["kind"] == "list" for file in kinds) == len(lists(url))
    listed = run("ls", url, "--files", "-o", "json").json["files"]
    assert sum(file["kind"] == "list" for file in listed) == len(lists(url))
    for turn, key in enumerate(("002", "050", "051", "099", "100"), 1):
        before = lists(url)
        with opened(url) as store:
            store.map("m")[key] = turn
            if turn == 3:
                del store.map("m")["010"]
        expected["m"][key] = turn
        rewritten(run, url, *(["--map", "m"] if turn % 2 else []))
        check(url)
        assert contents(url) == expected if turn != 3 else expected["m"].pop("010") == 0
        if turn < 3:
            assert len(set(before) - set(lists(url))) <= 2, "most lists are named again"
    assert contents(url) == expected
    assert run("verify", url).code == 0
    with opened(url) as store:
        store.map("m").clear()
        store.map("m")["only"] = 1
    rewritten(run, url)
    check(url)
    assert contents(url) == {**expected, "m": {"only": 1}}
    assert run("drop", url, "--map", "m", "--yes").code == 0
    assert contents(url)["small"] == {"a": 1}


def test_tasks_rewrite_into_part_lists(log: tuple[str, Contents], run: Run) -> None:
    url, expected = log
    with opened(url) as store:
        store.map("m")["033"] = "new"
    expected["m"]["033"] = "new"
    before = lists(url)
    rewrite(ClusterLog(open_context(url), "default", "embedded"), TaskEngine(SPLIT))
    assert len(set(before) & set(lists(url))) >= len(before) - 2
    check(url)
    rewritten(run, url)
    assert contents(url) == expected


def test_a_backup_has_the_part_lists(log: tuple[str, Contents], run: Run, tmp_path: Path) -> None:
    url, expected = log
    place, back = f"file://{tmp_path}/backups", f"file://{tmp_path}/back"
    assert run("backup", url, place).code == 0
    ended = run("backup-restore", place, back)
    assert ended.code == 0, ended.err
    assert lists(back) == lists(url)
    check(back)
    assert run("verify", back).code == 0
    assert contents(back) == expected


@thorough
def test_the_history_has_lists_of_its_own(
    log: tuple[str, Contents], run: Run, tmp_path: Path
) -> None:
    url, _ = log
    for turn in range(3):
        with opened(url) as store:
            store.map("m").update({f"{key:03d}": turn for key in range(0, KEYS, 30)})
        assert run("rewrite", url, "--history", "1h").code == 0
        assert run("prune", url, "--history", "1h", "--yes").code == 0
        check(url)
    storage = open_store(url)
    bases = bases_of_history(storage, FOLDER)
    folder = f"{layout.readers_folder(FOLDER)}/{HISTORY}"
    check_parts(storage, folder)
    assert bases and all(each.snapshots["m"].files.lists for each in bases)
    for base in bases:
        assert set(base.snapshots["m"].paths) <= there(url)
    place, back = f"file://{tmp_path}/backups", f"file://{tmp_path}/back"
    assert run("backup", url, place).code == 0
    assert run("backup-restore", place, back).code == 0
    check_parts(open_store(back), folder)
    assert run("prune", url, "--forget-reader", "history", "--yes").code == 0
    assert not storage.list(f"{folder}/lists")
    check(url)


@every(2)
@pytest.mark.parametrize("harm", [lose, damage])
def test_a_damaged_list_of_a_reader_is_found_and_replaced(
    log: tuple[str, Contents], run: Run, tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    url, _ = log
    with opened(url) as store:
        store.map("m")["000"] = 1
    assert run("rewrite", url, "--history", "1h").code == 0
    folder = tmp_path / "log" / layout.readers_folder(FOLDER) / HISTORY / "lists"
    harmed = min(folder.iterdir())
    harm(harmed)
    found = run("verify", url, "-o", "json")
    (finding,) = [each for each in found.json["files"] if each["status"] != "clean"]
    assert (found.code, finding["kind"]) == (3, "list") and harmed.name in finding["file"]
    assert "--forget-reader history" in finding["advice"]
    made = run("backup", url, f"file://{tmp_path}/backups", "-o", "json")
    assert (made.code, len(made.json["damaged"])) == (3, 1)
    assert harmed.name in made.json["damaged"][0]["file"]
    assert run("prune", url, "--yes").code != 0, "what the reader needs is not known"
    with opened(url) as store:
        store.map("m")["001"] = 2
    assert run("rewrite", url, "--history", "1h").code == 0
    assert run("prune", url, "--yes").code == 0
    assert run("verify", url).code == 0
    harm(min(folder.iterdir()))
    assert run("prune", url, "--forget-reader", "history", "--yes").code == 0
    assert run("verify", url).code == 0
    check(url)


@every(7)
@pytest.mark.parametrize("former", [False, True])
@pytest.mark.parametrize(
    ("harm", "error", "status"), [(lose, ShortLog, "missing"), (damage, CorruptLog, "corrupt")]
)
@pytest.mark.parametrize("which", first([0, 2, -1], 1))
def test_a_harmed_part_list_is_found_and_repaired(
    log: tuple[str, Contents],
    run: Run,
    tmp_path: Path,
    harm: Callable[[Path], None],
    error: type[LogError],
    status: str,
    which: int,
    former: bool,
) -> None:
    """`former`: files of a former snapshot are there too."""
    url, expected = log
    if former:
        with opened(url) as store:
            for key in ("001", "041", "042", "098"):
                store.map("m")[key] = expected["m"][key] = "new"
        assert run("rewrite", url).code == 0
    file = lists(url)[which]
    path = layout.list_path(FOLDER, file.name)
    before, named = there(url), set(snapshot(url).paths)
    harm(tmp_path / "log" / path)
    assert run("prune", url, "--yes").code != 0
    assert run("rewrite", url).code != 0
    with pytest.raises(error, match=rf"{re.escape(path)} at byte 0.*repair"):
        contents(url)
    assert {each for each in before - there(url) if each.endswith(".parquet")} == set()
    found = run("verify", url, "-o", "json")
    assert found.code == 3
    (wrong,) = [each for each in found.json["files"] if each["status"] != "clean"]
    assert (wrong["file"], wrong["kind"], wrong["offset"]) == (path, "list", 0)
    (item,) = [
        each
        for each in repair(run, tmp_path, code=3 if former else 0)["files"]
        if each["kind"] == "list" and each["status"] != "clean"
    ]
    assert (item["file"], item["status"], item["given_up"] is None) == (path, status, not former)
    assert f"files of {file.items} were found" in item["what"]
    assert ("may be back" in item["what"]) == former
    copy = f"file://{tmp_path}/copy"
    assert set(snapshot(copy).paths) >= named
    check(copy)
    assert contents(copy) == expected
    rewritten(run, copy)
    assert contents(copy) == expected


def test_a_repair_says_what_it_cannot_know(
    log: tuple[str, Contents], run: Run, tmp_path: Path
) -> None:
    """A range was deleted, and the files of the former snapshot are still there: without the list,
    the file of that range looks like one of the present snapshot."""
    url, _ = log
    with opened(url) as store:
        for number in range(40, 44):
            del store.map("m")[f"{number:03d}"]
    assert run("rewrite", url).code == 0
    listed = snapshot(url).files
    assert listed.lists and len(listed) == KEYS // 4 - 1
    key = (b"\xa3" + b"040").hex()
    (within,) = [
        each
        for each, after in zip_longest(listed.lists, listed.lists[1:])
        if listed.read(each)[0].border <= key
        and (after is None or key < listed.read(after)[0].border)
    ]
    (tmp_path / "log" / layout.list_path(FOLDER, within.name)).unlink()
    (item,) = [
        each
        for each in repair(run, tmp_path)["files"]
        if each["kind"] == "list" and each["status"] != "clean"
    ]
    assert item["given_up"] is not None
    assert "entries that a rewrite removed may be back" in item["what"]


def test_a_repaired_copy_without_damage_has_the_part_lists(
    log: tuple[str, Contents], run: Run, tmp_path: Path
) -> None:
    url, expected = log
    repair(run, tmp_path, code=0)
    copy = f"file://{tmp_path}/copy"
    assert lists(copy) == lists(url)
    check(copy)
    assert contents(copy) == expected


def test_a_repaired_snapshot_has_part_lists(
    log: tuple[str, Contents], run: Run, tmp_path: Path
) -> None:
    """One of its files is missing, so the copy has a new manifest, and new lists. The segments
    still have its keys."""
    url, expected = log
    lost = tmp_path / "log" / snapshot(url).paths[7]
    lost.unlink()
    repair(run, tmp_path)
    copy = f"file://{tmp_path}/copy"
    check(copy)
    assert len(snapshot(copy).files) == KEYS // 4 - 1
    assert contents(copy)["m"] == expected["m"]
