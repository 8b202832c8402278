"""repair: what stays of a damaged log, that its copy opens, and that what was given up is named."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import imap_wal
from imap_wal import entry, format
from imap_wal.entry import ORDER, Row
from imap_wal.errors import ImapWalError, ShortLog
from imap_wal.format import Position
from imap_wal.manifest.cluster import IncarnationRecord
from imap_wal.read.cluster import ClusterLog
from imap_wal.repair.cluster import ClusterRepair
from imap_wal.repair.report import POINT_IN_TIME, SALVAGE, summary
from imap_wal.repair.survey import tolerant_survey
from imap_wal.segment.reader import SegmentReader
from storage_backends import SegmentStore, open_store
from storage_backends.memory import MemoryStore
from tests.cli.conftest import Ended, Run
from tests.support import copy_files, overwrite

numbers = itertools.count(1)


def always(_: str) -> bool:
    return True


def repaired(store: SegmentStore, name: str, mode: str = SALVAGE) -> tuple[MemoryStore, list[Any]]:
    """A repaired copy in memory, and the items; the dry run before it says the same."""
    plans = []
    target = MemoryStore(name)
    for dry_run in (True, False):
        views, lost = tolerant_survey(store, (), ())
        items: list[Any] = []
        for view in views:
            repair = ClusterRepair(store, view, mode, always, lambda _: None, lost)
            repair.plan()
            items += [item.to_json() for item in repair.items]
            if not dry_run:
                repair.write(target)
        plans.append(items)
    assert plans[0] == plans[1]
    return target, plans[1]


def clean(run: Run, url: str) -> bool:
    ended = run("verify", url, "-o", "json")
    assert ended.code == 0, ended.json["files"]
    return ended.json["summary"]["torn_tail"] == 0


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Three segments of one node, written by three opens; the folder of the segments."""
    for value in range(3):
        with imap_wal.open(f"file://{tmp_path}/log", node="n1", preallocate=False) as store:
            for key in range(10):
                store.map("m")[f"k{key}"] = [value, key]
    return tmp_path / "log/default/embedded/nodes/n1/wal"


def flip(path: Path, offset: int, bit: int = 4) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= bit
    path.write_bytes(data)


def frames(path: Path) -> list[format.Frame]:
    store = open_store(str(path.parent))
    return list(SegmentReader(store, path.name).frames())


def values(url: str) -> dict[str, Any]:
    with imap_wal.open(url, node="n1") as store:
        return dict(store.map("m"))


def repair(run: Run, tmp_path: Path, *words: str, code: int = 3) -> dict[str, Any]:
    dry = run("repair", tmp_path / "log", "--dry-run", "-o", "json", *words)
    ended = run("repair", tmp_path / "log", "--to", f"file://{tmp_path}/copy", "-o", "json", *words)
    assert (dry.code, ended.code) == (code, code), ended.err
    assert dry.json["files"] == ended.json["files"]
    same = {**ended.json["summary"], "dry_run": True, "to": None}
    assert dry.json["summary"] == same
    assert clean(run, f"{tmp_path}/copy")
    found: dict[str, Any] = ended.json
    return found


def damaged_file(found: dict[str, Any]) -> dict[str, Any]:
    (file,) = [file for file in found["files"] if file["status"] != "clean"]
    return dict(file)


def test_a_whole_log_is_copied_byte_for_byte(
    run: Run, url: str, root: Path, tmp_path: Path
) -> None:
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}
    ended = run("repair", url, "--to", f"file://{tmp_path}/copy", "-o", "json")
    assert ended.code == 0
    assert ended.json["summary"]["given_up_records"] == 0
    for file in ended.json["files"]:
        assert file["action"] == "copied"
        assert (tmp_path / "copy" / file["file"]).read_bytes() == (root / file["file"]).read_bytes()
    assert before == {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}
    assert run("export", f"{tmp_path}/copy").out == run("export", url).out


@pytest.mark.parametrize("place", ["length", "checksum", "type", "count", "synced", "body"])
def test_a_flipped_bit_costs_one_frame(run: Run, log: Path, tmp_path: Path, place: str) -> None:
    first, middle, newest = sorted(log.glob("*.wal"))
    frame = frames(middle)[4]
    flip(
        middle,
        frame.offset
        + {"length": 0, "checksum": 5, "type": 8, "count": 9, "synced": 14, "body": 30}[place],
    )
    found = damaged_file(repair(run, tmp_path))
    assert (found["action"], found["status"], found["kept"]["records"]) == (
        "rewritten",
        "corrupt",
        9,
    )
    assert found["given_up"]["first"] == str(Position(2, 2, frame.offset, 0))
    assert found["given_up"]["bytes"] == frame.end - frame.offset
    if place in ("checksum", "synced", "body"):  # the frame's own header can be read
        assert (found["given_up"]["frames"], found["given_up"]["records"]) == (1, 1)
        assert found["given_up"]["last"] == str(Position(2, 2, frame.offset, 0))
    wal = tmp_path / "copy" / log.relative_to(tmp_path / "log")
    assert (wal / first.name).read_bytes() == first.read_bytes()
    assert [frame.payload for frame in frames(wal / newest.name)] == [
        frame.payload for frame in frames(newest)
    ]
    lines = run("dump", f"{tmp_path}/copy", "-o", "json").lines
    assert [line["value"] for line in lines] == [
        [value, key] for value in range(3) for key in range(10) if (value, key) != (1, 4)
    ]
    assert values(f"{tmp_path}/copy") == {f"k{key}": [2, key] for key in range(10)}


def test_point_in_time_keeps_what_stands_before_the_damage(
    run: Run, log: Path, tmp_path: Path
) -> None:
    _, middle, newest = sorted(log.glob("*.wal"))
    frame = frames(middle)[4]
    flip(middle, frame.offset + 30)
    found = repair(run, tmp_path, "--mode", "point-in-time")
    assert [file["action"] for file in found["files"] if file["kind"] == "segment"] == [
        "copied",
        "rewritten",
        "emptied",
    ]
    assert found["summary"]["given_up_records"] == 6 + 10
    wal = tmp_path / "copy" / log.relative_to(tmp_path / "log")
    assert [frame.offset for frame in frames(wal / middle.name)] == [
        frame.offset for frame in frames(middle)
    ]  # positions stay
    assert frames(wal / newest.name) == []
    lines = run("dump", f"{tmp_path}/copy", "-o", "json").lines
    assert [line["value"] for line in lines] == [[0, key] for key in range(10)] + [
        [1, key] for key in range(4)
    ]
    with imap_wal.open(f"file://{tmp_path}/copy", node="n1") as store:
        assert store.map("m")["k4"] == [0, 4]
        store.map("m")["k4"] = "newer than all that was given up"
    assert values(f"{tmp_path}/copy")["k4"] == "newer than all that was given up"
    assert clean(run, f"{tmp_path}/copy")


@pytest.mark.parametrize("offset", [0, 9, 11, 15, 30, 45, 70, 100])
def test_a_damaged_segment_header_costs_nothing(
    run: Run, log: Path, tmp_path: Path, offset: int
) -> None:
    _, middle, _ = sorted(log.glob("*.wal"))
    flip(middle, offset)
    found = damaged_file(repair(run, tmp_path, code=0))
    assert (found["action"], found["given_up"], found["kept"]["records"]) == ("rewritten", None, 10)
    assert len(run("dump", f"{tmp_path}/copy", "-o", "json").lines) == 30


def test_a_damaged_header_and_a_damaged_frame(run: Run, log: Path, tmp_path: Path) -> None:
    _, middle, _ = sorted(log.glob("*.wal"))
    flip(middle, frames(middle)[0].offset + 30)
    flip(middle, 20)
    found = damaged_file(repair(run, tmp_path))
    assert (found["kept"]["records"], found["given_up"]["records"]) == (9, 1)


def test_a_missing_segment_keeps_its_number(run: Run, log: Path, tmp_path: Path) -> None:
    _, middle, _ = sorted(log.glob("*.wal"))
    middle.unlink()
    found = repair(run, tmp_path)
    assert damaged_file(found)["status"] == "missing"
    assert found["summary"]["unknown_loss"] == 1
    lines = run("dump", f"{tmp_path}/copy", "-o", "json").lines
    assert [line["value"][0] for line in lines] == [0] * 10 + [2] * 10
    assert len(values(f"{tmp_path}/copy")) == 10


@pytest.mark.parametrize("content", [b"", b"\0" * 4096], ids=["empty", "zeros"])
@pytest.mark.parametrize("mode", ["salvage", "point-in-time"])
def test_a_segment_without_bytes_is_given_up(
    run: Run, log: Path, tmp_path: Path, content: bytes, mode: str
) -> None:
    """It lost all its bytes and is not reported as whole."""
    _, middle, _ = sorted(log.glob("*.wal"))
    middle.write_bytes(content)
    ended = run("verify", tmp_path / "log", "-o", "json")
    (found,) = [file for file in ended.json["files"] if file["status"] != "clean"]
    assert (ended.code, found["status"], found["lost_records"]) == (3, "corrupt", None)
    repaired = repair(run, tmp_path, "--mode", mode)
    (given_up,) = [
        file["given_up"] for file in repaired["files"] if file["file"].endswith(middle.name)
    ]
    assert (given_up["first"], given_up["records"]) == (str(Position(2, 2, 0, 0)), None)


def test_a_missing_newest_segment_is_given_up(run: Run, log: Path, tmp_path: Path) -> None:
    """The copy opens."""
    max(log.glob("*.wal")).unlink()
    damaged_file(repair(run, tmp_path))
    assert values(f"{tmp_path}/copy") == {f"k{key}": [1, key] for key in range(10)}
    assert clean(run, f"{tmp_path}/copy")


@pytest.mark.parametrize("mode", [SALVAGE, POINT_IN_TIME])
def test_a_cut_end_of_an_older_segment_is_told(
    run: Run, log: Path, tmp_path: Path, mode: str
) -> None:
    _, middle, _ = sorted(log.glob("*.wal"))
    end = frames(middle)[6].offset
    middle.write_bytes(middle.read_bytes()[:end])
    ended = run("verify", tmp_path / "log", "-o", "json")
    assert ended.code == 3
    (file,) = [file for file in ended.json["files"] if file["status"] != "clean"]
    assert (Path(file["file"]).name, file["offset"]) == (middle.name, end)
    found = repair(run, tmp_path, "--mode", mode)
    (file,) = [file for file in found["files"] if file["status"] != "clean"]
    assert file["given_up"]["first"] == str(Position(2, 2, end, 0))
    lines = run("dump", f"{tmp_path}/copy", "-o", "json").lines
    assert len(lines) == (26 if mode == SALVAGE else 16)


@pytest.mark.parametrize("mode", [SALVAGE, POINT_IN_TIME])
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("zeros", [0, 4096])
def test_a_segment_that_lost_its_frames_is_not_empty(
    run: Run, log: Path, tmp_path: Path, mode: str, which: int, zeros: int
) -> None:
    """It lost all of them.
    Its header is whole. What the next one says of the last frame before it shows that there were
    some."""
    path = sorted(log.glob("*.wal"))[which]
    end = frames(path)[0].offset
    path.write_bytes(path.read_bytes()[:end] + bytes(zeros))
    ended = run("verify", tmp_path / "log", "-o", "json")
    (file,) = [file for file in ended.json["files"] if file["status"] != "clean"]
    assert (ended.code, Path(file["file"]).name, file["offset"]) == (3, path.name, end)
    found = repair(run, tmp_path, "--mode", mode)
    (file,) = [file for file in found["files"] if file["status"] != "clean"]
    assert (Path(file["file"]).name, file["given_up"]["first"]) == (
        path.name,
        str(Position(which + 1, which + 1, end, 0)),
    )
    rounds = range(which) if mode == POINT_IN_TIME else (each for each in range(3) if each != which)
    lines = run("dump", f"{tmp_path}/copy", "-o", "json").lines
    assert [line["value"] for line in lines] == [
        [round_, key] for round_ in rounds for key in range(10)
    ]
    with imap_wal.open(f"file://{tmp_path}/copy", node="n1") as store:
        store.map("m")["k4"] = "new"
    assert values(f"{tmp_path}/copy")["k4"] == "new"
    assert clean(run, f"{tmp_path}/copy")


@pytest.mark.parametrize("mode", [SALVAGE, POINT_IN_TIME])
def test_the_first_unarchived_segment_is_not_taken_as_empty(
    run: Run, tmp_path: Path, mode: str
) -> None:
    """This segment, too, lost all its frames.
    Its writer knew of no frame before it, because all were archived."""
    for value in range(3):
        with imap_wal.open(f"file://{tmp_path}/log", node="n1", preallocate=False) as store:
            store.map("m")[f"k{value}"] = value
            if not value:
                store.archive()
    path = min((tmp_path / "log").rglob("*.wal"))
    assert path.name == "00000002-00000002.wal"
    path.write_bytes(path.read_bytes()[: frames(path)[0].offset])
    with pytest.raises(ShortLog):
        values(f"{tmp_path}/log")
    found = repair(run, tmp_path, "--mode", mode)
    assert (
        Path(damaged_file(found)["file"]).name == path.name
        if mode == SALVAGE
        else found["summary"]["damaged"] == 2
    )
    assert values(f"{tmp_path}/copy") == ({"k0": 0, "k2": 2} if mode == SALVAGE else {"k0": 0})


def test_a_cut_end_of_a_closed_log_is_told(run: Run, log: Path, tmp_path: Path) -> None:
    newest = max(log.glob("*.wal"))
    newest.write_bytes(newest.read_bytes()[: frames(newest)[6].offset])
    assert run("verify", tmp_path / "log").code == 3
    repair(run, tmp_path)
    assert values(f"{tmp_path}/copy") == {
        f"k{key}": [2 if key < 6 else 1, key] for key in range(10)
    }


def test_a_torn_tail_is_cut_and_nothing_is_given_up(run: Run, tmp_path: Path) -> None:
    left = MemoryStore(f"torn-{tmp_path}")
    store = imap_wal.open(f"memory://{tmp_path}-live", node="n1")
    for key in range(5):
        store.map("m")[f"k{key}"] = key
    left = copy_files(store_of(f"memory://{tmp_path}-live"))
    store.close()
    (path,) = [file.path for file in left.list("") if file.path.endswith(".wal")]
    data = left.read(path).rstrip(b"\0")
    overwrite(left, path, data[:-3])
    copy, items = repaired(left, f"torn-copy-{tmp_path}")
    (item,) = [item for item in items if item["kind"] == "segment"]
    assert (item["action"], item["status"], item["given_up"], item["kept"]["records"]) == (
        "trimmed",
        "torn-tail",
        None,
        4,
    )
    assert data.startswith(copy.read(path))
    with imap_wal.open(copy.url, node="n1") as store:
        assert dict(store.map("m")) == {f"k{key}": key for key in range(4)}


def store_of(url: str) -> SegmentStore:
    return open_store(url)


def test_a_damaged_archive_gives_what_can_be_read(run: Run, tmp_path: Path) -> None:
    with imap_wal.open(f"file://{tmp_path}/log", node="n1") as store:
        for start in range(0, 6000, 100):
            store.map("m").update(
                {
                    f"k{number}": [number, random.Random(number).randbytes(40).hex()]
                    for number in range(start, start + 100)
                }
            )
        store.archive()
        store.map("m")["last"] = 1
    (archive,) = (tmp_path / "log").rglob("*.parquet")
    flip(archive, archive.stat().st_size // 2)
    assert run("verify", tmp_path / "log").code == 3
    found = damaged_file(repair(run, tmp_path))
    assert found["kind"] == "archive"
    assert found["kept"]["records"] + found["given_up"]["records"] == 6000
    lines = run("dump", f"{tmp_path}/copy", "-o", "json").lines
    assert len(lines) == found["kept"]["records"] + 1
    archive.write_bytes(archive.read_bytes()[:-9])
    ended = run("repair", tmp_path / "log", "--dry-run", "-o", "json")
    assert damaged_file(ended.json)["action"] == "given-up"
    archive.unlink()
    ended = run("repair", tmp_path / "log", "--to", f"file://{tmp_path}/without", "-o", "json")
    assert (ended.code, damaged_file(ended.json)["given_up"]["records"]) == (3, 6000)
    assert [line["key"] for line in run("dump", f"{tmp_path}/without", "-o", "json").lines] == [
        "last"
    ]


def test_point_in_time_ends_at_a_damaged_archive(run: Run, tmp_path: Path) -> None:
    with imap_wal.open(f"file://{tmp_path}/log", node="n1") as store:
        for round_ in range(3):
            for number in range(5):
                store.map("a")[f"{round_}-{number}"] = "x" * 100
                store.map("b")[f"{round_}-{number}"] = "y" * 100
            store.archive()
        store.map("a")["last"] = 1
    second = sorted((tmp_path / "log").rglob("archive/a/*.parquet"))[1]
    flip(second, second.stat().st_size - 100)
    second.write_bytes(second.read_bytes()[:-30])
    found = repair(run, tmp_path, "--mode", "point-in-time")
    lines = run("dump", f"{tmp_path}/copy", "-o", "json").lines
    assert sorted((line["map"], line["key"]) for line in lines) == [
        (name, f"0-{number}") for name in "ab" for number in range(5)
    ]
    assert found["summary"]["given_up_records"] == 21
    with imap_wal.open(f"file://{tmp_path}/copy", node="n1") as store:
        assert len(store.map("a")) == len(store.map("b")) == 5


def test_a_damaged_snapshot_gives_what_can_be_read(
    run: Run, url: str, root: Path, tmp_path: Path
) -> None:
    assert run("rewrite", url).code == 0
    assert run("prune", url, "--yes").code == 0
    snapshot = next((root / "prod/eu/snapshot").rglob("*.parquet"))
    data = snapshot.read_bytes()
    snapshot.write_bytes(data[: len(data) // 2])
    ended = run("repair", url, "--to", f"file://{tmp_path}/copy", "-o", "json")
    assert ended.code == 3
    assert damaged_file(ended.json)["kind"] == "snapshot"
    assert run("restore", f"{tmp_path}/copy").code == 0
    with imap_wal.open(
        f"file://{tmp_path}/copy", namespace="prod", cluster="eu", node="n1"
    ) as store:
        store.map("orders")["new"] = 1
    assert "new" in {line["key"] for line in run("export", f"{tmp_path}/copy").lines}


def test_a_damaged_manifest_is_replaced_by_the_one_before(
    run: Run, url: str, root: Path, tmp_path: Path
) -> None:
    state = run("export", url).out
    manifest = max((root / "prod/eu/nodes/n1/manifest").glob("*.json"))
    manifest.write_bytes(b"\0" * 100)
    ended = run("repair", url, "--to", f"file://{tmp_path}/copy", "-o", "json")
    assert ended.code == 3
    assert damaged_file(ended.json)["kind"] == "manifest"
    assert run("export", f"{tmp_path}/copy").out == state
    with imap_wal.open(
        f"file://{tmp_path}/copy", namespace="prod", cluster="eu", node="n1"
    ) as store:
        store.map("orders")["o1"] = "newest"
    with imap_wal.open(
        f"file://{tmp_path}/copy", namespace="prod", cluster="eu", node="n1"
    ) as store:
        assert store.map("orders")["o1"] == "newest"


def test_archives_of_a_lost_manifest_are_taken_in(run: Run, tmp_path: Path) -> None:
    with imap_wal.open(f"file://{tmp_path}/log", node="n1") as store:
        store.map("m").update({f"k{key}": key for key in range(10)})
        store.archive()
        manifest = max((tmp_path / "log").rglob("nodes/n1/manifest/*.json"))
        store.map("m")["k1"] = "after"
    for lost in manifest.parent.glob("*.json"):
        if lost >= manifest:
            flip(lost, 30)
    repair(run, tmp_path)
    assert values(f"{tmp_path}/copy") == {**{f"k{key}": key for key in range(10)}, "k1": "after"}


def test_what_a_later_lifetime_made_void_stays_void(run: Run, log: Path, tmp_path: Path) -> None:
    from dataclasses import replace

    _, middle, _ = sorted(log.glob("*.wal"))
    all_frames = frames(middle)
    cut = Position(2, 2, all_frames[6].offset, 0)
    whole = ClusterLog(open_store(f"{tmp_path}/log"), "default", "embedded")
    lifetime = IncarnationRecord(
        "c", 3, {"n1": cut}
    )  # the third open's entries count, the second's only up to the cut
    whole.manifests.update(lambda manifest: replace(manifest, lifetimes=(lifetime,)))
    lines = run("dump", f"{tmp_path}/log", "-o", "json").lines
    assert [line["value"] for line in lines] == [[0, key] for key in range(10)] + [
        [1, key] for key in range(7)
    ] + [[2, key] for key in range(10)]
    flip(middle, all_frames[2].offset + 30)
    repair(run, tmp_path)
    lines = run("dump", f"{tmp_path}/copy", "-o", "json").lines
    kept = [[1, key] for key in range(7) if key != 2]
    assert [line["value"] for line in lines] == [[0, key] for key in range(10)] + kept + [
        [2, key] for key in range(10)
    ]


def test_repair_copies_segments_under_one_root(run: Run, tmp_path: Path) -> None:
    """Segments of another storage come under the root of the copy."""
    with imap_wal.open(
        f"file://{tmp_path}/log", node="n1", wal_dir=f"file://{tmp_path}/fast"
    ) as store:
        for key in range(5):
            store.map("m")[f"k{key}"] = key
    (segment,) = (tmp_path / "fast").rglob("*.wal")
    flip(segment, frames(segment)[1].offset + 30)
    assert damaged_file(repair(run, tmp_path))["kept"]["records"] == 4
    assert len(list((tmp_path / "copy").rglob("*.wal"))) == 1
    assert values(f"{tmp_path}/copy") == {f"k{key}": key for key in (0, 2, 3, 4)}


def test_a_copy_of_one_node_names_only_that_node(run: Run, url: str, tmp_path: Path) -> None:
    assert run("repair", url, "--node", "n2", "--to", f"file://{tmp_path}/copy").code == 0
    assert [line["key"] for line in run("export", f"{tmp_path}/copy").lines] == ["o4", "s1"]


def test_a_missing_node_stays_missing_and_is_named(
    run: Run, url: str, root: Path, tmp_path: Path
) -> None:
    (root / "prod/eu/nodes/n2").rename(root.parent / "elsewhere")
    ended = run("repair", url, "--to", f"file://{tmp_path}/copy")
    assert ended.code == 3
    assert "'n2'" in ended.out
    assert run("export", f"{tmp_path}/copy").code == 1
    assert run("export", f"{tmp_path}/copy", "--partial").code == 0


def test_a_repair_never_writes_into_what_is_there(run: Run, url: str, tmp_path: Path) -> None:
    for target in (url, f"file://{tmp_path}/other"):
        (tmp_path / "other").mkdir(exist_ok=True)
        (tmp_path / "other/notes.txt").write_text("mine")
        ended = run("repair", url, "--to", target)
        assert ended.code == 1
        assert "empty" in ended.err
    assert run("repair", url).code == 2


def test_a_log_that_is_being_written_is_not_repaired(run: Run, url: str, tmp_path: Path) -> None:
    with imap_wal.open(url, namespace="prod", cluster="eu", node="n1"):
        assert run("repair", url, "--to", f"file://{tmp_path}/copy").code == 4
        ended = run("repair", url, "--dry-run")
        assert ended.code == 0
        assert "is being written" in ended.err
    assert not (tmp_path / "copy").exists()


def test_a_newer_version_is_not_damage(run: Run, log: Path, tmp_path: Path) -> None:
    import struct

    import google_crc32c

    middle = sorted(log.glob("*.wal"))[1]
    data = bytearray(middle.read_bytes())
    data[8] = 9
    end = 12 + struct.unpack_from("<H", data, 10)[0]
    struct.pack_into("<I", data, end, google_crc32c.value(bytes(data[:end])))
    middle.write_bytes(data)
    ended = run("repair", tmp_path / "log", "--to", f"file://{tmp_path}/copy")
    assert ended.code == 1
    assert "upgrade" in ended.err
    assert not (tmp_path / "copy").exists()


def test_an_interrupted_repair_is_taken_for_no_log(run: Run, url: str, tmp_path: Path) -> None:
    assert run("rewrite", url).code == 0
    calls = []
    for stop in range(1000):
        target = open_store(f"file://{tmp_path}/copy{stop}")
        left = stop

        def create(path: str, data: Any, of: Callable[..., None]) -> None:
            nonlocal left
            if left == 0:
                raise InterruptedError
            left -= 1
            of(path, data)

        for name in ("create", "create_from"):
            of = getattr(target, name)
            setattr(target, name, lambda path, data, of=of: create(path, data, of))
        views, lost = tolerant_survey(store_of(url), (), ())
        repair = ClusterRepair(store_of(url), views[0], SALVAGE, always, lambda _: None, lost)
        repair.plan()
        try:
            repair.write(target)
            break
        except InterruptedError:
            calls.append(stop)
        if stop:
            for command in ("stat", "export", "restore"):
                assert run(command, f"{tmp_path}/copy{stop}").code == 1, stop
            with pytest.raises(ImapWalError):
                imap_wal.open(
                    f"file://{tmp_path}/copy{stop}", namespace="prod", cluster="eu", node="n1"
                ).close()
            ended: Ended = run("repair", url, "--to", f"file://{tmp_path}/copy{stop}")
            assert "did not finish" in ended.err
    assert len(calls) > 8
    assert run("export", f"{tmp_path}/copy{stop}").out == run("export", url).out


def test_a_damaged_object_costs_its_commit(run: Run, tmp_path: Path) -> None:
    url, copy = f"objects+file://{tmp_path}/log", f"objects+file://{tmp_path}/copy"
    with imap_wal.open(url, node="n1") as store:
        for key in range(6):
            store.map("m")[f"k{key}"] = key
    objects = sorted((tmp_path / "log").rglob("*.wal"))
    flip(objects[2], objects[2].stat().st_size - 1)
    ended = run("repair", url, "--to", copy, "-o", "json")
    assert ended.code == 3
    assert damaged_file(ended.json)["action"] == "emptied"
    assert damaged_file(ended.json)["given_up"]["records"] == 1
    assert clean(run, copy)
    assert values(copy) == {f"k{key}": key for key in (0, 1, 3, 4, 5)}


# ---- random histories, random damage -------------------------------------------------------------


@dataclass(frozen=True)
class Written:
    """A frame of entries as it stood before the damage."""

    node: str
    path: str
    epoch: int
    number: int
    offset: int
    end: int
    rows: list[Row]


def history(seed: int, url: str) -> tuple[MemoryStore, list[Written]]:
    """A log of two nodes, closed or left as a kill leaves it."""
    rng = random.Random(seed)
    for _ in range(rng.randint(1, 3)):
        open_logs = [
            imap_wal.open(
                url, node=node, shared=True, segment_bytes=rng.choice((1500, 4000, 100_000))
            )
            for node in ("n1", "n2")
        ]
        for _ in range(rng.randint(1, 25)):
            log = rng.choice(open_logs)
            target = log.map(rng.choice(("a", "b")))
            match rng.randint(0, 9):
                case 0:
                    target.update(
                        {f"k{number}": rng.random() for number in range(rng.randint(1, 6))}
                    )
                case 1 if "k1" in target:
                    del target["k1"]
                case _:
                    target[f"k{rng.randint(0, 4)}"] = rng.randbytes(rng.randint(0, 200)).hex()
        if rng.random() < 0.3:
            rng.choice(open_logs).archive()
        last = copy_files(open_store(url))
        for log in open_logs:
            log.close()
        if rng.random() < 0.4:
            from imap_wal.rewrite.local_engine import LocalEngine
            from imap_wal.rewrite.run import rewrite

            rewrite(ClusterLog(open_store(url), "default", "embedded"), LocalEngine())
            last = copy_files(open_store(url))
    store = copy_files(open_store(url)) if rng.random() < 0.6 else last
    written = []
    for file in store.list(""):
        if file.path.endswith(".wal"):
            reader = SegmentReader(store, file.path)
            for frame in reader.frames():
                rows = list(entry.rows(frame.payload)) if frame.kind == format.ENTRIES else []
                written.append(
                    Written(
                        reader.header.node,
                        file.path,
                        reader.header.epoch,
                        reader.header.number,
                        frame.offset,
                        frame.end,
                        rows,
                    )
                )
    return store, written


def damage(seed: int, store: MemoryStore, written: list[Written]) -> list[Written]:
    """Damage some segments; the frames that are still whole."""
    rng = random.Random(seed)
    whole = list(written)
    before = {frame.path: store.read(frame.path) for frame in written}
    for _ in range(rng.randint(1, 4)):
        paths = sorted({frame.path for frame in whole})
        if not paths:
            break
        path = rng.choice(paths)
        data = bytearray(store.read(path))
        first = min(frame.offset for frame in written if frame.path == path)
        end = max(frame.end for frame in written if frame.path == path)
        kind = rng.choice(("flip", "flip", "zeros", "garbage", "cut", "header", "gone"))
        start, stop = sorted((rng.randint(first, end - 1), rng.randint(first, end - 1)))
        if start >= len(data):
            continue  # cut off before
        if kind == "flip":
            stop = start + 1
            data[start] ^= 1 << rng.randint(0, 7)
        elif kind == "zeros":
            data[start:stop] = bytes(stop - start)
        elif kind == "garbage":
            data[start:stop] = rng.randbytes(stop - start)
        elif kind == "cut":
            start, stop = start if start % 4 else first, end  # often nothing is left but the header
            del data[start:]
        elif kind == "header":
            start, stop = 0, 0
            data[rng.choice((*range(15), *range(31, first)))] ^= 1 << rng.randint(
                0, 7
            )  # not the id: it may be all that a single frame can be told by
        else:
            start, stop = 0, end
        if kind == "gone":
            store.delete(path)
        else:
            overwrite(store, path, bytes(data))
        whole = [
            frame
            for frame in whole
            if frame.path != path or frame.end <= start or frame.offset >= stop
        ]
    # By content in the end: a bit that was flipped twice is whole again.
    after = {path: store.read(path) if store.exists(path) else b"" for path in before}
    return [
        frame
        for frame in written
        if after[frame.path][frame.offset : frame.end]
        == before[frame.path][frame.offset : frame.end]
    ]


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
def test_salvage_keeps_every_whole_frame_and_nothing_else(seed: int) -> None:
    store, written = history(seed, f"memory://repair-{next(numbers)}")
    log = ClusterLog(store, "default", "embedded")
    state = log.state()
    archived = [
        row
        for changes in log.changes(snapshots=False, covered=True, state=state)
        for row in changes.rows
    ]
    archived = list(
        (Counter(archived) - Counter(row for frame in written for row in frame.rows)).elements()
    )
    snapshots = [
        row for changes in log.changes(nodes=None, until={}, state=state) for row in changes.rows
    ]
    uncovered_archives = [
        row for changes in log.changes(snapshots=False, state=state) for row in changes.rows
    ]
    covered = {node: state.covered(node) for node in state.nodes}
    whole = damage(seed, store, written)
    copy, items = repaired(store, f"repaired-{next(numbers)}")
    again = ClusterLog(copy, "default", "embedded")
    found = [
        row for changes in again.changes(snapshots=False, covered=True) for row in changes.rows
    ]
    kept = [row for frame in whole for row in frame.rows]
    assert Counter(found) == Counter(kept) + Counter(archived)
    assert summary_of(items)["given_up_records"] <= sum(len(frame.rows) for frame in written) - len(
        kept
    ) + sum(item["given_up"] is None for item in items)
    # What counts: snapshots, and what stands above their marks.
    above = [
        row
        for frame in whole
        for index, row in enumerate(frame.rows)
        if Position(frame.epoch, frame.number, frame.offset, index)
        > covered[frame.node].get(row[0], format.START)
    ]
    of_archives = list((Counter(uncovered_archives) & Counter(archived)).elements())
    newest: dict[Any, Row] = {}
    for row in (*snapshots, *above, *of_archives):
        known = newest.get(row[:2])
        if known is None or row[ORDER] > known[ORDER]:
            newest[row[:2]] = row
    expected = {place: row[3] for place, row in newest.items() if not row[5]}
    import msgpack

    with imap_wal.open(copy.url, node="n1") as opened:
        for name in ("a", "b"):
            assert dict(opened.map(name)) == {
                msgpack.unpackb(key): msgpack.unpackb(value)
                for (of, key), value in expected.items()
                if of == name
            }
        opened.map("a")["new"] = seed
    with imap_wal.open(copy.url, node="n1") as opened:
        assert opened.map("a")["new"] == seed


def summary_of(items: list[Any]) -> dict[str, Any]:
    from imap_wal.repair.report import Extent, Item

    return summary(
        [
            Item(
                **{
                    **item,
                    "kept": Extent(**item["kept"]),
                    "given_up": item["given_up"] and Extent(**item["given_up"]),
                }
            )
            for item in items
        ]
    )


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
def test_point_in_time_keeps_the_front_of_every_node(seed: int) -> None:
    store, written = history(seed, f"memory://pit-{next(numbers)}")
    whole = damage(seed, store, written)
    copy, _ = repaired(store, f"pit-copy-{next(numbers)}", POINT_IN_TIME)
    again = ClusterLog(copy, "default", "embedded")
    for node in ("n1", "n2"):
        order = sorted(
            (frame for frame in written if frame.node == node),
            key=lambda frame: (frame.number, frame.offset),
        )
        front: list[Row] = []
        for frame in order:
            if frame not in whole:
                break
            front += frame.rows
        found = [
            row
            for changes in again.changes(snapshots=False, covered=True, nodes=[node])
            for row in changes.rows
        ]
        of_segments = Counter(found) & Counter(row for frame in order for row in frame.rows)
        assert of_segments == Counter(front)
    with imap_wal.open(copy.url, node="n1") as opened:
        opened.map("a")["new"] = seed
