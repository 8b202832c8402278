"""Mistakes that would look like an empty log: an unknown map, a time before the log; and what is
written of a log that is damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import imap_wal
from imap_wal.clock import SystemClock
from imap_wal.context import Context
from imap_wal.read import map_names
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.file_scan import FileScan
from imap_wal.read.scan import read_scan
from storage_backends import open_store
from tests.cli.conftest import Run
from tests.kit.effort import every

COMMANDS = ("dump", "export", "restore", "rewrite", "query", "stat", "drop", "tail", "diff")


@every(3)
@pytest.mark.parametrize("name", COMMANDS)
def test_an_unknown_map_is_an_error(run: Run, url: str, name: str) -> None:
    """Also beside a map that exists; the error names the maps."""
    extra = {"drop": ("--yes",), "diff": ("--as-of", "0s")}.get(name, ())
    for words in (("--map", "oders"), ("--map", "oders", "--map", "orders")):
        ended = run(name, url, *words, *extra)
        assert (ended.code, ended.out) == (2 if name == "diff" else 1, "")
        assert "no map 'oders'; found: orders, sessions; did you mean 'orders'?" in ended.err


def test_an_unknown_map_leaves_no_file(run: Run, url: str, tmp_path: Path) -> None:
    target = tmp_path / "backup.jsonl"
    assert run("export", url, "--map", "oders", "--to", target).code == 1
    assert run("restore", url, "--map", "oders", "--to", tmp_path / "copy").code == 1
    assert not target.exists()
    assert not (tmp_path / "copy").exists()


def test_a_map_is_known_by_any_entry_of_it(run: Run, tmp_path: Path) -> None:
    """In the last segment only, deleted, in an archive only, or in a snapshot only."""
    with imap_wal.open(tmp_path.as_uri(), node="n1", preallocate=False) as store:
        store.map("archived")["k"] = 1
        store.archive()
        store.map("deleted")["k"] = 1
        del store.map("deleted")["k"]
    with imap_wal.open(tmp_path.as_uri(), node="n2", preallocate=False) as store:
        store.map("last")["k"] = 1
    assert run("drop", tmp_path, "--map", "archived", "--yes").code == 0
    assert run("prune", tmp_path, "--yes").code == 0
    for name in ("archived", "deleted", "last"):
        assert run("export", tmp_path, "--map", name).code == 0
    ended = run("export", tmp_path, "--map", "other")
    assert ended.code == 1
    assert "found: archived, deleted, last" in ended.err


def test_the_error_of_many_unknown_maps_is_short(run: Run, url: str) -> None:
    """To compare all of them with all maps that exist took minutes."""
    unknown = [word for number in range(1000) for word in ("--map", f"oders{number:04}")]
    ended = run("dump", url, *unknown)
    assert ended.code == 1
    assert "'oders0019', and 980 more; found: orders, sessions; did you" in ended.err
    assert "oders0020" not in ended.err


def test_no_segment_is_read_if_a_manifest_has_the_map(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it is the manifest of the last cluster."""
    for cluster in ("a", "b"):
        with imap_wal.open(tmp_path.as_uri(), cluster=cluster, preallocate=False) as store:
            store.map(cluster)["k"] = 1
            if cluster == "b":
                store.archive()
    read: list[str] = []

    def noting(context: Any, scan: FileScan) -> Any:
        read.append(scan.path)
        return read_scan(context, scan)

    monkeypatch.setattr(map_names, "read_scan", noting)
    opened = open_store(tmp_path.as_uri())
    logs = [ClusterLog(Context(opened), "default", cluster) for cluster in ("a", "b")]
    assert map_names.why_no_map(logs, ["b"]) == ""
    assert not read
    assert map_names.why_no_map(logs, ["a", "b"]) == ""
    assert [path.split("/")[1] for path in read] == ["a"]


@pytest.mark.parametrize("name", ["export", "restore", "query", "rewrite"])
def test_a_time_before_the_first_entry_is_an_error(run: Run, url: str, name: str) -> None:
    ended = run(name, url, "--as-of", "@1000")
    assert ended.code in (1, 2)
    assert ended.out == ""
    assert "the first one is of 2" in ended.err or "the first one is of 1" in ended.err


def test_a_key_before_the_first_entry_is_unknown(run: Run, url: str) -> None:
    """Not a key that the map does not have. The key may also be one that is written later."""
    for key in ("o1", "nosuch"):
        ended = run("get", url, "--map", "orders", key, "--as-of", "2020-01-01")
        assert ended.code == 1
        assert "there is no entry of 2020-01-01T00:00:00.000Z or before" in ended.err
        assert "the first one is of 2" in ended.err
    missing = run("get", url, "--map", "orders", "nosuch", "--as-of", "0s")
    assert "has no key 'nosuch'" in missing.err


@pytest.mark.parametrize("name", ["export", "restore", "query", "rewrite", "diff"])
def test_a_time_in_the_future_is_an_error(run: Run, url: str, name: str) -> None:
    """Otherwise a mistyped year would show the present state as that of another time."""
    query = ("from orders",) if name == "query" else ()
    ended = run(name, url, *query, "--as-of", "2099-01-01")
    assert (ended.code, ended.out) == (2, "")
    assert "'2099-01-01' is in the future: it is 2099-01-01T00:00:00.000Z" in ended.err


def test_a_time_slightly_in_the_future_is_accepted(run: Run, url: str) -> None:
    """Entries have the times of their writers' clocks, which may differ from this machine's."""
    soon = SystemClock().now_ms() + 60_000
    assert run("export", url, "--as-of", f"@{soon}").code == 0


def test_a_younger_cluster_is_named_beside_an_older_one(run: Run, url: str) -> None:
    first = min(line["timestamp_ms"] for line in run("dump", url, "-o", "json").lines)
    with imap_wal.open(url, cluster="young", clock=SystemClock(3_600_000)) as store:
        store.map("m")["k"] = 1
    ended = run("export", url, "--as-of", f"@{first + 60_000}")
    assert (ended.code, len(ended.lines)) == (0, 10)
    assert "default/young: there is no entry of" in ended.err


def test_a_dropped_map_had_an_earlier_state(run: Run, tmp_path: Path) -> None:
    """A snapshot without entries is no reason to say that the log began later."""
    with imap_wal.open(tmp_path.as_uri()) as store:
        store.map("m")["k"] = 1
    assert run("drop", tmp_path, "--map", "m", "--yes").code == 0
    (snapshot,) = run("ls", tmp_path, "-o", "json").json["snapshots"]
    with imap_wal.open(tmp_path.as_uri(), clock=SystemClock(3_600_000)) as store:
        store.map("m")["k"] = 2
    assert run("prune", tmp_path, "--yes").code == 0
    ended = run("export", tmp_path, "--as-of", "0s")
    assert (ended.code, ended.out, snapshot["map"]) == (0, "", "m")


def test_doctor_creates_nothing(run: Run, url: str, root: Path, tmp_path: Path) -> None:
    """Neither in a log, nor in an empty or a missing folder; also without a lock file."""
    (root / "prod/eu/nodes/n1/writer.lock").unlink()
    (tmp_path / "empty").mkdir()
    before = sorted(tmp_path.rglob("*"))
    for place in (url, f"objects+{url}", tmp_path / "empty", tmp_path / "absent/folder"):
        assert run("doctor", place).code == 0
        assert sorted(tmp_path.rglob("*")) == before


def test_doctor_reports_a_folder_that_cannot_be_written(
    run: Run, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    ended = run("doctor", url)
    assert ended.code == 3
    assert "may not write to" in ended.out


def _damage(file: Path, needle: bytes) -> None:
    content = bytearray(file.read_bytes())
    content[content.index(needle)] ^= 0xFF
    file.write_bytes(content)


def test_a_dump_continues_after_a_damaged_file(run: Run, log: Path) -> None:
    """The first segment is damaged at its 5th entry."""
    whole = run("dump", log.parents[4], "-o", "json").lines
    _damage(min(log.glob("*.wal")), b"k5")
    ended = run("dump", log.parents[4], "-o", "json")
    assert ended.code == 3
    assert ended.lines == [line for line in whole if line["value"][0] or line["value"][1] < 5]
    assert "left out: default/embedded" in ended.err
    assert min(log.glob("*.wal")).name in ended.err


def test_dump_and_export_continue_after_a_damaged_cluster(
    run: Run, url: str, root: Path, log: Path
) -> None:
    """A segment or a manifest of one of two clusters is damaged."""
    (log.parents[3]).rename(root / "second")
    segments = root / "second/embedded/nodes/n1/wal"
    _damage(min(segments.glob("*.wal")), b"k5")
    for kind in ("segment", "manifest"):
        exported = run("export", url)
        assert (exported.code, len(exported.lines)) == (3, 10)
        assert "left out: cluster second/embedded: " in exported.err
        assert run("dump", url, "--map", "orders", "-o", "json").code == 3
        if kind == "segment":
            newest = max((root / "second/embedded/manifest").glob("*.json"))
            newest.write_bytes(b"{" * newest.stat().st_size)


def test_an_export_of_damaged_clusters_only_writes_nothing(
    run: Run, log: Path, tmp_path: Path
) -> None:
    _damage(min(log.glob("*.wal")), b"k5")
    target = tmp_path / "out.jsonl"
    assert run("export", log.parents[4], "--to", target).code == 1
    assert not target.exists()
