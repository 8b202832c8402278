"""Faults 3, 4, 5: a torn tail, a torn middle, flipped bits, impossible lengths, zeros, noise."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import msgpack
import pytest

from imap_wal import format
from imap_wal.context import Context
from imap_wal.entry import KEY, VALUE
from imap_wal.errors import CorruptLog, LogError, ShortLog, UnsupportedVersion
from imap_wal.read.cluster import ClusterLog
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.run import rewrite
from imap_wal.segment.reader import SegmentReader
from imap_wal.settings import Settings
from storage_backends import SegmentStore
from storage_backends.local import LocalStore
from storage_backends.memory import MemoryStore
from tests.kit.effort import every, stride, thorough
from tests.kit.faults import Cases
from tests.support import copy_files, embedded, overwrite, segments

NAMES = ("apple", "banana", "cherry", "damson")


def killed(memory: MemoryStore, **options: Any) -> tuple[str, bytes, list[format.Frame]]:
    """A log of four commits whose process was killed: path, bytes and frames of its one segment."""
    store = embedded(memory, segment_bytes=8192, **options)
    for number, name in enumerate(NAMES):
        store.map("m")[name] = f"value-{number}"
    path = segments(memory)[0]
    reader = SegmentReader(memory, path)
    return path, memory.read(path), list(reader.whole_frames())


def damaged(memory: MemoryStore, path: str, data: bytes) -> MemoryStore:
    left = copy_files(memory)
    overwrite(left, path, data)
    return left


def found(store: SegmentStore) -> dict[str, str]:
    """The contents of the log at an open. A write and a second open must keep them."""
    with embedded(store) as opened:
        first = dict(opened.map("m").items())
        opened.map("m")["after"] = "x"
    with embedded(store) as opened:
        again = dict(opened.map("m").items())
    assert again == {**first, "after": "x"}
    return first


def expected(count: int) -> dict[str, str]:
    return {name: f"value-{number}" for number, name in enumerate(NAMES[:count])}


# ---- 3: torn tail ----


@every(2)
@pytest.mark.parametrize("preallocate", [False, True])
def test_a_torn_last_frame_costs_that_commit_alone(
    memory: MemoryStore, cases: Cases, preallocate: bool
) -> None:
    """It is torn at any byte. The log continues.
    Fault 3."""
    path, whole, frames = killed(memory, preallocate=preallocate)
    last = frames[-1]
    for cut in range(last.offset, last.end):
        left = damaged(
            memory, path, whole[:cut] + (bytes(len(whole) - cut) if preallocate else b"")
        )
        assert found(left) == expected(3), f"cut at byte {cut} of {last.offset}..{last.end}"
        cases(1)
    assert found(damaged(memory, path, whole[: last.end])) == expected(4)


def test_a_torn_real_file_costs_that_commit_alone(
    tmp_path: Path, memory: MemoryStore, cases: Cases
) -> None:
    """Its tail is torn at any byte. The log continues.
    Fault 3, on a real file."""
    path, whole, frames = killed(memory)
    last = frames[-1]
    for cut in range(last.offset, last.end, 7):
        store = LocalStore(str(tmp_path / str(cut)))
        for file in memory.list(""):
            store.create(file.path, whole[:cut] if file.path == path else memory.read(file.path))
        assert found(store) == expected(3), f"cut at byte {cut}"
        cases(1)


@pytest.mark.parametrize("size", [64, 4096])
def test_a_tail_of_zeros_is_no_damage(memory: MemoryStore, cases: Cases, size: int) -> None:
    """Nothing is lost.
    Fault 5: a zero tail of 64 bytes and of 4 KiB."""
    path, whole, _ = killed(memory)
    left = damaged(memory, path, whole + bytes(size))
    assert found(left) == expected(4)
    cases(1)


def test_a_tail_of_noise_loses_nothing_acknowledged(
    memory: MemoryStore, cases: Cases, seed: int
) -> None:
    """The tail is cut.
    Fault 3: bytes that were never written completely need not be zeros."""
    path, whole, _ = killed(memory)
    chance = Random(seed)
    for size in (1, 11, 12, 13, 64, 512, 4096):
        left = damaged(memory, path, whole + chance.randbytes(size))
        assert found(left) == expected(4), f"{size} bytes, seed {seed}"
        cases(1)


# ---- 4: torn middle ----


def refused(
    store: MemoryStore, path: str, data: bytes, why: str, kinds: Any = LogError
) -> LogError:
    """The error of the open names the file and the offset, and nothing is changed."""
    with pytest.raises(kinds) as raised:
        embedded(store).close()
    error: LogError = raised.value
    assert error.file == path, why
    assert store.read(path) == data, f"{why}: the file was touched"
    return error


@pytest.mark.parametrize("damage", ["zeros", "noise", "another frame", "half of it"])
def test_a_torn_middle_is_found_and_located(
    memory: MemoryStore, cases: Cases, damage: str, seed: int
) -> None:
    """Nothing after it is returned silently.
    Fault 4: each frame but the last, and each 512-byte sector, was damaged."""
    path, whole, frames = killed(memory)
    chance = Random(seed)
    for frame, following in pairwise(frames):
        replacement = {
            "zeros": bytes(frame.end - frame.offset),
            "noise": chance.randbytes(frame.end - frame.offset),
            "another frame": whole[following.offset : following.end],
            "half of it": whole[frame.offset : (frame.offset + frame.end) // 2],
        }[damage]
        length = frame.end - frame.offset
        replacement = (replacement + bytes(length))[
            :length
        ]  # a disk changes bytes; it removes none
        data = whole[: frame.offset] + replacement + whole[frame.end :]
        error = refused(
            damaged(memory, path, data), path, data, f"{damage} at {frame.offset}, seed {seed}"
        )
        assert error.offset == frame.offset
        cases(1)


def test_a_sector_lost_from_a_sealed_segment_is_found(memory: MemoryStore, cases: Cases) -> None:
    """It is found wherever it is.
    Fault 4: of a sealed segment every 512-byte sector, zeroed."""
    with embedded(memory, segment_bytes=2000) as store:
        for number in range(40):
            store.map("m")[f"key{number}"] = "x" * 100
    sealed = segments(memory)[1]
    whole = memory.read(sealed)
    for at in range(0, len(whole), 512):
        data = whole[:at] + bytes(len(whole[at : at + 512])) + whole[at + 512 :]
        refused(damaged(memory, sealed, data), sealed, data, f"sector at {at}")
        cases(1)


# ---- 5: bits ----


def places(whole: bytes, frames: list[format.Frame]) -> dict[str, tuple[int, int]]:
    """Name → byte range of what a bit is flipped in, in a frame that others follow."""
    frame = frames[1]
    key, value = whole.index(b"banana", frame.offset), whole.index(b"value-1", frame.offset)
    fields = struct.unpack_from("<H", whole, 10)[0]
    segment_id = whole.index(format.decode_header(whole, "")[0].segment_id, 12)
    return {
        "magic": (0, 8),
        "version": (8, 10),
        "header length": (10, 12),
        "segment id": (segment_id, segment_id + 16),
        "header fields": (12, 12 + fields),
        "header CRC": (12 + fields, 16 + fields),
        "frame length": (frame.offset, frame.offset + 4),
        "frame CRC": (frame.offset + 4, frame.offset + 8),
        "frame type": (frame.offset + 8, frame.offset + 9),
        "frame count": (frame.offset + 9, frame.offset + 12),
        "synced offset": (frame.offset + 12, frame.offset + 20),
        "key": (key, key + 6),
        "value": (value, value + 7),
        "rest of the body": (frame.offset + 20, frame.end),
    }


PLACES = (
    "magic",
    "version",
    "header length",
    "segment id",
    "header fields",
    "header CRC",
    "frame length",
    "frame CRC",
    "frame type",
    "frame count",
    "synced offset",
    "key",
    "value",
    "rest of the body",
)


@every(3)
@pytest.mark.parametrize("place", PLACES)
def test_a_bit_flipped_in_any_field_is_found_and_located(
    memory: MemoryStore, cases: Cases, place: str
) -> None:
    """Fault 5: every bit of the field, one after the other."""
    path, whole, frames = killed(memory)
    begin, end = places(whole, frames)[place]
    for bit in range(begin * 8, end * 8):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        error = refused(
            damaged(memory, path, bytes(data)),
            path,
            bytes(data),
            f"{place}, bit {bit}",
            (CorruptLog, ShortLog),
        )
        if begin >= frames[1].offset:
            assert error.offset == frames[1].offset, f"{place}, bit {bit}"
        cases(1)


@thorough
def test_a_flipped_bit_never_gives_another_value(memory: MemoryStore, cases: Cases) -> None:
    """The bit is in the last commit.
    Fault 5: nothing shows that the last frame was synced, so it may be a torn tail; but it is never
    read as something else."""
    path, whole, frames = killed(memory)
    for bit in range(frames[-1].offset * 8, frames[-1].end * 8):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        left = damaged(memory, path, bytes(data))
        with embedded(left) as store:
            assert dict(store.map("m").items()) == expected(3), f"bit {bit}"
        cases(1)


@pytest.mark.parametrize("length", [2**31 - 1, 2**31, 2**32 - 1, 0, 1, 7])
def test_an_impossible_length_takes_no_memory(
    memory: MemoryStore, cases: Cases, length: int
) -> None:
    """The impossible length is found.
    Fault 5: a length of 2^31 and its neighbours."""
    path, whole, frames = killed(memory)
    at = frames[1].offset
    data = whole[:at] + struct.pack("<I", length) + whole[at + 4 :]
    assert refused(damaged(memory, path, data), path, data, f"length {length}").offset == at
    tail = whole + struct.pack("<III", length, 1, 1 | 1 << 8)
    assert found(damaged(memory, path, tail)) == expected(4), (
        "after the last commit it is a torn tail"
    )
    cases(2)


@pytest.mark.parametrize("size", [0, 1, 11, 12, 64, 4096, 100_000])
def test_a_segment_of_random_bytes_costs_nothing(
    memory: MemoryStore, cases: Cases, size: int, seed: int
) -> None:
    """It is refused, or it was never begun.
    Fault 5: in place of a segment it is damage; in place of the next one, nothing of it is read."""
    path, _, _ = killed(memory)
    noise = Random(seed).randbytes(size)
    # One byte could be the beginning of a header, which is never refused in a new segment.
    noise = bytes([noise[0] | 0x80]) + noise[1:] if size else noise
    refused(
        damaged(memory, path, noise), path, noise, f"{size} bytes, seed {seed}"
    ) if size else None
    left = copy_files(memory)
    following = path.replace("00000001.wal", "00000002.wal")
    left.create(following, noise)
    if size:
        refused(left, following, noise, f"{size} bytes, seed {seed}")
        left.delete(following)
    assert found(left) == expected(4)
    cases(2)


def test_a_newer_version_is_not_reported_as_damage(memory: MemoryStore, cases: Cases) -> None:
    """It raises `UnsupportedVersion`, and the file is not changed.
    Fault 5: the version field, with a checksum that fits."""
    import google_crc32c

    path, whole, _ = killed(memory)
    _, end = format.decode_header(whole, path)
    start = whole[:8] + struct.pack("<H", 3) + whole[10 : end - 4]
    data = start + struct.pack("<I", google_crc32c.value(start)) + whole[end:]
    refused(damaged(memory, path, data), path, data, "version 3", UnsupportedVersion)
    cases(1)


def flip_bits_of_parquet(
    memory: MemoryStore,
    kind: str,
    cases: Cases,
    choose: Callable[[int, int], Iterable[int]],
    why: str,
) -> None:
    """Each bit that `choose(first bit of the footer, end)` names: the damage is found at open, or
    changes nothing that is read."""
    with embedded(memory) as store:
        store.map("m").update({f"key{number}": f"value{number}" * 20 for number in range(100)})
        store.map("m").put("brief", 1, ttl=1e6)
        store.archive()
        right = dict(store.map("m").items())
        if kind == "snapshot":
            log = ClusterLog(Context(memory), "default", "embedded")
            rewrite(log, LocalEngine(Settings(preallocate=False)))
            prune(log)
    (path,) = [file.path for file in memory.list("") if file.path.endswith(".parquet")]
    assert f"/{kind}/" in path
    whole = memory.read(path)
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    left = copy_files(memory)
    view = ClusterLog(Context(left), "default", "embedded")
    for bit in choose(footer * 8, len(whole) * 8):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        overwrite(left, path, bytes(data))
        try:
            rows = [row for changes in view.changes() for row in changes.rows]
        except CorruptLog as error:
            found_in = error.file
            assert found_in == path  # many bits change nothing
        else:
            found = {msgpack.unpackb(row[KEY]): msgpack.unpackb(row[VALUE] or b"") for row in rows}
            assert found == right, f"bit {bit}, {why}"
        cases(1)


@every(2)
@pytest.mark.parametrize("kind", ["archive", "snapshot"])
def test_a_bit_flipped_in_parquet_is_found_or_changes_nothing(
    memory: MemoryStore, cases: Cases, kind: str, seed: int
) -> None:
    """Fault 5, for archives and snapshots: in pages, which have checksums, and in the footer, which
    has none."""
    chance = Random(seed)
    flip_bits_of_parquet(
        memory,
        kind,
        cases,
        lambda footer, end: [
            *(chance.randrange(footer) for _ in range(50)),
            *(chance.randrange(footer, end) for _ in range(300)),
        ],
        f"seed {seed}",
    )


@pytest.mark.torture
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["archive", "snapshot"])
def test_any_bit_flipped_in_parquet_is_found_or_changes_nothing(
    memory: MemoryStore, cases: Cases, kind: str
) -> None:
    """Fault 5, for archives and snapshots, long: every bit of the file."""
    flip_bits_of_parquet(memory, kind, cases, lambda footer, end: range(0, end, stride()), "each")
