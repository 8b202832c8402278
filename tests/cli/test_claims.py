"""Claims, which decide which Hazelcast cluster may write, have a manifest of their own: it is
listed, verified, and copied by a repair."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from imap_wal.clock import SeededRandomness
from imap_wal.context import Context
from imap_wal.inspect.inventory import take_inventory
from imap_wal.manifest.claims import ClaimManifest, claim_manifests
from imap_wal.manifest.cluster import ClusterManifest, ClusterManifestLog
from imap_wal.manifest.list_files import Listed
from imap_wal.manifest.snapshots import Snapshot, SnapshotFile
from imap_wal.repair.cluster_manifest import OF_NO_CLUSTER
from imap_wal.repair.snapshots import SnapshotRepair
from imap_wal.rewrite.ranges import borders_of
from storage_backends import StoredFile, open_store
from storage_backends.memory import MemoryStore
from tests.agent.harness import config, identity, plugin, serving
from tests.cli.conftest import Run
from tests.kit.repairs import always
from tests.support import FakeClock

CLAIMS = "default/c/claims/manifest"


def claims_of(url: str) -> ClaimManifest:
    return claim_manifests(Context(open_store(url)), "default/c").read()[1]


def cluster_of(url: str) -> ClusterManifest:
    return ClusterManifestLog(Context(open_store(url)), "default/c").read()[1]


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The log of an agent that two clusters wrote, one after the other."""
    settings = config(tmp_path)
    with serving(settings):
        for name in ("1", "2"):
            with plugin(settings, cluster_id=f"cluster-{name}", uuid=f"plugin-{name}") as member:
                assert member.put(**{name: name})[0] == "ack"
    return settings.url


def newest_claims(url: str) -> Path:
    return max((Path(url.removeprefix("file://")) / CLAIMS).glob("*.json"))


def test_ls_lists_the_manifests_of_claims_and_verify_reads_them(run: Run, url: str) -> None:
    files = run("ls", url, "--files", "-o", "json").json["files"]
    listed = {file["file"] for file in files if file["kind"] == "manifest"}
    newest = f"{CLAIMS}/{newest_claims(url).name}"
    assert newest in listed
    assert any(file.startswith("default/c/manifest/") for file in listed)
    ended = run("verify", url, "-o", "json")
    assert ended.code == 0
    assert [each["status"] for each in ended.json["files"] if each["file"] == newest] == ["clean"]
    assert ended.json["foreign"] == []


def test_a_repaired_copy_keeps_the_claims(run: Run, url: str, tmp_path: Path) -> None:
    copy = f"file://{tmp_path}/copy"
    assert run("repair", url, "--to", copy).code == 0
    assert claims_of(copy) == claims_of(url)
    settings = config(tmp_path, url=copy)
    with serving(settings), plugin(settings, cluster_id="cluster-2", uuid="plugin-2") as member:
        assert member.put(again="1")[0] == "ack", "the newest cluster continues"


@pytest.mark.parametrize("how", ["cut", "removed", "older"])
def test_a_lost_manifest_of_claims_repeats_no_incarnation(
    run: Run, url: str, tmp_path: Path, how: str
) -> None:
    """`verify` finds the loss."""
    path = newest_claims(url)
    if how == "cut":
        path.write_bytes(path.read_bytes()[:-20])
    else:
        path.unlink()
    if how == "older":
        for each in path.parent.glob("*.json"):
            each.unlink()
    verified = run("verify", url, "-o", "json")
    assert verified.code == 3
    (found,) = (each for each in verified.json["files"] if each["status"] == "corrupt")
    assert found["file"].startswith(CLAIMS)

    copy, given = f"file://{tmp_path}/copy", cluster_of(url).incarnation
    assert run("repair", url, "--to", copy, "-o", "json").code == 3
    assert run("verify", copy).code == 0
    assert claims_of(copy).claims[OF_NO_CLUSTER] >= given
    settings = config(tmp_path, url=copy)
    with serving(settings):
        former = plugin(settings, cluster_id="cluster-1", uuid="plugin-1")
        if how == "older":  # nothing is known of this cluster any more: it is a new one
            with former as member:
                assert member.incarnation > given
        else:
            with pytest.raises(AssertionError, match="void-incarnation"):
                former.__enter__()
        with plugin(settings, cluster_id="cluster-3", uuid="plugin-3") as member:
            assert member.put(new="1")[0] == "ack"
    assert claims_of(copy).claims[identity("cluster-3")] > given


def test_verify_finds_a_cluster_manifest_older_than_the_claims(run: Run, url: str) -> None:
    folder = Path(url.removeprefix("file://")) / "default/c/manifest"
    for path in sorted(folder.glob("*.json"))[1:]:
        path.unlink()
    verified = run("verify", url, "-o", "json")
    assert verified.code == 3
    assert any(
        "was claimed" in each["what"] or "has seen" in each["what"]
        for each in verified.json["files"]
    )


def test_a_snapshot_with_adopted_files_is_mixed() -> None:
    """Its files may have the same keys, and entries above its marks."""
    store: Any = MemoryStore("adopted")
    manifests = ClusterManifestLog(
        Context(store, clock=FakeClock(), randomness=SeededRandomness(1)), "default/c"
    )
    old = "default/c/snapshot/m/00000001/part-00000.parquet"
    new = "default/c/snapshot/m/00000002/part-00000.parquet"
    store.create(old, b"old")
    store.create(new, b"new!")
    former = SnapshotFile(old, 7, 3, 1, "", 0)
    known = Snapshot(1, Listed([former]), {}, 1, 0, 3, 0)
    manifests.update(lambda manifest: manifest.with_snapshot("m", known))
    (view,) = take_inventory(Context(store))
    context = Context(store, clock=FakeClock())
    repair = SnapshotRepair(context, view, always, lambda _: None, [])
    adopted = repair.adopted("m", [StoredFile(new, 4, 0)])
    assert tuple(adopted.files) == (former, SnapshotFile(new, 0, 4, 0, "", 0))
    assert adopted.mixed and adopted.bytes == 7
    assert borders_of(adopted, store) is None
