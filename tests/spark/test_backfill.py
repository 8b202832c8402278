"""A backfill is a part of a closed log as a whole, or not at all. Without Spark's JVM."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import imap_wal
from imap_wal.context import open_context
from imap_wal.errors import (
    CorruptLog,
    EncryptionError,
    InvalidSetting,
    LostRace,
    PositionGone,
    WriterLocked,
)
from imap_wal.read.cluster import ClusterLog
from imap_wal.retention import backfill
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.run import rewrite
from pyspark_imap_wal import backfill_writer as writer_module
from pyspark_imap_wal.backfill_writer import ImapWalWriter, Target
from rewrite_cli.cli import group
from storage_backends.location import Location
from tests.encrypted import key_file, other
from tests.kit.effort import every
from tests.kit.list_files import short_lists
from tests.kit.logs import SMALL
from tests.kit.stream_engine import Engine

pytestmark = pytest.mark.spark
KINDS = {"map": "string", "key": "binary", "value": "binary", "expires_at_ms": "bigint"}
LOG = "default", "embedded"
Line = tuple[str, bytes | None, bytes | None, int]


def writer(root: Path, **more: Any) -> ImapWalWriter:
    return ImapWalWriter(
        Target(Location(str(root)), "default", "embedded"), KINDS, overwrite=False, **more
    )


def batch(*lines: Line) -> Any:
    columns = list(zip(*lines, strict=True))
    types = (pa.string(), pa.binary(), pa.binary(), pa.int64())
    return pa.record_batch(
        [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)],
        names=list(KINDS),
    )


def in_log(root: Path) -> dict[str, dict[bytes, bytes]]:
    with imap_wal.open(str(root)) as store:
        return {name: dict(store.map(name, raw=True).items()) for name in store.maps()}


def test_entries_of_a_backfill_are_there_after_all_tasks(tmp_path: Path) -> None:
    root = tmp_path / "log"
    with imap_wal.open(str(root)) as store:
        store.map("orders", raw=True).update({b"old": b"1", b"a": b"old", b"gone": b"1"})
    made = writer(root)
    parts = [
        made.of_partition(number, iter(lines))
        for number, lines in enumerate(
            (
                [batch(("orders", b"a", b"new", 0), ("other", b"x", b"1", 0))],
                [batch(("orders", b"gone", None, 5)), batch(("orders", b"b", b"1", 2**62))],
                [],
            )
        )
    ]
    made.of_partition(0, iter([batch(("orders", b"twice", b"1", 0))]))  # another attempt
    made.commit([*parts, None])
    there = {"orders": {b"old": b"1", b"a": b"new", b"b": b"1"}, "other": {b"x": b"1"}}
    assert in_log(root) == there
    with imap_wal.open(str(root)) as store:
        store.map("orders", raw=True)[b"a"] = b"newest"
    there["orders"][b"a"] = b"newest"
    log = ClusterLog(open_context(str(root)), "default", "embedded")
    rewrite(log, LocalEngine(SMALL))
    prune(log)
    assert in_log(root) == there


@every(2)
def test_backfilled_files_are_sorted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full file of a map, the largest of many waiting maps, and what is left at the end."""
    with imap_wal.open(str(tmp_path)) as store:
        store.map("orders", raw=True)[b"old"] = b"1"
    log = ClusterLog(open_context(str(tmp_path)), "default", "embedded")
    monkeypatch.setattr(writer_module, "FULL", 20_000)
    monkeypatch.setattr(writer_module, "WAITING_BYTES", 30_000)
    monkeypatch.setattr("imap_wal.parquet.archive_rows.GROUP_ROWS", 50)
    made = writer(tmp_path)
    keys = [b"k%05d" % (number * 7919 % 1000) for number in range(1000)]
    rows = [("orders", key, b"1", 0) for key in keys]
    small = [(f"m{number}", b"k", bytes(2000), 0) for number in range(20)]
    lines = iter([batch(*rows[start : start + 100]) for start in range(0, 1000, 100)])
    made.commit([made.of_partition(0, lines), made.of_partition(1, iter([batch(*small)]))])

    (node,) = (each for name, each in log.state().nodes.items() if name.startswith("backfill-"))
    archives = [each for each in node.manifest.archives if each.map == "orders"]
    assert len(archives) > 2 and len(node.manifest.archives) == len(archives) + 20
    assert all(a.last < b.first for a, b in pairwise(sorted(archives, key=lambda a: a.first)))
    for archive in archives:
        file = pq.ParquetFile(tmp_path / archive.path)
        found = file.read(["key"])["key"].to_pylist()
        assert file.num_row_groups > 1 and archive.unpacked
        assert found == sorted(found)
    there = {b"old": b"1", **dict.fromkeys(keys, b"1")}
    assert in_log(tmp_path)["orders"] == there
    rewrite(log, LocalEngine(SMALL))
    prune(log)
    assert in_log(tmp_path)["orders"] == there and len(in_log(tmp_path)) == 21


def test_a_backfill_makes_a_new_log(tmp_path: Path) -> None:
    made = writer(tmp_path / "new")
    made.commit([made.of_partition(0, iter([batch(("orders", b"a", b"1", 0))]))])
    assert in_log(tmp_path / "new") == {"orders": {b"a": b"1"}}


def test_an_open_log_takes_no_backfill(tmp_path: Path) -> None:
    with imap_wal.open(str(tmp_path)) as store:
        store.map("orders", raw=True)[b"a"] = b"1"
        with pytest.raises(WriterLocked):
            writer(tmp_path)
    made = writer(tmp_path)
    part = made.of_partition(0, iter([batch(("orders", b"b", b"1", 0))]))
    with imap_wal.open(str(tmp_path)), pytest.raises((LostRace, WriterLocked)):
        made.commit([part])
    with pytest.raises(LostRace):
        made.commit([part])
    assert in_log(tmp_path) == {"orders": {b"a": b"1"}}


def test_a_missing_file_or_two_answers_publish_nothing(tmp_path: Path) -> None:
    made = writer(tmp_path)
    parts = [made.of_partition(0, iter([batch(("orders", b"b", b"1", 0))])) for _ in range(2)]
    with pytest.raises(LostRace, match="two attempts"):
        made.commit(list(parts))
    (tmp_path / parts[0].archives[0].path).unlink()
    with pytest.raises(CorruptLog, match="nothing was published"):
        made.commit(parts[:1])
    assert in_log(tmp_path) == {}


@pytest.mark.parametrize(
    ("kinds", "target", "word"),
    [
        ({"key": "string", "value": "binary"}, "orders", "no column key string"),
        ({"key": "binary"}, "orders", "key and value"),
        ({"key": "binary", "value": "binary"}, "", "option map"),
        (KINDS, "orders", "option map"),
    ],
)
def test_wrong_columns_of_a_backfill_are_named(
    tmp_path: Path, kinds: dict[str, str], target: str, word: str
) -> None:
    with pytest.raises(InvalidSetting, match=word):
        ImapWalWriter(
            Target(Location(str(tmp_path)), "default", "e", target), kinds, overwrite=False
        )
    with pytest.raises(InvalidSetting, match="append"):
        ImapWalWriter(Target(Location(str(tmp_path)), "default", "e"), KINDS, overwrite=True)


def test_a_row_without_key_or_map_ends_the_task(tmp_path: Path) -> None:
    made = writer(tmp_path)
    for line, word in ((("orders", None, b"1", 0), "no key"), ((None, b"k", b"1", 0), "no map")):
        with pytest.raises(InvalidSetting, match=word):
            made.of_partition(0, iter([batch(line)]))  # type: ignore[arg-type]


CLASSES = {**KINDS, "key_class": "string", "value_class": "string"}


@pytest.mark.parametrize(
    ("line", "word"),
    [
        (("m", b"k", b"v", -1, "raw", "raw"), "expires_at_ms -1"),
        (("m", b"\xa1k", b"v", 0, "msgpack", "raw"), "one class for both"),
        (("m", b"\xa1k", b"\xc1", 0, "msgpack", "msgpack"), "the value b'.xc1' is not msgpack"),
        (("m", b"\xa1k", b"\x81\x92\1\2\3", 0, "msgpack", "msgpack"), "is not msgpack"),
        (("m", b"kk", b"\1", 0, "msgpack", "msgpack"), "the key b'kk' is not msgpack"),
        (("m", b"\xc3", b"\1", 0, "msgpack", "msgpack"), "the default serializer writes for True"),
        (("m", b"\x80", b"\1", 0, "msgpack", "msgpack"), "a dict; a key is None"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_row_that_no_map_writes_ends_the_task(
    tmp_path: Path, line: tuple[Any, ...], word: str
) -> None:
    """It was accepted, and then the whole map could not be read."""
    made = ImapWalWriter(
        Target(Location(str(tmp_path)), "default", "embedded"), CLASSES, overwrite=False
    )
    names = list(CLASSES)
    good = ("m", b"\xa1g", b"\1", 0, "msgpack", "msgpack")
    rows = [dict(zip(names, each, strict=True)) for each in (good, line)]
    types = [pa.string(), pa.binary(), pa.binary(), pa.int64(), pa.string(), pa.string()]
    schema = pa.schema(list(zip(names, types, strict=True)))
    made.of_partition(0, iter([pa.RecordBatch.from_pylist(rows[:1], schema)]))
    with pytest.raises(InvalidSetting, match=word):
        made.of_partition(0, iter([pa.RecordBatch.from_pylist(rows, schema)]))


def test_files_of_an_ended_backfill_are_swept_and_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, done = writer(tmp_path), writer(tmp_path)
    parts = [
        made.of_partition(0, iter([batch(("orders", b"b", b"1", 0))])) for made in (left, done)
    ]
    done.commit([parts[1]])
    paths = [part.archives[0].path for part in parts]
    monkeypatch.setattr(backfill, "ORPHAN_MS", -1)
    writer(tmp_path)
    assert [(tmp_path / path).exists() for path in paths] == [False, True]
    with pytest.raises(CorruptLog, match="nothing was published"):
        left.commit([parts[0]])
    assert in_log(tmp_path) == {"orders": {b"b": b"1"}}


def test_list_files_of_a_refused_backfill_are_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was refused after its node named the archives."""
    short_lists(monkeypatch)
    made = writer(tmp_path)
    parts = [
        made.of_partition(number, iter([batch(("orders", b"%d" % number, b"1", 0))]))
        for number in range(5)
    ]
    demand, asked = backfill._demand_closed, []

    def opened_meanwhile(*given: Any) -> None:
        asked.append(given)
        if len(asked) == 2:
            raise LostRace("a program has opened the log")
        demand(*given)

    monkeypatch.setattr(backfill, "_demand_closed", opened_meanwhile)
    with pytest.raises(LostRace, match="opened"):
        made.commit(list(parts))

    def left() -> set[str]:
        return {file.parent.name for file in tmp_path.rglob("backfill-*/*/*") if file.is_file()}

    assert left() == {"manifest", "lists"}
    assert len([*tmp_path.rglob("part-*.parquet")]) == 5
    writer(tmp_path)
    assert left() == {"manifest", "lists"}, "not before a day has passed"
    monkeypatch.setattr(backfill, "ORPHAN_MS", -1)
    writer(tmp_path)
    assert left() == {"manifest"}  # of the new one
    assert not [*tmp_path.rglob("part-*.parquet")]
    assert in_log(tmp_path) == {}


def files_of_backfills(root: Path) -> list[Path]:
    return [path for path in root.rglob("backfill-*/**/*") if path.is_file()]


def test_doctor_names_and_prune_removes_unfinished_backfills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One died after its first manifest, one after its tasks."""
    writer(tmp_path)
    left = writer(tmp_path)
    part = left.of_partition(0, iter([batch(("orders", b"b", b"1", 0))]))
    files, log = files_of_backfills(tmp_path), ClusterLog(open_context(str(tmp_path)), *LOG)
    assert not prune(log).backfill_files, "they may still run"
    assert "without success" not in CliRunner().invoke(group, ["doctor", str(tmp_path)]).output
    monkeypatch.setattr(backfill, "ORPHAN_MS", -1)
    shown = CliRunner().invoke(group, ["doctor", str(tmp_path)]).output
    assert "2 backfills ended without success and left 3 files" in " ".join(shown.split())
    planned = prune(log, dry_run=True).backfill_files
    assert {tmp_path / path for path in planned} == {*files} == {*files_of_backfills(tmp_path)}
    assert prune(log).backfill_files == planned
    assert not [*tmp_path.rglob("backfill-*")]
    with pytest.raises(CorruptLog, match="nothing was published"):
        left.commit([part])
    assert in_log(tmp_path) == {}


def test_a_backfill_that_prune_removed_is_never_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is paused between the manifest of its node and that of the cluster."""
    made = writer(tmp_path)
    part = made.of_partition(0, iter([batch(("orders", b"b", b"1", 0))]))
    demand, asked = backfill._demand_closed, []

    def pruned_meanwhile(log: ClusterLog, manifest: Any) -> None:
        asked.append(manifest)
        if len(asked) == 2:
            monkeypatch.setattr(backfill, "ORPHAN_MS", -1)
            assert len(prune(ClusterLog(open_context(str(tmp_path)), *LOG)).backfill_files) == 3
        demand(log, manifest)

    monkeypatch.setattr(backfill, "_demand_closed", pruned_meanwhile)
    with pytest.raises(LostRace, match="nothing was published"):
        made.commit([part])
    assert in_log(tmp_path) == {}


def test_covered_backfills_leave_no_node_after_a_prune(tmp_path: Path) -> None:
    log = ClusterLog(open_context(str(tmp_path)), *LOG)
    for number in range(3):
        made = writer(tmp_path)
        lines = batch(("orders", b"%d" % number, b"1", 0))
        made.commit([made.of_partition(0, iter([lines]))])
    assert len(log.nodes()) == 3
    prune(log)
    assert len(log.nodes()) == 3, "no snapshot covers them"
    rewrite(log, LocalEngine())
    prune(log)
    assert log.nodes() == [] and not [*tmp_path.rglob("backfill-*")]
    assert in_log(tmp_path) == {"orders": {b"0": b"1", b"1": b"1", b"2": b"1"}}


def test_a_log_lacks_what_a_removed_node_had(tmp_path: Path) -> None:
    """Otherwise a former snapshot and the log above it would look complete."""
    made, log = writer(tmp_path), ClusterLog(open_context(str(tmp_path)), *LOG)
    made.commit([made.of_partition(0, iter([batch(("orders", b"a", b"1", 0))]))])
    (node,) = log.nodes()
    rewrite(log, LocalEngine())
    (mark,) = log.manifest().covered(node)
    prune(log)
    assert log.state().removed() == {node: mark.position}


def test_a_stream_misses_no_backfill_that_a_prune_removed(tmp_path: Path) -> None:
    """The node is gone. A stream that has not read it fails, and no other one does."""
    with imap_wal.open(str(tmp_path)) as store:
        store.map("orders", raw=True)[b"a"] = b"1"
    log = ClusterLog(open_context(str(tmp_path)), *LOG)
    reading, behind = Engine(str(tmp_path)), Engine(str(tmp_path))
    reading.rest()
    behind.rest()
    made = writer(tmp_path)
    made.commit([made.of_partition(0, iter([batch(("orders", b"b", b"1", 0))]))])
    assert len(reading.rest()) == 1
    rewrite(log, LocalEngine())
    prune(log)
    assert log.nodes() == ["embedded"]
    assert reading.rest() == []
    with pytest.raises(PositionGone, match="backfill-"):
        behind.rest()
    later = Engine(str(tmp_path))
    later.rest()
    with imap_wal.open(str(tmp_path)) as store:
        store.map("orders", raw=True)[b"c"] = b"1"
    assert len(later.rest()) == len(reading.rest()) == 1


def test_a_backfill_with_wrong_keys_is_refused(tmp_path: Path) -> None:
    """It wrote archives that no other process could read."""
    root, right = str(tmp_path / "log"), key_file(tmp_path, "a")
    with imap_wal.open(root, encryption_keys=right) as store:
        store.map("orders", raw=True)[b"a"] = b"1"
        store.archive()
    before = {path: path.read_bytes() for path in (tmp_path / "log").rglob("*.json")}
    for wrong in (key_file(tmp_path, "b"), key_file(tmp_path, other("a")), ""):
        with pytest.raises(EncryptionError):
            backfill.begin(ClusterLog(open_context(root, keys=wrong), *LOG))
    assert {path: path.read_bytes() for path in (tmp_path / "log").rglob("*.json")} == before


def test_an_ended_backfill_is_no_damage(tmp_path: Path) -> None:
    with imap_wal.open(str(tmp_path / "log")) as store:
        store.map("orders", raw=True)[b"a"] = b"1"
    writer(tmp_path / "log").of_partition(0, iter([batch(("orders", b"b", b"1", 0))]))
    assert CliRunner().invoke(group, ["verify", str(tmp_path / "log")]).exit_code == 0


def test_a_backfill_into_a_folder_of_a_log_is_refused(tmp_path: Path) -> None:
    """It would begin another log inside of this one, which nothing reads."""
    with imap_wal.open(str(tmp_path)) as store:
        store.map("orders")["a"] = 1
    inside = tmp_path / "default" / "embedded"
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InvalidSetting, match="is the folder of one cluster; pass the root"):
        backfill.begin(ClusterLog(open_context(str(inside)), "default", "embedded"))
    assert sorted(tmp_path.rglob("*")) == before


def of_classes(root: Path, *lines: tuple[Any, ...], target: str = "") -> tuple[Any, Any]:
    """A backfill of rows that have classes, and what one task wrote."""
    kinds = {name: kind for name, kind in CLASSES.items() if not target or name != "map"}
    made = ImapWalWriter(
        Target(Location(str(root)), "default", "embedded", target), kinds, overwrite=False
    )
    types = [pa.string(), pa.binary(), pa.binary(), pa.int64(), pa.string(), pa.string()]
    schema = pa.schema(list(zip(CLASSES, types, strict=True)))
    rows = [dict(zip(CLASSES, line, strict=True)) for line in lines]
    part = pa.RecordBatch.from_pylist(rows, schema)
    return made, made.of_partition(0, iter([part.select(list(kinds))]))


@pytest.mark.parametrize("target", ["m", ""], ids=["option", "column"])
@pytest.mark.parametrize(("key", "label"), [(b"7", "raw"), (b"\xa17", "msgpak")])
@pytest.mark.parametrize("value", [b"\1", None])
def test_a_backfill_of_another_class_is_refused(
    tmp_path: Path, key: bytes, label: str, value: bytes | None, target: str
) -> None:
    """After the next open, the whole map was raw."""
    with imap_wal.open(str(tmp_path)) as store:
        store.map("m")["a"] = 1
    with pytest.raises(InvalidSetting) as refused:
        made, part = of_classes(tmp_path, ("m", key, value, 0, label, label), target=target)
        assert not target, "the option names the map, so a task refuses it"
        made.commit([part])
    said = str(refused.value)
    assert f"map 'm' has class 'msgpack', and this entry has class {label!r}" in said
    assert "imap-wal query URL" in said
    assert "unless it passes the columns key_class and value_class" in said
    with imap_wal.open(str(tmp_path)) as store:
        assert dict(store.map("m")) == {"a": 1}


def test_a_backfill_of_the_same_class_is_taken(tmp_path: Path) -> None:
    with imap_wal.open(str(tmp_path)) as store:
        store.map("m")["a"] = 1
    made, part = of_classes(tmp_path, ("m", b"\xa1b", b"\2", 0, "msgpack", "msgpack"), target="m")
    made.commit([part])
    with imap_wal.open(str(tmp_path)) as store:
        assert dict(store.map("m")) == {"a": 1, "b": 2}


def test_an_emptied_map_takes_another_class(tmp_path: Path) -> None:
    with imap_wal.open(str(tmp_path)) as store:
        store.map("m")["a"] = 1
        store.map("m").clear()
    made, part = of_classes(tmp_path, ("m", b"7", b"v", 0, "raw", "raw"), target="m")
    made.commit([part])
    assert in_log(tmp_path) == {"m": {b"7": b"v"}}


def test_tasks_of_two_classes_publish_nothing(tmp_path: Path) -> None:
    made, first = of_classes(tmp_path, ("m", b"7", b"v", 0, "raw", "raw"))
    second = replace(first, partition=1, classes={"m": "msgpack"})
    with pytest.raises(InvalidSetting, match="map 'm' has class 'raw', and this entry has class"):
        made.commit([first, second])
    made.commit([first])
    with pytest.raises(InvalidSetting, match="rows have the classes 'msgpack' and 'raw'"):
        of_classes(
            tmp_path,
            ("n", b"7", b"v", 0, "raw", "raw"),
            ("n", b"\7", b"\1", 0, "msgpack", "msgpack"),
        )


def test_a_map_of_two_classes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores that share a log may write a map with different serializers."""
    with imap_wal.open(str(tmp_path)) as store:
        store.map("m")["a"] = 1
        store.map("other")["a"] = 1
    for name in ("demand_valid_rows", "demand_class_of_map"):
        monkeypatch.setattr(writer_module, name, lambda *_: None)
    made, part = of_classes(
        tmp_path,
        ("m", b"7", b"v", 0, "raw", "raw"),
        ("other", b"\xa1b", b"\xc1", 0, "msgpack", "msgpack"),
    )
    made.commit([part])
    with imap_wal.open(str(tmp_path)) as store:
        for raw in (False, True):
            with pytest.raises(InvalidSetting) as refused:
                store.map("m", raw=raw)
            assert "map 'm' has entries of the classes 'msgpack' and 'raw'" in str(refused.value)
            assert "imap-wal query URL" in str(refused.value)
        with pytest.raises(ValueError, match=r"the value b'\\xc1' is not msgpack \(FormatError\)"):
            dict(store.map("other").items())
    shown = CliRunner().invoke(
        group,
        ["query", str(tmp_path), "FROM m SELECT key_class, count(*) GROUP BY ALL", "-o", "json"],
    )
    assert shown.output.count("\n") == 2
