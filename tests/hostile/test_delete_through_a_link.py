"""Attack: links in a folder, or paths in its manifests, make prune and archive delete files of
another log."""

from __future__ import annotations

import json
import logging
import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

import imap_wal
from imap_wal.clock import SystemClock
from imap_wal.context import Context, open_context
from imap_wal.disposal import dispose
from imap_wal.placement import open_store
from imap_wal.read.cluster import ClusterLog
from imap_wal.retention.removal import remove_covered
from imap_wal.settings import Settings
from rewrite_cli.cli import group
from rewrite_cli.console.check import WARNING
from rewrite_cli.doctor.storage import storage_checks
from storage_backends import Linked
from storage_backends.local import LocalStore
from storage_backends.location import Location
from tests.kit.effort import every
from tests.kit.folders import files

CLUSTER = "default/embedded"


def covered(root: Path) -> None:
    """A log whose archive, segments and first snapshot may be pruned."""
    with imap_wal.open(str(root), node="n") as store:
        store.map("m")["a"] = 1
        store.archive()
        store.map("m")["b"] = 2
    for _ in range(2):
        assert (
            CliRunner().invoke(group, ["rewrite", str(root)], catch_exceptions=False).exit_code == 0
        )
        with imap_wal.open(str(root), node="n") as store:
            store.map("m")["c"] = 3


@every(4)
@pytest.mark.parametrize(
    "linked",
    [
        "nodes/n/archive/m",
        "nodes/n/archive",
        "nodes/n/wal",
        "nodes/n",
        "snapshot/m",
        "snapshot",
        "",
    ],
)
def test_prune_deletes_nothing_through_a_link(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, linked: str
) -> None:
    victim, gift = tmp_path / "victim", tmp_path / "gift"
    covered(victim)
    shutil.copytree(victim, gift)
    # The attacker's folder has the same names as the victim's: the attacker knows them.
    place = gift / CLUSTER / linked
    shutil.rmtree(place)
    place.symlink_to(victim / CLUSTER / linked, target_is_directory=True)
    if linked in ("nodes/n", ""):  # their manifests would be the same
        manifests = sorted((victim / CLUSTER).rglob("manifest/*.json"))
        kept = {path: path.read_bytes() for path in manifests}
    before = {
        name: data for name, data in files(victim).items() if name.endswith((".wal", ".parquet"))
    }
    with caplog.at_level(logging.WARNING, "imap_wal"):
        CliRunner().invoke(group, ["prune", str(gift), "--yes"])
    after = files(victim)
    assert {name: after.get(name) for name in before} == before
    assert "is a symbolic link" in caplog.text
    if linked in ("nodes/n", ""):
        assert all(path.exists() or path in kept for path in manifests)


def test_archive_deletes_no_segment_through_a_link(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No entry is lost either."""
    root, elsewhere = tmp_path / "log", tmp_path / "elsewhere"
    imap_wal.open(str(root), node="n").close()
    shutil.move(root / CLUSTER / "nodes/n/wal", elsewhere)
    (root / CLUSTER / "nodes/n/wal").symlink_to(elsewhere)
    with imap_wal.open(str(root), node="n") as store:
        store.map("m")["a"] = 1
        before = set(os.listdir(elsewhere))
        with caplog.at_level(logging.WARNING, "imap_wal"):
            store.archive()
        assert before <= set(os.listdir(elsewhere))
    assert "is a symbolic link" in caplog.text
    with imap_wal.open(str(root), node="n") as store:
        assert dict(store.map("m").items()) == {"a": 1}


@pytest.mark.parametrize(
    "path",
    [
        "default/other/nodes/n/archive/m/1-1.parquet",
        "default/embedded/nodes/n/manifest/0000000001.json",
        "default/embedded/nodes/n/archive/m/notes.txt",
        "default/embedded/nodes/n/archive/notes.parquet",
        "default/embedded/nodes/n/writer.lock",
    ],
)
def test_only_names_of_archives_are_deleted(
    tmp_path: Path, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A path in a manifest that is not an archive of its node is kept, and a warning names it."""
    store = open_store(str(tmp_path))
    store.create(path, b"mine")
    with caplog.at_level(logging.WARNING, "imap_wal"):
        dispose(store, [path], "default/embedded/nodes/n/archive")
    assert store.read(path) == b"mine"
    assert path in caplog.text


def test_discard_is_a_delete_that_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "real")
    store = LocalStore(str(tmp_path / "root"))  # the root may be a link
    store.create("a/b/c", b"1")
    store.create("a/d", b"1")
    store.discard("a/b/c")
    assert (store.exists("a/b/c"), store.folders("a")) == (False, [])
    store.discard("a/b/c")
    store.discard("nowhere/c")
    store.discard("a/d/c")
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim/c").write_text("mine")
    (tmp_path / "real/a/link").symlink_to(tmp_path / "victim")
    with pytest.raises(Linked, match="link is a symbolic link"):
        store.discard("a/link/c")
    assert (tmp_path / "victim/c").read_text() == "mine"
    store.discard("a/d")
    assert os.listdir(tmp_path / "real/a") == ["link"]


def test_a_root_of_another_user_is_warned_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imap_wal.open(str(tmp_path / "log"), node="n").close()

    def said() -> list[str]:
        return [
            check.what
            for check in storage_checks(Location(str(tmp_path / "log")))
            if check.name == "owner" and check.status == WARNING
        ]

    assert said() == []
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert any("user 12345" in text for text in said())
    done = CliRunner().invoke(group, ["prune", str(tmp_path / "log"), "--dry-run"])
    assert "another user" in done.stderr
    monkeypatch.undo()
    (tmp_path / "log").chmod(0o777)
    assert any("may write" in text for text in said())
    assert ClusterLog(open_context(str(tmp_path / "log")), "default", "embedded")


@every(2)
@pytest.mark.parametrize("linked", ["nodes/n2", "nodes/n2/wal", "nodes/n2/archive"])
def test_a_node_with_a_linked_folder_is_forgotten(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, linked: str
) -> None:
    """`forget-node` completes, and nothing that the link leads to is deleted."""
    root, elsewhere = tmp_path / "log", tmp_path / "elsewhere"
    for node in ("n1", "n2"):
        with imap_wal.open(str(root), node=node) as store:
            store.map("m")[node] = 1
            store.archive()
            store.map("m")[node] = 2
    place = root / CLUSTER / linked
    shutil.move(place, elsewhere)
    place.symlink_to(elsewhere)
    linked_files = {name for name in files(elsewhere) if name.endswith((".wal", ".parquet"))}
    assert linked_files
    done = CliRunner().invoke(
        group, ["forget-node", str(root), "--node", "n2", "--lose", "--yes"], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    assert linked_files <= set(files(elsewhere))
    assert f"{place} is a symbolic link" in caplog.text
    again = CliRunner().invoke(
        group,
        ["forget-node", str(root), "--node", "n2", "--lose", "--yes", "-o", "json"],
        catch_exceptions=False,
    )
    assert [(node["before"], node["deleted"]) for node in json.loads(again.stdout)["nodes"]] == [
        (True, [])
    ]
    with imap_wal.open(str(root), node="n1") as store:
        assert dict(store.map("m")) == {"n1": 2}
    with imap_wal.open(str(root), node="n2") as store:
        store.map("m")["new"] = 3
    with imap_wal.open(str(root), node="n2") as store:
        assert dict(store.map("m")) == {"n1": 2, "new": 3}


@every(4)
@pytest.mark.parametrize("linked", ["nodes/n2", "nodes/n2/wal", "nodes/n2/archive"])
@pytest.mark.parametrize("how", ["prune", "retention"])
def test_what_cannot_be_deleted_stays_in_the_manifest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, linked: str, how: str
) -> None:
    """The report does not count it as deleted."""
    root, elsewhere = tmp_path / "log", tmp_path / "elsewhere"
    for value in range(3):
        with imap_wal.open(str(root), node="n2") as store:
            store.map("m")["a"] = value
            if not value:
                store.archive()
    place = root / CLUSTER / linked
    shutil.move(place, elsewhere)
    place.symlink_to(elsewhere)
    assert CliRunner().invoke(group, ["rewrite", str(root)], catch_exceptions=False).exit_code == 0
    log = ClusterLog(open_context(str(root)), "default", "embedded")
    before, linked_files = log.state().nodes["n2"], files(elsewhere)
    if how == "retention":
        later = ClusterLog(
            Context(log.store, clock=SystemClock(offset_ms=2000)), "default", "embedded"
        )
        settings = Settings(wal_ttl_seconds=1)
        removed = remove_covered(later, "n2", settings, before.segments[-1].number)
        gone = {
            *(each.path for each in removed.archives),
            *(each.path for each in removed.segments),
        }
        room = removed.bytes
    else:
        done = CliRunner().invoke(
            group, ["prune", str(root), "--yes", "-o", "json"], catch_exceptions=False
        )
        report = json.loads(done.stdout)["clusters"][0]
        gone, room = {*report["segments"], *report["archives"]}, report["bytes"]
    after = log.state().nodes["n2"]
    assert {name: data for name, data in files(elsewhere).items() if "manifest" not in name} == {
        name: data for name, data in linked_files.items() if "manifest" not in name
    }
    files_of = [
        {each.path: each.bytes for each in node.manifest.archives}
        | {each.path: each.bytes for each in node.segments}
        for node in (before, after)
    ]
    assert gone == files_of[0].keys() - files_of[1].keys()
    assert room == sum(files_of[0][path] for path in gone)
    assert not any((root / path).resolve().is_relative_to(elsewhere) for path in gone)
    assert bool(gone) == (linked != "nodes/n2")
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        f"{place} is a symbolic link"
    ]


def test_links_are_reported_at_an_open_and_by_doctor(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Once for each link."""
    root = tmp_path / "log"
    imap_wal.open(str(root), node="n").close()
    for part in ("wal", "archive"):
        place, elsewhere = root / CLUSTER / "nodes/n" / part, tmp_path / part
        elsewhere.mkdir()
        if place.exists():
            shutil.copytree(place, elsewhere, dirs_exist_ok=True)
            shutil.rmtree(place)
        place.symlink_to(elsewhere)
    expected = [
        f"{root / CLUSTER}/nodes/n/{part} is a symbolic link" for part in ("archive", "wal")
    ]
    with imap_wal.open(str(root), node="n") as store:
        assert [record.getMessage().partition(":")[0] for record in caplog.records] == expected
        for value in range(3):
            store.map("m")["a"] = value
            store.archive()
    assert len(caplog.records) == len(expected)
    assert "wal_dir" in caplog.text
    said = [check for check in storage_checks(Location(str(root))) if "symbolic link" in check.what]
    assert [check.what.partition(":")[0] for check in said] == expected
    assert all(check.status == WARNING and "wal_dir" in check.advice for check in said)


def test_a_linked_folder_of_wal_dir_is_named_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root, fast = tmp_path / "log", tmp_path / "fast"
    imap_wal.open(str(root), node="n", wal_dir=str(fast)).close()
    assert caplog.text == ""
    shutil.move(fast / CLUSTER / "nodes/n", tmp_path / "elsewhere")
    (fast / CLUSTER / "nodes/n").symlink_to(tmp_path / "elsewhere")
    imap_wal.open(str(root), node="n").close()
    assert f"{fast / CLUSTER}/nodes/n is a symbolic link" in caplog.text
