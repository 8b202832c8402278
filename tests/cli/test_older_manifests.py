"""Manifests that are damaged, or older than the files beside them: verify finds them, and repair
writes a copy with every acknowledged entry, whose epochs and incarnations were never used
before."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import imap_wal
from imap_wal import layout
from imap_wal.context import Context
from imap_wal.errors import ImapWalError, LogError
from imap_wal.manifest.cluster import ClusterManifest, ClusterManifestLog
from imap_wal.manifest.node import NodeManifest, NodeManifestLog
from storage_backends import open_store
from tests.cli.conftest import Run
from tests.kit.effort import every, first

NODES = ("n1", "n2")
CLUSTER = "default/embedded"


@pytest.fixture
def log(tmp_path: Path, run: Run) -> tuple[str, dict[str, Any]]:
    """Two nodes, several epochs, archives, a rewrite and a prune, and commits after that; and its
    contents."""
    url = f"file://{tmp_path}/log"
    expected: dict[str, Any] = {}
    count = itertools.count(1)

    def write(node: str, commits: int, *, archive: bool = False) -> None:
        with imap_wal.open(
            url, node=node, shared=True, preallocate=False, segment_bytes=2000
        ) as store:
            for _ in range(commits):
                number = next(count)
                key, value = f"{node}-{number % 40}", [number, "x" * 100]
                store.map("m")[key] = value
                expected[key] = value
            if archive:
                store.archive()

    write("n1", 30)
    write("n2", 15, archive=True)
    write("n1", 10, archive=True)
    assert run("rewrite", url).code == 0
    assert run("prune", url, "--yes").code == 0
    write("n2", 20, archive=True)
    write("n1", 12)
    write("n2", 5)
    return url, expected


def manifests(url: str, folder: str) -> list[Path]:
    return sorted((Path(url.removeprefix("file://")) / folder / "manifest").glob("*.json"))


def contents(url: str) -> dict[str, Any]:
    with imap_wal.open(url, node="n1", shared=True) as store:
        return dict(store.map("m").items())


def node_manifest(url: str, node: str) -> NodeManifest:
    return NodeManifestLog(Context(open_store(url)), f"{CLUSTER}/nodes/{node}").read()[1]


def cluster_manifest(url: str) -> ClusterManifest:
    return ClusterManifestLog(Context(open_store(url)), CLUSTER).read()[1]


def check_copy(
    run: Run,
    url: str,
    copy: str,
    expected: dict[str, Any],
    before: Any,
    why: str,
    damaged: bool = True,
) -> None:
    ended = run("repair", url, "--to", copy, "-o", "json")
    assert ended.code == (3 if damaged else 0), f"{why}: {ended.err}"
    assert run("verify", copy).code == 0, f"{why}: {run('verify', copy).out}"
    # The epoch, sessions, incarnation and generation of the copy were never used before.
    epochs, incarnation, generation = before
    for node, epoch in epochs.items():
        assert node_manifest(copy, node).epoch >= epoch, f"{why}: {node}"
    assert contents(copy) == expected, why
    with imap_wal.open(copy, node="n2", shared=True) as store:
        store.map("m")["new"] = 1
    assert contents(copy) == {**expected, "new": 1}, why
    assert cluster_manifest(copy).incarnation > incarnation, why
    assert run("rewrite", copy).code == 0, why
    assert run("prune", copy, "--yes").code == 0, why
    assert contents(copy) == {**expected, "new": 1}, why
    assert cluster_manifest(copy).generation > generation, why


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


@every(7)
@pytest.mark.parametrize("how", [damage, Path.unlink], ids=["damaged", "removed"])
@pytest.mark.parametrize(
    "folder", first([f"{CLUSTER}/nodes/n1", CLUSTER, f"{CLUSTER}/nodes/n2"], 2)
)
def test_repair_without_newest_manifests_keeps_acknowledged_entries(
    run: Run,
    log: tuple[str, dict[str, Any]],
    tmp_path: Path,
    folder: str,
    how: Callable[[Path], None],
) -> None:
    """Any number of the newest manifests may be lost."""
    url, expected = log
    before = (
        {node: node_manifest(url, node).epoch for node in NODES},
        cluster_manifest(url).incarnation,
        cluster_manifest(url).generation,
    )
    everything = manifests(url, folder)
    lost = []
    for path in reversed(everything[1:]):
        data = path.read_bytes()
        how(path)
        lost.append((path, data))
        if len(lost) not in (1, 4, 8) and path != everything[1]:
            continue  # not every number, to save time
        why = f"{len(lost)} of {len(everything)} {how.__name__} in {folder}"
        verified = run("verify", url, "-o", "json")
        found = verified.json["files"]
        corrupt = [
            file for file in found if file["kind"] == "manifest" and file["status"] == "corrupt"
        ]
        if how is damage:
            assert verified.code == 3, why
            assert corrupt, why
            with pytest.raises(LogError, match="imap-wal repair"):
                contents(url)
        elif verified.code == 0:
            # The facts in the lost manifests are in no file, or the next open finds them again.
            assert contents_of_a_copy(run, url, tmp_path / f"plain-{len(lost)}") == expected, why
            continue
        check_copy(run, url, f"file://{tmp_path}/copy-{len(lost)}", expected, before, why)


def contents_of_a_copy(run: Run, url: str, place: Path) -> dict[str, Any]:
    import shutil

    shutil.copytree(url.removeprefix("file://"), place)
    return contents(f"file://{place}")


def test_a_folder_of_segments_of_another_log_is_found(
    run: Run, log: tuple[str, dict[str, Any]]
) -> None:
    url, _ = log
    wal_id = node_manifest(url, "n2").wal_id
    (Path(url.removeprefix("file://")) / layout.log_path(f"{CLUSTER}/nodes/n2", wal_id)).unlink()
    ended = run("verify", url, "-o", "json")
    assert ended.code == 3
    (file,) = [file for file in ended.json["files"] if file["status"] != "clean"]
    assert (file["file"], file["kind"]) == (f"{CLUSTER}/nodes/n2/wal", "node")


@every(2)
@pytest.mark.parametrize("archived", [False, True])
def test_repair_beside_a_copys_manifests_keeps_acknowledged_entries(
    tmp_path: Path, run: Run, archived: bool
) -> None:
    """The copy was opened, and has a history of its own: its epochs say nothing about these
    files."""
    live, copy = tmp_path / "live", tmp_path / "copy"
    options: dict[str, Any] = {"node": "n1", "preallocate": False, "segment_bytes": 1000}

    def write(root: Path, clean: bool, **entries: int) -> None:
        store = imap_wal.open(str(root), **options)
        for key, value in entries.items():
            store.map("m")[key] = value
        if archived and entries:
            store.archive()
        for number in range(20 if entries else 0):
            store.map("m")["n"] = number
        if clean:
            store.close()
        else:
            store.committer.log.close(clean=False)  # as if it were killed

    write(live, False, first=1)
    shutil.copytree(live, copy)
    write(copy, False)
    write(copy, True)
    write(live, False, second=2)
    write(live, True, late=3)
    with imap_wal.open(str(live), **options) as store:
        expected = dict(store.map("m"))
    folder = f"{CLUSTER}/nodes/n1/manifest"
    shutil.rmtree(live / folder)
    shutil.copytree(copy / folder, live / folder)
    with pytest.raises(LogError):
        imap_wal.open(str(live), **options)
    run("repair", str(live), "--to", str(tmp_path / "repaired"))
    assert run("verify", str(tmp_path / "repaired")).code == 0
    with imap_wal.open(str(tmp_path / "repaired"), **options) as store:
        assert dict(store.map("m")) == expected


@every(2)
@pytest.mark.parametrize("which", ["n1", "the cluster"])
def test_a_repair_is_refused_where_no_manifest_is_left(
    run: Run, log: tuple[str, dict[str, Any]], tmp_path: Path, which: str
) -> None:
    """One is brought back from a copy. Without a node's, the other nodes can be repaired."""
    url, _ = log
    folder = CLUSTER if which == "the cluster" else f"{CLUSTER}/nodes/{which}"
    shutil.rmtree(Path(url.removeprefix("file://")) / folder / "manifest")
    verified, doctor = run("verify", url, "-o", "json"), run("doctor", url)
    assert verified.code == doctor.code == 3
    (bad,) = [file for file in verified.json["files"] if file["status"] != "clean"]
    assert bad["file"] == f"{folder}/manifest" and "bring a manifest back" in bad["advice"]
    assert doctor.out.count("there is no manifest") == 1
    with pytest.raises(ImapWalError, match=r"no manifest|older than the files|lost or replaced"):
        contents(url)
    for options in (("--dry-run",), ("--to", tmp_path / "copy")):
        ended = run("repair", url, *options)
        assert ended.code == 1 and "bring a manifest back" in " ".join(ended.err.split())
    assert not (tmp_path / "copy").exists() or not any((tmp_path / "copy").rglob("*.*"))
    if which != "the cluster":
        assert run("repair", url, "--node", "n2", "--to", tmp_path / "copy").code in (0, 3)


def test_archive_dry_run_refuses_a_missing_node_manifest(
    run: Run, log: tuple[str, dict[str, Any]]
) -> None:
    """The run refuses it, too."""
    url, _ = log
    shutil.rmtree(Path(url.removeprefix("file://")) / f"{CLUSTER}/nodes/n1/manifest")
    ended = [run("archive", url, "--node", "n1", *options) for options in ((), ("--dry-run",))]
    assert [(each.code, "has no manifest" in each.err) for each in ended] == [(1, True)] * 2


def test_files_without_any_manifest_are_not_an_empty_cluster(run: Run, tmp_path: Path) -> None:
    """No snapshot is here, and no cluster manifest that names the node: restore reported 0 entries,
    and a new node began beside it."""
    url = str(tmp_path / "log")
    with imap_wal.open(url, node="n1") as store:
        store.map("m")["a"] = 1
    for folder in (CLUSTER, f"{CLUSTER}/nodes/n1"):
        shutil.rmtree(tmp_path / "log" / folder / "manifest")
    assert run("restore", url).code == 1
    with pytest.raises(LogError, match="there are segments"):
        imap_wal.open(url, node="n2")


def test_an_unregistered_first_open_is_no_damage(run: Run, tmp_path: Path) -> None:
    """The first open ended before its log was registered.
    The node has a manifest, and the cluster has none yet."""
    url = str(tmp_path / "log")
    imap_wal.open(url, node="n1").close()
    root = tmp_path / "log" / CLUSTER
    shutil.rmtree(root / "manifest")
    shutil.rmtree(root / "opened")
    for path in sorted((root / "nodes/n1/manifest").glob("*.json"))[1:]:
        path.unlink()
    assert run("verify", url).code == 0 and run("doctor", url).code == 0
    with imap_wal.open(url, node="n1") as store:
        store.map("m")["a"] = 1


def test_snapshots_alone_are_no_healthy_log(run: Run, log: tuple[str, dict[str, Any]]) -> None:
    url, _ = log
    assert run("rewrite", url).code == 0
    root = Path(url.removeprefix("file://")) / CLUSTER
    (root / "rewrite.lock").unlink()
    for path in list(root.iterdir()):
        if path.name != "snapshot":
            shutil.rmtree(path)
    verified, doctor = run("verify", url), run("doctor", url)
    assert verified.code == doctor.code == 3
    assert "no manifest" in verified.out and "no manifest" in doctor.out
