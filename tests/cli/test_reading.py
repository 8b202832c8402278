"""The output of ls, stat, dump, export and restore for a known log."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from click.testing import CliRunner

import imap_wal
from imap_wal.context import Context
from imap_wal.format import START
from imap_wal.read import cluster
from imap_wal.read.file_scan import EntryBatch, FileScan
from imap_wal.read.scan import read_scan
from rewrite_cli.cli import group
from tests.cli.conftest import Run
from tests.kit.orders import LIVE


def test_ls_shows_nodes_and_files(run: Run, url: str) -> None:
    nodes = {node["node"]: node for node in run("ls", url, "-o", "json").json["nodes"]}
    assert (nodes["n1"]["archives"], nodes["n1"]["archived_records"], nodes["n1"]["state"]) == (
        1,
        12,
        "closed",
    )
    files = run("ls", url, "--files", "-o", "json").json["files"]
    assert {"segment", "manifest", "archive", "lock", "log id"} == {file["kind"] for file in files}
    assert "n1" in run("ls", url).out


def test_stat_counts_live_and_dead_per_map_and_node(run: Run, url: str) -> None:
    found = run("stat", url, "-o", "json").json
    counts = {(count["map"], count["node"]): count for count in found["maps"]}
    n1 = counts["orders", "n1"]
    assert (n1["records"], n1["live"], n1["dead"], n1["tombstones"]) == (13, 8, 5, 1)
    assert counts["orders", "n2"]["live"] == 1
    assert found["forecast"][0]["entries"] == 10
    assert found["forecast"][0]["merge_seconds"] > 0


def test_stat_never_rounds_to_100_percent_dead(run: Run, tmp_path: Path) -> None:
    with imap_wal.open(str(tmp_path / "log"), preallocate=False) as store:
        store.map("m").update({"a": 0})
        for number in range(300):
            store.map("m")["a"] = number
    assert "a restart reads 301 records (99% dead)" in run("stat", tmp_path / "log").out


def test_stat_sees_an_expired_entry_as_dead(run: Run, tmp_path: Path) -> None:
    from imap_wal.clock import SystemClock

    with imap_wal.open(f"file://{tmp_path}/ttl", node="n1", clock=SystemClock(-10_000)) as store:
        store.map("m").put("k", 1, ttl=5)
    (count,) = run("stat", tmp_path / "ttl", "-o", "json").json["maps"]
    assert (count["live"], count["expired"]) == (0, 1)


def test_dump_shows_every_entry_newest_last_with_its_position(run: Run, url: str) -> None:
    lines = run("dump", url, "--map", "orders", "-o", "json").lines
    assert len(lines) == 14
    assert [line["timestamp_ms"] for line in lines] == sorted(
        line["timestamp_ms"] for line in lines
    )
    of_n1 = [line["position"] for line in lines if line["node"] == "n1"]
    assert of_n1 == sorted(of_n1)
    assert lines[-1]["value"] == {"state": "back"}


def test_dump_filters_by_key_position_deletion_and_tail(run: Run, url: str) -> None:
    of_key = run("dump", url, "--key", "o1", "-o", "json").lines
    assert [line["value"] for line in of_key] == [{"state": "new"}, {"state": "paid"}]
    assert [line["key"] for line in run("dump", url, "--deleted", "-o", "json").lines] == ["o2"]
    above = run("dump", url, "--node", "n1", "--from", of_key[1]["position"], "-o", "json").lines
    assert [line["key"] for line in above] == ["o1", "o2", "o3"]
    assert len(run("dump", url, "--tail", "2").out.splitlines()) == 2
    assert run("dump", url, "--since", "@99999999999999").out == ""
    assert run("dump", url, "--since", "yesterday").code == 2
    assert run("dump", url, "--from", "here").code == 2


def test_dump_filters_by_map_bytes_time_and_range(run: Run, url: str) -> None:
    lines = run("dump", url, "-o", "json").lines
    (session,) = run("dump", url, "--map", "sessions", "-o", "json").lines
    assert (session["map"], session["key"]) == ("sessions", "s1")
    of_key = run("dump", url, "--key", session["key_bytes"], "-o", "json").lines
    assert of_key == [session]
    assert {
        line["key"]
        for line in run(
            "dump", url, "--key", session["key_bytes"], "--key", "o1", "-o", "json"
        ).lines
    } == {"s1", "o1"}
    assert run("dump", url, "--key", "hex:zz").code == 2
    times = sorted({line["timestamp_ms"] for line in lines})
    middle = times[len(times) // 2]
    early = run("dump", url, "--until", f"@{middle}", "-o", "json").lines
    late = run("dump", url, "--since", f"@{middle}", "-o", "json").lines
    assert early + late == lines
    assert all(line["timestamp_ms"] < middle for line in early)
    of_n1 = [line for line in lines if line["node"] == "n1"]
    for first in (0, 4, 11):
        for last in (first, 11, len(of_n1) - 1):
            found = run(
                "dump",
                url,
                "--node",
                "n1",
                "--from",
                of_n1[first]["position"],
                "--to",
                of_n1[last]["position"],
                "-o",
                "json",
            ).lines
            assert found == of_n1[first : last + 1]


@pytest.mark.parametrize("archived", [False, True])
def test_dump_shows_raw_entries_that_a_snapshot_covers(
    run: Run, tmp_path: Path, archived: bool
) -> None:
    """The entries are still in the files."""
    with imap_wal.open(tmp_path.as_uri(), node="n1") as store:
        for number in range(5):
            store.map("m")["k"] = number
        if archived:
            store.archive()
    before = run("dump", tmp_path, "-o", "json").lines
    assert [line["value"] for line in before] == list(range(5))
    assert run("rewrite", tmp_path).code == 0
    after = run("dump", tmp_path, "-o", "json").lines
    assert [line for line in after if line["position"]] == before
    assert [line["value"] for line in after if not line["position"]] == [4], "the snapshot's"
    assert run("dump", tmp_path, "-o", "json", "--from", before[0]["position"]).lines == before
    assert (
        run(
            "dump",
            tmp_path,
            "-o",
            "json",
            "--from",
            before[2]["position"],
            "--to",
            before[3]["position"],
        ).lines
        == before[2:4]
    )
    assert run("prune", tmp_path, "--yes").code == 0
    left = [line for line in after if not line["position"]] if archived else after
    assert run("dump", tmp_path, "-o", "json").lines == left, (
        "the newest segment is kept: it may be in use"
    )
    assert run("drop", tmp_path, "--map", "m", "--yes").code == 0
    assert run("dump", tmp_path, "-o", "json").lines == ([] if archived else before)


def test_a_dump_survives_pruning_while_it_reads(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prune removes covered entries while the dump reads them."""
    with imap_wal.open(tmp_path.as_uri(), node="n1") as store:
        for number in range(6):
            store.map("ab"[number % 2])["k"] = number
            if number % 2:
                store.archive()
        store.map("c")["k"] = 6
    assert run("rewrite", tmp_path, "--map", "a", "--map", "b").code == 0
    read, seen = read_scan, list[str]()

    def read_and_prune(
        context: Context, scan: FileScan, *arguments: Any, **options: Any
    ) -> Iterator[EntryBatch]:
        seen.append(scan.kind)
        if seen.count("archive") == 3:
            assert CliRunner().invoke(group, ["prune", str(tmp_path), "--yes"]).exit_code == 0
        yield from read(context, scan, *arguments, **options)

    monkeypatch.setattr(cluster, "read_scan", read_and_prune)
    lines = run("dump", tmp_path, "-o", "json", "--from", str(START)).lines
    assert [line["value"] for line in lines] == [0, 1, 6], (
        "the files that were read before they were pruned, and the files that remain"
    )


def test_export_writes_the_live_entries_in_every_format(run: Run, url: str, tmp_path: Path) -> None:
    lines = run("export", url, "--map", "orders").lines
    assert {line["key"]: line["value"] for line in lines} == LIVE
    rows = list(
        csv.DictReader(io.StringIO(run("export", url, "--map", "orders", "--format", "csv").out))
    )
    assert {json.loads(row["key"]): json.loads(row["value"]) for row in rows} == LIVE
    target = tmp_path / "orders.parquet"
    assert run("export", url, "--map", "orders", "--to", target).code == 0
    found = duckdb.execute(
        f"select key, json_extract_string(value, '$.state') from '{target}'"
    ).fetchall()
    assert {json.loads(key): state for key, state in found} == {
        key: value["state"] for key, value in LIVE.items()
    }
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_export_parquet_needs_a_file(run: Run, url: str) -> None:
    assert run("export", url, "--format", "parquet").code == 2


def test_export_as_of_shows_an_earlier_state(run: Run, url: str) -> None:
    moment = next(
        line["timestamp_ms"]
        for line in run("dump", url, "--key", "o3", "-o", "json").lines
        if line["value"] == {"state": "sent"}
    )
    before = {
        line["key"]: line["value"]
        for line in run("export", url, "--map", "orders", "--as-of", f"@{moment - 1}").lines
    }
    assert before["o3"] == {"state": "new"}
    assert before["o4"] == {"state": "new"}


def test_export_as_of_before_a_rewrite_is_refused_not_wrong(run: Run, url: str) -> None:
    moment = run("dump", url, "-o", "json").lines[0]["timestamp_ms"]
    assert run("rewrite", url).code == 0
    ended = run("export", url, "--as-of", f"@{moment}")
    assert ended.code == 1
    assert "is no longer known" in ended.err


def test_restore_forecasts_and_changes_nothing(run: Run, url: str, root: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}
    found = run("restore", url, "-o", "json").json
    assert {row["map"]: row["entries"] for row in found["maps"]} == {"orders": 9, "sessions": 1}
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()} == before


def test_restore_copies_to_a_log_that_opens(run: Run, url: str, tmp_path: Path) -> None:
    copy = f"file://{tmp_path}/copy"
    assert run("restore", url, "--to", copy).code == 0
    with imap_wal.open(copy, namespace="prod", cluster="eu", node="n1") as store:
        assert dict(store.map("orders")) == LIVE
        assert 3000 < (store.map("sessions").ttl("s1") or 0) <= 3600
        store.map("orders")["o0"] = "newer than the copy"
    with imap_wal.open(copy, namespace="prod", cluster="eu", node="n1") as store:
        assert store.map("orders")["o0"] == "newer than the copy"


def test_restore_never_writes_into_a_log(run: Run, url: str) -> None:
    ended = run("restore", url, "--to", url)
    assert ended.code == 1
    assert "already" in ended.err


def test_a_missing_node_stops_a_full_restore(run: Run, url: str, root: Path) -> None:
    """A partial restore must be asked for."""
    import shutil

    shutil.rmtree(root / "prod/eu/nodes/n2")
    ended = run("export", url)
    assert ended.code == 1
    assert "'n2'" in ended.err
    assert "o1" in {line["key"] for line in run("export", url, "--partial").lines}
    assert "MISSING" in run("ls", url).out


def test_an_unmounted_segment_disk_is_a_missing_node(run: Run, tmp_path: Path) -> None:
    """All readers report a missing node."""
    url, fast = f"file://{tmp_path}/log", tmp_path / "fast"
    with imap_wal.open(url, node="n1", wal_dir=f"file://{fast}") as store:
        store.map("m")["a"] = 1
    fast.rename(tmp_path / "elsewhere")
    stat = run("stat", url, "-o", "json")
    assert (stat.code, stat.json["forecast"][0]["missing"]) == (3, ["n1"])
    doctor = run("doctor", url, "-o", "json")
    assert doctor.code == 3
    assert [
        check["what"]
        for check in doctor.json["checks"]
        if check["status"] == "problem" and "nodes/n1/wal" in check["what"]
    ]
    assert [node["state"] for node in run("ls", url, "-o", "json").json["nodes"]] == ["MISSING"]
    assert run("drop", url, "--map", "m", "--yes").code != 0
    assert run("verify", url).code == 3


def test_a_map_without_entries_is_named_on_stderr(run: Run, url: str, tmp_path: Path) -> None:
    """It exists, and all its entries were deleted."""
    with imap_wal.open(url, namespace="prod", cluster="eu", node="n1") as store:
        store.map("gone")["k"] = 1
        del store.map("gone")["k"]
    assert run("rewrite", url).code == 0
    for words in (("export", url), ("restore", url), ("restore", url, "--to", tmp_path / "copy")):
        ended = run(*words, "--map", "gone", "--map", "orders")
        assert (ended.code, "no entries of map 'gone'\n" in ended.err) == (0, True), (words, ended)
        assert "no entries" not in run(*words[:2], "--map", "orders").err


def test_an_unwritable_export_target_is_named(run: Run, url: str, tmp_path: Path) -> None:
    """No file can be created there."""
    for name in ("orders.jsonl", "orders.csv", "orders.parquet"):
        ended = run("export", url, "--to", tmp_path / "absent" / name)
        assert ended.code == 1
        assert (
            f"{tmp_path}/absent/{name} cannot be written: No such file or directory; name a "
            "file in a folder" in ended.err
        )
    ended = run("export", url, "--to", "")
    assert (ended.code, "--to is empty" in ended.err) == (2, True)


def test_a_non_hexadecimal_key_is_wrong_usage(run: Run, url: str) -> None:
    """The error shows an example."""
    ended = run("dump", url, "--key", "hex:zz")
    assert (ended.code, "hex:a3343231" in ended.err) == (2, True)


@pytest.mark.parametrize(
    "endpoint", ["x", "tcp://host", "tcp://host:port", "tcp://host:99999", "tcp://[", "ipc://", ""]
)
def test_an_endpoint_that_is_none_is_wrong_usage(run: Run, endpoint: str) -> None:
    for words in (("doctor",), ("plugin", "config")):
        ended = run(*words, "--agent", endpoint)
        assert (ended.code, "it takes ipc:///path or tcp://host:port" in ended.err) == (2, True), (
            ended.err
        )


def test_ls_has_one_line_for_a_node_without_manifests(run: Run, url: str, root: Path) -> None:
    for file in (root / "prod/eu/nodes/n1/manifest").iterdir():
        file.unlink()
    nodes = run("ls", url, "-o", "json").json["nodes"]
    assert [(node["node"], node["state"]) for node in nodes][:2] == [
        ("n1", "MISSING"),
        ("n2", "closed"),
    ]
    assert len(nodes) == 2


def test_a_missing_segment_report_suggests_repair(run: Run, url: str, root: Path) -> None:
    with imap_wal.open(url, namespace="prod", cluster="eu", node="n1") as store:
        store.map("orders")["o5"] = {}
    min((root / "prod/eu/nodes/n1/wal").glob("*.wal")).unlink()
    ended = run("export", url)
    assert (
        ended.code,
        "this segment is missing" in ended.err,
        "`imap-wal repair`" in ended.err,
    ) == (1, True, True), ended.err
