"""The feature level of a log: which formats are written, who raises it, and who refuses it."""

from __future__ import annotations

import json
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import imap_wal
from imap_wal.clock import SystemClock, SystemRandomness
from imap_wal.errors import UnsupportedVersion
from imap_wal.manifest.cluster import ClusterManifest, cluster_manifests
from imap_wal.manifest.feature_level import FIRST, NEWEST
from imap_wal.manifest.node import NodeManifest, node_manifests
from imap_wal.manifest.store import ManifestLog
from imap_wal.manifest.upgrade import Upgrade
from imap_wal.version import VERSION
from rewrite_cli.cli import group
from storage_backends import open_store
from storage_backends.memory import MemoryStore
from tests.histories import put
from tests.kit.golden_logs import CONTENTS, GOLDEN
from tests.kit.logs import append, node
from tests.kit.rewrites import archive

FOLDER = "default/embedded"


def clusters(store: Any) -> ManifestLog[ClusterManifest]:
    return cluster_manifests(store, FOLDER, SystemClock(), SystemRandomness())


def nodes(store: Any, name: str = "embedded") -> ManifestLog[NodeManifest]:
    return node_manifests(store, f"{FOLDER}/nodes/{name}", SystemClock(), SystemRandomness())


def forget_levels(store: Any, *names: str) -> None:
    """Leave the log as a release without levels does, which drops the fields that it does not
    know."""
    clusters(store).update(lambda now: replace(now, level=0))
    for name in names:
        nodes(store, name).update(lambda now: replace(now, level=0, release=""))


def opened(store: MemoryStore, **options: Any) -> imap_wal.Store:
    return imap_wal.open("memory://", storage=store, **options)


def archived(store: MemoryStore, **options: Any) -> bool:
    """Whether an archive that is written now is sorted by key."""
    with opened(store, **options) as maps:
        maps.map("orders").update({"b": 1, "a": 2})
        maps.archive()
        assert dict(maps.map("orders")) == {"b": 1, "a": 2}
    return bool(nodes(store).read()[1].archives[-1].unpacked)


def test_a_new_log_begins_with_the_newest_level(memory: MemoryStore) -> None:
    assert archived(memory)
    assert clusters(memory).read()[1].feature_level is NEWEST
    found = nodes(memory).read()[1]
    assert (found.level, found.release) == (NEWEST, VERSION)


def test_a_log_keeps_its_formats_until_raised(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(memory).close()
    forget_levels(memory, "embedded")
    assert not archived(memory, keep_level=True)
    with monkeypatch.context() as older:
        older.setattr(ClusterManifest, "formats", (1, 2, 3))
        older.setattr(NodeManifest, "formats", (1, 2, 3))
        assert clusters(memory).read()[1].feature_level is FIRST
        assert nodes(memory).read()[1].archives, "an older release reads all of it"
    assert archived(memory), "an open without keep_level raises the level"
    monkeypatch.setattr(ClusterManifest, "formats", (1, 2, 3))
    with pytest.raises(UnsupportedVersion, match=rf"manifest format {NEWEST:d}.*upgrade imap-wal"):
        clusters(memory).read()


def test_a_shared_store_waits_for_other_programs(
    memory: MemoryStore,
) -> None:
    with opened(memory, node="other", shared=True), opened(memory, shared=True):
        forget_levels(memory, "other")
    opened(memory, shared=True).close()
    assert clusters(memory).read()[1].feature_level is FIRST
    opened(memory, node="other", shared=True).close()
    assert clusters(memory).read()[1].feature_level is NEWEST, "the last one was upgraded"


def test_a_store_that_fences_all_others_raises_the_level(memory: MemoryStore) -> None:
    with opened(memory, node="other", shared=True), opened(memory, shared=True):
        forget_levels(memory, "other")
    opened(memory).close()
    assert clusters(memory).read()[1].feature_level is NEWEST


def test_a_new_node_of_an_older_log_leaves_its_level(memory: MemoryStore) -> None:
    opened(memory).close()
    forget_levels(memory, "embedded")
    with opened(memory, node="second", shared=True):
        assert clusters(memory).read()[1].feature_level is FIRST


def test_an_agents_node_does_not_raise_the_level(memory: MemoryStore) -> None:
    log = node(memory)
    identity = log.identity
    log.close()
    manifests = cluster_manifests(
        memory, identity.cluster_folder, SystemClock(), SystemRandomness()
    )
    manifests.update(lambda now: replace(now, level=0))
    again = node(memory)
    append(again, put("a", "1", (1, 1, 1, 1)))
    archive(memory, again)
    assert not again.manifests.read()[1].by_key
    upgrade = Upgrade(memory, identity.cluster_folder, SystemClock(), SystemRandomness())
    assert upgrade.run().level is NEWEST
    append(again, put("b", "1", (1, 1, 1, 2)))
    archive(memory, again)
    assert again.manifests.read()[1].by_key, "no restart is needed"


def run(*words: str, code: int = 0) -> Any:
    result = CliRunner().invoke(group, ["upgrade", *words])
    assert result.exit_code == code or (code and result.exception), result.output
    return result


@pytest.fixture
def older(tmp_path: Path) -> str:
    """A log of the first release, with two nodes."""
    url = (tmp_path / "log").as_uri()
    with imap_wal.open(url, node="n1", shared=True), imap_wal.open(url, node="n2", shared=True):
        forget_levels(open_store(url), "n2")
    return url


def test_upgrade_is_refused_with_the_older_node(older: str) -> None:
    for words in (["--dry-run"], ["--yes"]):
        refused = run(older, "-o", "json", *words, code=2)
        found = json.loads(refused.stdout)["clusters"][0]
        assert (found["before"], found["level"]) == (FIRST, FIRST)
        assert "node 'n2', last opened by an older imap-wal" in found["refused"]
        assert "'n2'" in str(refused.exception) and "'n1'" not in str(refused.exception)


def test_upgrade_raises_the_level_once_all_can_read(older: str) -> None:
    imap_wal.open(older, node="n2", shared=True, keep_level=True).close()
    planned = json.loads(run(older, "--dry-run", "-o", "json").stdout)["clusters"][0]
    assert (planned["level"], planned["refused"]) == (FIRST, "")
    assert "sorted by key" in planned["brings"]["4"]
    assert [(each["node"], each["release"], each["level"]) for each in planned["nodes"]] == [
        ("n1", VERSION, NEWEST),
        ("n2", VERSION, NEWEST),
    ]
    assert f"raised from 3 to {NEWEST:d}" in run(older, "--yes").output
    assert f"feature level {NEWEST:d}, of {NEWEST:d}" in run(older).output, (
        "a second run has nothing to ask"
    )


def test_a_missing_node_prevents_an_upgrade(older: str) -> None:
    shutil.rmtree(Path(older.removeprefix("file://")) / FOLDER / "nodes" / "n2")
    assert "node 'n2', whose log is missing" in str(run(older, "--yes", code=2).exception)


@pytest.mark.parametrize("name", [name for name in CONTENTS if "lists" not in name])
def test_a_golden_log_is_upgraded(name: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(GOLDEN / f"{name}.zip") as golden:
        golden.extractall(tmp_path / "log")
    url = (tmp_path / "log").as_uri()
    planned = json.loads(run(url, "--dry-run", "-o", "json", code=2).stdout)
    assert planned["clusters"][0]["refused"], "an older release opened it last"
    with imap_wal.open(url, node="n1", keep_level=True) as store:
        assert {each: dict(store.map(each)) for each in CONTENTS[name]} == CONTENTS[name]
    run(url, "--yes")
    with imap_wal.open(url, node="n1") as store:
        store.archive()
        assert {each: dict(store.map(each)) for each in CONTENTS[name]} == CONTENTS[name]


def test_doctor_says_when_an_upgrade_would_raise_the_level(older: str) -> None:
    def check() -> dict[str, str]:
        done = CliRunner().invoke(group, ["doctor", older, "-o", "json"])
        name = "feature level of default/embedded"
        (found,) = (each for each in json.loads(done.stdout)["checks"] if each["name"] == name)
        return dict(found)

    assert (check()["status"], "node 'n2'" in check()["what"]) == ("ok", True)
    imap_wal.open(older, node="n2", shared=True, keep_level=True).close()
    assert (check()["status"], "imap-wal upgrade" in check()["advice"]) == ("warning", True)
    run(older, "--yes")
    assert check()["what"] == f"{NEWEST:d}, the newest that this release knows"


def test_ls_shows_the_level(older: str) -> None:
    listed = CliRunner().invoke(group, ["ls", older])
    assert f"default/embedded: feature level {FIRST:d}, of {NEWEST:d}" in listed.stdout
    (found,) = json.loads(CliRunner().invoke(group, ["ls", older, "-o", "json"]).stdout)["clusters"]
    assert found["feature_level"] == FIRST
