"""repair of damaged segments: which entries are kept, that the copy opens, and that losses are
named."""

from __future__ import annotations

from pathlib import Path

import pytest

import imap_wal
from imap_wal.errors import ShortLog
from imap_wal.format import Position
from imap_wal.repair.report import POINT_IN_TIME, SALVAGE
from storage_backends.memory import MemoryStore
from tests.cli.conftest import Run
from tests.kit.effort import every
from tests.kit.repairs import clean, damaged_file, flip, frames, repair, repaired, store_of, values
from tests.support import copy_files, overwrite


@every(4)
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


def test_point_in_time_keeps_entries_before_the_damage(run: Run, log: Path, tmp_path: Path) -> None:
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
    ]  # the positions are the same
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


@every(4)
@pytest.mark.parametrize("offset", [0, 9, 11, 45, 70, 100])
def test_a_damaged_segment_header_costs_nothing(
    run: Run, log: Path, tmp_path: Path, offset: int
) -> None:
    _, middle, _ = sorted(log.glob("*.wal"))
    flip(middle, offset)
    found = damaged_file(repair(run, tmp_path, code=0))
    assert (found["action"], found["given_up"], found["kept"]["records"]) == ("rewritten", None, 10)
    assert len(run("dump", f"{tmp_path}/copy", "-o", "json").lines) == 30


@pytest.mark.parametrize("offset", [15, 30])
def test_a_segment_with_a_damaged_id_is_given_up(
    run: Run, log: Path, tmp_path: Path, offset: int
) -> None:
    """Its frames cannot be told from bytes that look like frames."""
    _, middle, _ = sorted(log.glob("*.wal"))
    flip(middle, offset)
    found = damaged_file(repair(run, tmp_path))
    assert found["action"] == "emptied" and found["given_up"]["records"] is None
    assert len(run("dump", f"{tmp_path}/copy", "-o", "json").lines) == 20


def test_a_damaged_header_and_a_damaged_frame(run: Run, log: Path, tmp_path: Path) -> None:
    _, middle, _ = sorted(log.glob("*.wal"))
    flip(middle, frames(middle)[0].offset + 30)
    flip(middle, 9)
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


@every(3)
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
def test_a_cut_end_of_an_older_segment_is_reported(
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


@every(10)
@pytest.mark.parametrize("mode", [SALVAGE, POINT_IN_TIME])
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("zeros", [0, 4096])
def test_a_segment_that_lost_its_frames_is_not_empty(
    run: Run, log: Path, tmp_path: Path, mode: str, which: int, zeros: int
) -> None:
    """Its header is whole. The next segment names the last frame before it, so there were
    frames."""
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
    """It lost all its frames. Its writer knew of no frame before it, because all were archived."""
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


def test_a_cut_end_of_a_closed_log_is_reported(run: Run, log: Path, tmp_path: Path) -> None:
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
