"""Embedded maps with encryption at rest: wrong keys change nothing, keys rotate, forgeries are
refused."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

import imap_wal
from imap_wal import format, log
from imap_wal.errors import (
    CorruptLog,
    EncryptionError,
    Forged,
    ImapWalError,
    InvalidSetting,
    LogError,
)
from imap_wal.segment.reader import SegmentReader
from storage_backends import open_store
from tests.encrypted import key, key_file, keyed, other
from tests.kit.effort import every
from tests.kit.encrypted_maps import (
    SECRET,
    SECRET_KEY,
    content,
    entries,
    fill,
    forge_frame,
    killed,
    last_frame,
    wrong_keys,
)
from tests.support import overwrite, segments


@pytest.fixture(params=["file", "objects"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"{'objects+' if request.param == 'objects' else ''}file://{tmp_path}/root"


@every(2)
def test_no_key_and_no_value_is_in_any_file(place: str, tmp_path: Path) -> None:
    source = key_file(tmp_path, "a")
    with imap_wal.open(place, encryption_keys=source) as store:
        orders = store.map("orders")
        for number in range(200):
            orders[f"{SECRET_KEY}-{number}"] = SECRET
        store.archive()
        orders.update({f"{SECRET_KEY}-{number}": SECRET * 100 for number in range(50)})
        orders.clear()
        orders[SECRET_KEY] = SECRET
    files = content(place)
    assert any(path.endswith(".parquet") for path in files)
    for path, data in files.items():
        assert SECRET.encode() not in data and SECRET_KEY.encode() not in data, path
    assert entries(place, source) == 1


def test_the_check_above_finds_a_value_where_nothing_is_encrypted(place: str) -> None:
    fill(place, "")
    assert any(SECRET.encode() in data for data in content(place).values())


@every(21)
@pytest.mark.parametrize("mode", ["torn-tail", "absolute", "point-in-time"])
@pytest.mark.parametrize(
    "torn", [b"", b"\x99" * 7, b"\x99" * 700], ids=["whole", "few bytes", "many bytes"]
)
@pytest.mark.parametrize(
    "keys",
    [None, ("b",), (other("a"),), ("plain",)],
    ids=["none", "missing", "wrong", "plain only"],
)
def test_an_open_with_the_wrong_keys_changes_nothing(
    tmp_path: Path, mode: Any, torn: bytes, keys: tuple[str, ...] | None
) -> None:
    place, source = str(tmp_path / "root"), key_file(tmp_path, "a")
    killed(place, source, torn)
    before = content(place)
    wrong = wrong_keys(tmp_path, keys)
    for _ in range(2):
        with pytest.raises(EncryptionError, match="key"):
            imap_wal.open(place, encryption_keys=wrong, recovery_mode=mode)
    assert content(place) == before
    if mode != "absolute" or not torn:
        assert entries(place, source, recovery_mode=mode) == 20


@pytest.mark.parametrize("keys", [None, ("b",), (other("a"),)], ids=["none", "missing", "wrong"])
def test_empty_log_does_not_open_with_wrong_keys(
    place: str, tmp_path: Path, keys: tuple[str, ...] | None
) -> None:
    """A log without segments does not open with the wrong keys either."""
    source = key_file(tmp_path, "a")
    with imap_wal.open(place, encryption_keys=source) as store:
        store.map("orders").update(dict.fromkeys(map(str, range(20)), SECRET))
        store.archive()
    wrong = wrong_keys(tmp_path, keys)
    with pytest.raises(EncryptionError):
        imap_wal.open(place, encryption_keys=wrong)
    assert entries(place, source) == 20


@pytest.mark.parametrize("mode", ["torn-tail", "absolute"])
def test_forged_last_frame_is_no_torn_tail(tmp_path: Path, mode: Any) -> None:
    place, source = str(tmp_path / "root"), key_file(tmp_path, "a")
    killed(place, source)
    disk = open_store(place)
    path, frame = forge_frame(disk)
    before = content(place)
    with pytest.raises(Forged, match="forged or moved") as raised:
        imap_wal.open(place, encryption_keys=source, recovery_mode=mode)
    assert (raised.value.file, raised.value.offset) == (path, frame.offset)
    assert content(place) == before


def test_point_in_time_quarantines_a_forged_frame_on_demand(tmp_path: Path) -> None:
    """The mode point-in-time gives up a forged frame, and puts it aside."""
    place, source = str(tmp_path / "root"), key_file(tmp_path, "a")
    killed(place, source)
    disk = open_store(place)
    path, frame = forge_frame(disk)
    forged = disk.read(path)
    with imap_wal.open(place, encryption_keys=source, recovery_mode="point-in-time") as store:
        assert len(store.map("orders")) == 19
        lost = store.statistics.recovery.lost
        assert lost is not None and lost.offset == frame.offset
        assert disk.read(lost.put_aside[0]) == forged


def test_a_frame_that_somebody_without_the_key_appends_is_refused(tmp_path: Path) -> None:
    """Such a person knows the format, and can compute the checksum."""
    place, source = str(tmp_path / "root"), key_file(tmp_path, "a")
    killed(place, source)
    disk = open_store(place)
    path = segments(disk)[-1]
    data = disk.read(path)
    seed, _, end = last_frame(disk, path)
    chunks, _, _ = format.encode_frame(seed, end, format.ENTRIES, 1, 0, [bytes(80)])
    overwrite(disk, path, data[:end] + b"".join(chunks))
    with pytest.raises(Forged):
        imap_wal.open(place, encryption_keys=source)


def test_unencrypted_replacement_of_a_segment_is_refused(tmp_path: Path) -> None:
    """A segment that was replaced by one without encryption is refused."""
    place, source = str(tmp_path / "root"), key_file(tmp_path, "a")
    killed(place, source)
    disk = open_store(place)
    path = segments(disk)[-1]
    reader, keys = SegmentReader(disk, path), keyed(disk, "a").keys
    head = reader.header._replace(key_id="", key_check=b"")
    data, seed = head.encode(), head.checksum_seed
    for frame in reader.frames(keys):
        chunks, _, _ = format.encode_frame(
            seed, len(data), frame.kind, frame.count, 0, [frame.payload]
        )
        data += b"".join(chunks)
    overwrite(disk, path, data)
    with pytest.raises(EncryptionError, match="it is not encrypted"):
        imap_wal.open(place, encryption_keys=source)
    assert entries(place, key_file(tmp_path, "a", "plain")) == 20  # it is a good segment otherwise


@pytest.mark.parametrize("forged", ["plain header", "its own header"])
def test_a_segment_in_the_middle_that_was_emptied_is_noticed(tmp_path: Path, forged: str) -> None:
    """Also if its header does not name the segment before it, as after a takeover."""
    place, source = str(tmp_path / "root"), key_file(tmp_path, "a")
    with imap_wal.open(place, encryption_keys=source, segment_bytes=1024) as store:
        for number in range(40):
            store.map("orders")[str(number)] = SECRET
    disk = open_store(place)
    middle = segments(disk)[2]
    head = SegmentReader(disk, middle).header
    if forged == "plain header":
        head = head._replace(key_id="", key_check=b"", previous_checksum=0)
    overwrite(disk, middle, head.encode())
    with pytest.raises((EncryptionError, LogError)):
        imap_wal.open(place, encryption_keys=source)
    overwrite(disk, middle, head._replace(key_id="", key_check=b"", previous_checksum=0).encode())
    assert (
        entries(place, key_file(tmp_path, "a", "plain")) < 40
    )  # without an error: the loss is not noticed


@every(3)
@pytest.mark.parametrize("wrong", ["none", "missing"])
def test_segments_that_takeovers_leave_are_encrypted_too(
    place: str, tmp_path: Path, wrong: str
) -> None:
    """Headers of segments without frames: a log without `plain` opens again after each."""
    source = key_file(tmp_path, "a")
    with imap_wal.open(place, encryption_keys=source) as first:
        first.map("orders")["k"] = SECRET
        with imap_wal.open(place, encryption_keys=source, takeover=True) as second:
            second.map("orders")["l"] = SECRET
        with contextlib.suppress(ImapWalError):
            first.map("orders")["m"] = SECRET
        with contextlib.suppress(ImapWalError):
            first.close()
    disk = open_store(place)
    assert {SegmentReader(disk, path).header.key_id for path in segments(disk)} == {"a"}
    assert entries(place, source) == 2
    with pytest.raises(EncryptionError):
        entries(place, "" if wrong == "none" else key_file(tmp_path, "b"))


def test_an_archive_that_was_exchanged_for_another_is_refused(tmp_path: Path) -> None:
    place, source = str(tmp_path / "root"), key_file(tmp_path, "a")
    with imap_wal.open(place, encryption_keys=source) as store:
        for name in ("orders", "stock"):
            store.map(name)["k"] = name
        store.archive()
    disk = open_store(place)
    orders, stock = sorted(file.path for file in disk.list("") if file.path.endswith(".parquet"))
    overwrite(disk, orders, disk.read(stock))
    from imap_wal.parquet.reader import batches

    with pytest.raises(Forged, match=r"was written as .*stock"):
        list(batches(keyed(disk, "a"), orders))
    with pytest.raises(CorruptLog):
        imap_wal.open(place, encryption_keys=source)


def test_keys_rotate_segment_by_segment(place: str, tmp_path: Path) -> None:
    fill(place, key_file(tmp_path, "a"))
    fill(place, key_file(tmp_path, "b", "a"), start=20)
    both = key_file(tmp_path, "b", "a")
    assert entries(place, both) == 40
    ids = {
        SegmentReader(open_store(place), path).header.key_id for path in segments(open_store(place))
    }
    assert {"a", "b"} <= ids
    with pytest.raises(EncryptionError):
        entries(place, key_file(tmp_path, "b"))
    assert entries(place, both) == 40


def test_open_log_uses_new_key_in_next_segment(tmp_path: Path) -> None:
    place, source = str(tmp_path / "root"), key_file(tmp_path, "a")
    with imap_wal.open(place, encryption_keys=source, segment_bytes=2048) as store:
        store.map("orders")["first"] = SECRET
        Path(source.removeprefix("file:")).write_text(f"{key('b')}\n{key('a')}")
        for number in range(50):
            store.map("orders")[str(number)] = SECRET
    ids = [
        SegmentReader(open_store(place), path).header.key_id for path in segments(open_store(place))
    ]
    assert ids[0] == "a" and ids[1:] == ["b"] * (len(ids) - 1) and len(ids) > 1
    assert entries(place, source) == 51


def test_encryption_is_switched_for_an_existing_log(place: str, tmp_path: Path) -> None:
    """Encryption is turned on and off for an existing log."""
    fill(place, "")
    with pytest.raises(EncryptionError, match="add the word 'plain'"):
        entries(place, key_file(tmp_path, "a"))
    fill(place, key_file(tmp_path, "a", "plain"), start=20)
    fill(place, key_file(tmp_path, "plain", "a"), start=40)
    assert entries(place, key_file(tmp_path, "plain", "a")) == 60
    plain = [
        b"value-that-nobody" in data
        for path, data in sorted(content(place).items())
        if path.endswith(".wal")
    ]
    assert any(plain) and not all(plain)


def test_the_newest_segment_without_frames_needs_its_key_too(tmp_path: Path) -> None:
    place, source = str(tmp_path / "root"), key_file(tmp_path, "a")
    killed(place, source)
    disk = open_store(place)
    path = segments(disk)[-1]
    overwrite(disk, path, disk.read(path)[: SegmentReader(disk, path).first])
    before = content(place)
    with pytest.raises(EncryptionError):
        imap_wal.open(place)
    assert content(place) == before


@pytest.mark.parametrize("wrong", ["a", "file:", 7, "vault:x"])
def test_a_source_of_another_form_is_refused(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(InvalidSetting, match="encryption_keys"):
        imap_wal.open(str(tmp_path), encryption_keys=wrong)


def test_encrypted_record_log_is_read_by_another_process(tmp_path: Path) -> None:
    place, source = str(tmp_path / "root"), key_file(tmp_path, "a")
    with log.create(place, encryption_keys=source) as records:
        for number in range(10):
            records.append("events", (str(number).encode(), SECRET.encode()))
    assert not any(SECRET.encode() in data for data in content(place).values())
    reader = log.LogReader(place, encryption_keys=source)
    assert [record.entry.value for record in reader.read()] == [SECRET.encode()] * 10
    with pytest.raises(EncryptionError):
        list(log.LogReader(place).read())


def test_archive_of_another_log_does_not_open(tmp_path: Path) -> None:
    """An archive of another log does not open under the same path.
    Same names, same key: only the log directory differs. The file's checksum is in the manifest,
    which an attacker without the key can change."""
    place, source = str(tmp_path / "root"), key_file(tmp_path, "a")
    with imap_wal.open(place, encryption_keys=source) as store:
        store.map("orders")["k"] = "v"
        store.archive()
        store.map("orders")["later"] = "v"  # so there is a segment
    disk = open_store(place)
    context = keyed(disk, "a")
    (path,) = (file.path for file in disk.list("") if file.path.endswith(".parquet"))
    (directory,) = {SegmentReader(disk, file).header.directory for file in segments(disk)}
    from imap_wal.parquet import salvage
    from imap_wal.parquet.reader import Expected, batches

    assert (
        sum(len(batch) for batch in batches(context, path, expected=Expected(log=directory))) == 1
    )
    assert salvage.count_readable(context, path, log=directory).records == 1
    with pytest.raises(Forged, match="it was moved here"):
        list(batches(context, path, expected=Expected(log="00000000-0000-4000-8000-000000000009")))
    moved = salvage.count_readable(context, path, log="00000000-0000-4000-8000-000000000009")
    assert moved.records == 0 and "it was moved here" in moved.what
