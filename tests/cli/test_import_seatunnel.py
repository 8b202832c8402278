"""`imap-wal import seatunnel`: the newest entries of SeaTunnel's files become maps for agents."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from imap_wal import seatunnel
from rewrite_cli.console.failures import Failed
from rewrite_cli.sources import newest_changes, open_files, seatunnel_record
from rewrite_cli.sources.seatunnel_folder import SeatunnelFolder
from rewrite_cli.sources.seatunnel_record import Damaged, changes, next_place
from storage_backends.location import Location
from tests.agent.harness import Plugin, config, entry, plugin, serving
from tests.cli.conftest import Run
from tests.kit import seatunnel_files as files
from tests.kit.effort import thorough

GOLDEN = Path(__file__).parents[1] / "golden/seatunnel-imap.zip"
INFO = "engine_runningJobInfo"


def told(_: object) -> None:
    """No progress."""


def form(value: Any, label: str) -> bytes:
    return seatunnel.form_of(label, files.serialized(value))


@contextmanager
def opened(folder: Path) -> Iterator[SeatunnelFolder]:
    with closing(SeatunnelFolder(Location(str(folder)), "", told)) as source:
        yield source


def entries(folder: Path) -> dict[str, dict[bytes, bytes]]:
    with opened(folder) as source:
        maps: dict[str, dict[bytes, bytes]] = {name: {} for name in source.maps()}
        for stored in source.entries():
            maps[stored.map][stored.key()] = stored.value()
        return maps


# ---- files that SeaTunnel's own classes have written (tests/golden/SeatunnelFiles.java) ----


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    with zipfile.ZipFile(GOLDEN) as packed:
        packed.extractall(tmp_path)
    return tmp_path / "imap"


def test_the_entries_are_those_that_seatunnel_loads(run: Run, golden: Path) -> None:
    """Keys of three classes, deletions, and two starts of a server."""
    loaded: dict[str, dict[bytes, bytes]] = {}
    for line in (golden.parent / "loaded.txt").read_text().splitlines():
        name, key_class, key, value_class, value = line.split(" ")
        loaded.setdefault(name, {})[seatunnel.form_of(key_class, bytes.fromhex(key))] = (
            seatunnel.form_of(value_class, bytes.fromhex(value))
        )
    assert entries(golden) == loaded
    ended = run("import", "seatunnel", golden, "log", "-o", "json")
    assert ended.code == 0, ended.err
    counts = {row["map"]: row["imported"] for row in ended.json["maps"]}
    assert counts == {name: len(of_map) for name, of_map in loaded.items()}
    exported = run("export", "log", "--map", "engine_checkpoint-id-map").lines
    shown = {json.dumps(line["key"]): line["value"] for line in exported}
    truth = {"true": 7, '"truth"': True, '"integer"': -5, '"double"': -1.5, '""': ""}
    assert shown == {**truth, '"long"': -(2**63)}


def test_the_files_of_these_tests_are_those_of_seatunnel(golden: Path) -> None:
    for path in golden.rglob("wal.txt"):
        data = path.read_bytes()
        records = []
        for _, change in changes(io.BytesIO(data), len(data)):
            end = change.value_at + change.value_bytes
            value = None if change.deleted else data[change.value_at : end]
            records.append(
                files.record(
                    change.key,
                    value,
                    change.timestamp_ms,
                    key_class=change.key_class,
                    value_class=change.value_class,
                )
            )
        assert b"".join(records) == data


# ---- which change of a key counts ----

Change = tuple[int, str | None, int]
CHANGES = st.lists(
    st.tuples(st.integers(0, 3), st.none() | st.text(max_size=3), st.integers(0, 4)), max_size=8
)


@given(
    logs=st.dictionaries(
        st.tuples(st.sampled_from([INFO, "engine_x"]), st.integers(-2, 2)), CHANGES, max_size=4
    ),
    cut=st.integers(0, 80),
    waiting=st.sampled_from([1, 2, 100]),
)
@example(logs={(INFO, 1): [(1, "a", 2), (1, "b", 2), (2, None, 1)]}, cut=0, waiting=100)
@example(logs={(INFO, 1): [(1, "a", 2)], (INFO, 2): [(1, None, 2)]}, cut=0, waiting=1)
def test_the_newest_whole_change_of_each_key_is_imported(
    logs: dict[tuple[str, int], list[Change]], cut: int, waiting: int
) -> None:
    """Against a dict: by timestamp, and in one millisecond by file and place. Each file is cut off
    anywhere."""
    model: dict[str, dict[int, tuple[tuple[int, int, int], str | None]]] = {}
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        patch.setattr(newest_changes, "WAITING_MAX", waiting)
        for (name, start), log in logs.items():
            records = [files.change(*change) for change in log]
            data = b"".join(records)
            left = max(0, len(data) - cut)
            files.write(Path(root, "c1"), name, start, data[:left])
            newest = model.setdefault(name, {})
            for place, (key, value, timestamp_ms) in enumerate(log):
                left -= len(records[place])
                rank = timestamp_ms, start, place
                if left >= 0 and (key not in newest or newest[key][0] < rank):
                    newest[key] = rank, value
        if not logs:
            with pytest.raises(Failed, match=r"has no wal\.txt"), opened(Path(root)):
                pass
            return
        assert entries(Path(root)) == {
            name: {
                form(key, files.LONG): form(value, files.TEXT)
                for key, (_, value) in newest.items()
                if value is not None
            }
            for name, newest in model.items()
        }


def test_files_of_a_bucket_are_read_by_number(tmp_path: Path) -> None:
    for number in (10, 9):
        data = files.change(1, str(number), 5)
        files.write(tmp_path / "c1", INFO, 7, data, f"{number}_wal.txt")
    assert entries(tmp_path)[INFO] == {form(1, files.LONG): form("10", files.TEXT)}


def test_keys_of_two_classes_with_equal_bytes_are_two(tmp_path: Path) -> None:
    data = b"".join(files.record(b"k", b"v", 1, key_class=name) for name in ("a.A", "b.B"))
    files.write(tmp_path / "c1", INFO, 7, data)
    assert len(entries(tmp_path)[INFO]) == 2


# ---- damage ----


def test_a_torn_tail_is_left_out_and_named(run: Run, tmp_path: Path) -> None:
    whole, torn = files.change(1, "a", 1), files.change(1, "b" * 50, 2)
    files.write(tmp_path / "imap/c1", INFO, 7, whole + torn[:-1])
    files.write(tmp_path / "imap/c1", INFO, 8, whole + bytes(5000))
    files.write(tmp_path / "imap/c1", INFO, 9, whole + torn[:5])
    ended = run("import", "seatunnel", "imap", "log", "-o", "json")
    assert ended.code == 0, ended.err
    assert ended.json["maps"] == [
        {"map": INFO, "read": 3, "deleted": 0, "imported": 1, "expired": 0, "refused": 0}
    ]
    assert ended.json["torn"] == [
        {"file": f"c1/{INFO}/{start}/wal.txt", "position": len(whole), "bytes": left}
        for start, left in ((7, len(torn) - 1), (8, 5000), (9, 5))
    ]
    assert ended.json["bytes"]["before"] > 3 * len(whole)
    ended = run("import", "seatunnel", "imap", "other", "--dry-run")
    assert f"{INFO}/8/wal.txt ends in a record that was not written completely" in ended.err


GARBAGE = [
    bytes(12) + b"x",  # no length, and not the zeros of a lost power supply
    b"\xff\xff\xff\xff" + bytes(8),
    (9).to_bytes(4, "little") + b"not zero" + bytes(9),
    (2**30).to_bytes(4, "little") + bytes(8) + files.change(1, "b", 2)[12:] * 3,
    (40).to_bytes(4, "little") + bytes(8) + b"<html>" * 10,
    (500).to_bytes(4, "little") + files.change(1, "b" * 50, 2)[4:40],
    files.change(1, "b", 2)[:20] + b"\xff" * 40,
    files.record(b"k", b"v", 1, key_class=""),
    files.record(b"k", b"v", 1)[:-2] + b"\x38\x01",
]


@pytest.mark.parametrize("garbage", GARBAGE)
def test_a_damaged_file_is_named_and_nothing_imported(
    run: Run, tmp_path: Path, garbage: bytes
) -> None:
    whole = files.change(1, "a", 1)
    files.write(tmp_path / "imap/c1", INFO, 7, whole + garbage + whole)
    ended = run("import", "seatunnel", "imap", "log")
    assert ended.code == 1
    assert f"{INFO}/7/wal.txt" in ended.err
    assert f"damaged at byte {len(whole)}: " in ended.err
    assert "nothing was imported" in ended.err
    assert "bug" not in ended.err
    assert not (tmp_path / "log/default/dev/snapshot").exists()


def test_what_is_not_damaged_is_imported_if_asked(run: Run, tmp_path: Path) -> None:
    """A server whose disk is full leaves a part of a record, and then the whole."""
    full = files.change(2, "b" * 100, 2)
    parts = [files.change(1, "a", 1), full[:60], full, files.change(3, "c", 1), GARBAGE[0]]
    files.write(tmp_path / "imap/c1", INFO, 7, b"".join(parts))
    files.write(tmp_path / "imap/c1", INFO, 8, files.change(4, "d", 1))
    ended = run("import", "seatunnel", "imap", "log", "--skip-refused", "-o", "json")
    assert ended.code == 3
    assert [row["imported"] for row in ended.json["maps"]] == [4]
    reasons = [refused["reason"] for refused in ended.json["refused"]]
    assert [reason.partition(":")[0] for reason in reasons] == [
        f"damaged at byte {len(parts[0])}",
        f"damaged at byte {sum(map(len, parts[:4]))}",
    ]
    assert "60 bytes from there on are not read" in reasons[0]


@given(
    log=st.lists(st.tuples(st.integers(0, 9), st.binary(min_size=1, max_size=40)), max_size=6),
    searched=st.sampled_from([1, 7, 2**20]),
)
def test_every_whole_record_between_garbage_is_found(
    log: list[tuple[int, bytes]], searched: int
) -> None:
    data, expected = b"", list[tuple[int, int]]()
    for number, garbage in log:
        expected.append((len(data), number))
        data += files.change(number, "v", number) + b"\xff" * 4 + garbage
    found: list[tuple[int, int]] = []
    place: int | None = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seatunnel_record, "SEARCHED_BYTES", searched)
        file = io.BytesIO(data)
        while place is not None:
            try:
                for position, change in changes(file, len(data), place):
                    found.append((position, change.timestamp_ms))
                break
            except Damaged as error:
                place = next_place(file, error.position)
    assert found == expected


def test_a_damaged_byte_is_an_error_or_another_value() -> None:
    """Of every byte of a file: records have no checksum."""
    records = [files.change(1, "a", 1), files.change(2, "bb", 2), files.change(1, None, 3)]
    data = b"".join(records)
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 0x55
        read = changes(io.BytesIO(bytes(damaged)), len(data))
        positions = []
        with suppress(Damaged):
            positions = [position for position, _ in read]
            assert len(positions) == len(records)
        assert positions in ([], [0, len(records[0]), len(records[0] + records[1])])


# ---- the wrong folder, and a server that runs ----


@pytest.mark.parametrize(
    ("paths", "place", "problem"),
    [
        ([], "imap", "has no wal.txt"),
        ([f"c1/{INFO}/1", f"c2/{INFO}/1"], "imap", "several clusters: c1, c2"),
        ([f"c1/{INFO}/1"], f"imap/c1/{INFO}/1", "name the folder of the cluster"),
        ([f"c1/{INFO}"], "imap", "name the folder of the cluster"),
    ],
)
def test_a_wrong_folder_is_a_clear_error(
    run: Run, tmp_path: Path, paths: list[str], place: str, problem: str
) -> None:
    for path in paths:
        (tmp_path / "imap" / path).mkdir(parents=True)
        (tmp_path / "imap" / path / "wal.txt").write_bytes(files.change(1, "a", 1))
    ended = run("import", "seatunnel", place, "log")
    assert ended.code == 1
    assert problem in ended.err
    assert not (tmp_path / "log").exists()


def test_options_of_pickles_are_refused(run: Run, tmp_path: Path) -> None:
    files.write(tmp_path / "imap/c1", INFO, 7, files.change(1, "a", 1))
    for options in (["--trust-pickle"], ["--serializer", "pickle"], ["--table", "x"]):
        assert run("import", "seatunnel", "imap", "log", *options).code == 2
    ended = run("import", "seatunnel", "imap", "log", "--map", "other")
    assert ended.code == 1
    assert "a map keeps its name" in ended.err
    assert not (tmp_path / "log").exists()


@pytest.mark.skipif(not open_files.PROCESSES.is_dir(), reason="only Linux shows open files")
def test_the_files_of_a_running_server_are_refused(run: Run, tmp_path: Path) -> None:
    path = files.write(tmp_path / "imap/c1", INFO, 7, files.change(1, "a", 1))
    with path.open("ab"):
        ended = run("import", "seatunnel", "imap", "log")
        assert ended.code == 1
        assert "open for writing" in ended.err
        assert "stop all of its servers" in ended.err
    with path.open("rb"):
        assert run("import", "seatunnel", "imap", "log").code == 0


def test_files_that_grow_meanwhile_are_refused(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.write(tmp_path / "imap/c1", INFO, 7, files.change(1, "a", 1))

    def started(_: object) -> int:
        files.write(tmp_path / "imap/c1", INFO, 8, files.change(1, "b", 2))
        return 0

    monkeypatch.setattr("rewrite_cli.sources.seatunnel_folder.writer_of", started)
    ended = run("import", "seatunnel", "imap", "log")
    assert ended.code == 1
    assert "its files change" in ended.err
    assert "nothing was imported" in ended.err


# ---- the log ----


def restored(member: Plugin, name: str) -> dict[bytes, bytes]:
    """What a member gets from its agent at a restore."""
    header, payload = member.client.ask("keys", name, None, 1000)
    assert header[0] == "keys", header
    keys = _stream(payload)
    header, payload = member.client.ask(
        "load", name, len(keys), payload=b"".join(map(msgpack.packb, keys))
    )
    assert header[0] == "entries", header
    return {key: value for key, value, _ in _stream(payload)}


def _stream(payload: bytes) -> list[Any]:
    unpacker = msgpack.Unpacker()
    unpacker.feed(payload)
    return list(unpacker)


def test_a_member_restores_imported_entries_and_changes_them(run: Run, tmp_path: Path) -> None:
    log = [files.change(key, str(key), 2_000_000_000_000) for key in range(3)]
    files.write(tmp_path / "imap/c1", INFO, 7, b"".join(log))
    ended = run("import", "seatunnel", "imap/c1", "log", "--cluster", "c")
    assert ended.code == 0, ended.err
    imported = {form(key, files.LONG): form(str(key), files.TEXT) for key in range(3)}
    first, second, third = imported
    settings = config(tmp_path)
    with serving(settings), plugin(settings) as member:
        assert restored(member, INFO) == imported
        new = [entry("", "new", member.order(1), name=INFO), entry("", None, member.order(2))]
        new[0][1:3], new[1][:3] = (first, files.LONG), (INFO, second, files.LONG)
        answer = member.client.ask(
            "append", member.session, 1, 2, payload=b"".join(map(msgpack.packb, new))
        )
        assert answer[0][0] == "ack"
    with serving(settings), plugin(settings, cluster_id="c2", uuid="p2", member="m2") as member:
        assert restored(member, INFO) == {first: b"new", third: imported[third]}
    lines = {line["key"]: line["value"] for line in run("export", "log", "--map", INFO).lines}
    assert lines == {0: {"class": "v", "hex": b"new".hex()}, 2: "2"}
    ended = run("import", "seatunnel", "imap/c1", "log", "--cluster", "c", "--add")
    assert ended.code == 2
    assert "belongs to Hazelcast members" in ended.err


def test_a_map_with_entries_is_refused_unless_asked(run: Run, tmp_path: Path) -> None:
    files.write(tmp_path / "imap/c1", INFO, 7, files.change(1, "a", 1) + files.change(2, "a", 1))
    assert run("import", "seatunnel", "imap", "log").code == 0
    files.write(tmp_path / "imap/c1", INFO, 7, files.change(1, "b", 1))
    ended = run("import", "seatunnel", "imap", "log")
    assert ended.code == 1
    assert "has entries already" in ended.err
    assert run("import", "seatunnel", "imap", "log", "--add").code == 0
    ended = run("export", "log")
    assert [(line["key"], line["value"]) for line in ended.lines] == [(1, "b"), (2, "a")]
    ended = run("dump", "log", "-o", "json")
    assert sorted((line["key"], line["value"]) for line in ended.lines) == [(1, "b"), (2, "a")]


def test_a_log_of_many_changes_becomes_small(run: Run, tmp_path: Path) -> None:
    log = (files.change(number % 40, "x" * 100, number) for number in range(20_000))
    path = files.write(tmp_path / "imap/c1", INFO, 7, b"".join(log))
    ended = run("import", "seatunnel", "imap", "log", "-o", "json")
    assert ended.json["bytes"]["before"] == path.stat().st_size
    assert ended.json["bytes"]["after"] < 20_000
    assert not list((tmp_path / "log").rglob("*.parquet"))


def test_a_source_at_a_url_is_read(run: Run, tmp_path: Path) -> None:
    files.write(tmp_path / "imap/c1", INFO, 7, files.change(1, "a", 1))
    ended = run("import", "seatunnel", f"file://{tmp_path}/imap", "log")
    assert ended.code == 0, ended.err
    ended = run("import", "seatunnel", f"file://{tmp_path}/imap", tmp_path / "imap/log")
    assert ended.code == 1
    assert "is inside" in ended.err


# ---- readable keys ----


@given(
    value=st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(),
)
def test_simple_values_are_decoded(value: bool | float | str) -> None:
    kinds: dict[type, str] = {bool: "Boolean", int: "Long", float: "Double", str: "String"}
    label = f"java.lang.{kinds[type(value)]}"
    data = form(value, label)
    assert seatunnel.is_simple(data, label)
    decoded = seatunnel.load(data, label)
    assert (type(decoded), decoded) == (type(value), value)
    for other in (data[:-1], data + b"\x0c", data[:-1] + b"\x00\x0c"):
        with pytest.raises((ValueError, UnicodeDecodeError)):
            seatunnel.load(other, label)


def test_two_forms_of_one_number_are_not_shown_alike() -> None:
    label = "java.lang.Integer"
    start = seatunnel.form_of(label, b"\x0b\x28")
    assert seatunnel.load(start + files.number(-5) + b"\x0c", label) == -5
    for content in (b"\x85\x00", files.number(2**31), b"\xff" * 10):
        with pytest.raises(ValueError, match=r"number|Integer"):
            seatunnel.load(start + content + b"\x0c", label)


# Not `ru_maxrss`: that of a new process begins with the memory of the one that started it.
MEASURED = """
import sys
from imap_wal.rewrite.report import memory_max_bytes
from rewrite_cli.cli import group
group.main(["import", "seatunnel", sys.argv[1], sys.argv[2]], standalone_mode=False)
print(memory_max_bytes() // 2**20)
"""


@thorough
def test_an_import_of_many_keys_takes_bounded_memory(tmp_path: Path) -> None:
    """200 MB: 200,000 keys of 250 bytes, each with two values of 250 bytes."""
    path = files.write(tmp_path / "imap/c1", INFO, 7, b"")
    with path.open("wb") as file:
        for number in range(400_000):
            key = files.serialized(f"{number % 200_000:0250}")
            value = files.serialized(f"{number:0250}")
            file.write(files.record(key, value, number, key_class=files.TEXT))
    words = [sys.executable, "-c", MEASURED, str(tmp_path / "imap"), str(tmp_path / "log")]
    ended = subprocess.run(
        words, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True
    )
    *_, row, megabytes = ended.stdout.splitlines()
    assert row.split()[1:] == ["400,000", "0", "200,000", "0", "0"]
    assert int(megabytes) < 400  # 334 were measured
