"""A segment snapshot (`imap_wal.segment.snapshot`): its bytes, and what damage does to it."""

from __future__ import annotations

import io
import os
from pathlib import Path
from random import Random

import pytest

from imap_wal import format
from imap_wal.clock import SeededRandomness
from imap_wal.entry import Row, clear_of
from imap_wal.errors import CorruptLog, EncryptionError, Forged, LogError, UnsupportedVersion
from imap_wal.security.encryption_keys import NO_KEYS, Keys
from imap_wal.segment import snapshot
from imap_wal.segment.reader import SegmentReader
from imap_wal.segment.snapshot import SnapshotRows, SnapshotWriter, read_rows, salvaged
from storage_backends.memory import MemoryStore
from tests.encrypted import keys_of
from tests.kit.golden import ENTRIES
from tests.support import FakeClock

GOLDEN = Path(__file__).parents[1] / "golden"
PATH = "prod/eu/snapshot/orders/00000001/part-00000-00000-0f.wal"
CLEAR = clear_of("orders", 3, 271, 1_763_720_000_004, (2, 5, 3, 302))


def rows_of(data: bytes, path: str = PATH, keys: Keys = NO_KEYS) -> list[tuple[Row, str]]:
    found = read_rows(io.BytesIO(data), path, keys)
    return [pair for each in found for pair in zip(each.rows, each.nodes, strict=True)]


def written(folder: Path, frames: list[tuple[list[Row], list[str]]], keys: Keys = NO_KEYS) -> bytes:
    writer = SnapshotWriter(folder, PATH, FakeClock().now_ms(), keys.key_ring, SeededRandomness(7))
    for rows, nodes in frames:
        writer.add(rows, nodes)
    store = MemoryStore(f"segment-snapshot-{os.urandom(8).hex()}")
    published = writer.publish(store)
    data = store.read(PATH)
    assert published.bytes == len(data) and not list(folder.glob("*.wal"))
    return data


SMALL: list[tuple[list[Row], list[str]]] = [
    ([CLEAR], ["n1"]),
    ([tuple(ENTRIES[0]), tuple(ENTRIES[2])], ["n1", "n2"]),  # type: ignore[list-item]
    ([tuple(ENTRIES[1])], ["n2"]),  # type: ignore[list-item]
]


def test_golden_segment_snapshot_is_read_and_written_again(tmp_path: Path) -> None:
    golden = (GOLDEN / "snapshot-v1.wal").read_bytes()
    assert rows_of(golden) == [
        pair for rows, nodes in SMALL for pair in zip(rows, nodes, strict=True)
    ]
    assert written(tmp_path, SMALL) == golden


def many(count: int) -> list[Row]:
    return [
        ("orders", b"%06d" % number, "raw", bytes(50), "raw", False, 1, 0, 0, (1, 0, 1, number))
        for number in range(count)
    ]


def test_large_pages_become_several_frames(tmp_path: Path) -> None:
    rows = many(snapshot.FRAME_ROWS_MAX + 1)
    data = written(tmp_path, [(rows, ["n1"] * len(rows))])
    assert [len(each.rows) for each in read_rows(io.BytesIO(data), PATH, NO_KEYS)] == [
        snapshot.FRAME_ROWS_MAX,
        1,
    ]
    assert [row for row, _ in rows_of(data)] == rows
    assert rows_of(written(tmp_path, [])) == []


@pytest.mark.parametrize("encrypted", [False, True])
def test_every_damaged_byte_of_a_snapshot_is_noticed(
    tmp_path: Path, encrypted: bool, seed: int
) -> None:
    """A changed byte, a file that ends early, and one with more bytes at its end: an error, and
    never other entries."""
    keys = keys_of("k1") if encrypted else NO_KEYS
    data = written(tmp_path, SMALL, keys)
    chance = Random(seed)
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1 << chance.randrange(8)
        with pytest.raises((LogError, EncryptionError)):  # of a key id
            rows_of(bytes(changed), keys=keys)
        with pytest.raises(LogError):
            rows_of(data[:place], keys=keys)
    with pytest.raises(CorruptLog):
        rows_of(data + b"\1", keys=keys)


def test_an_encrypted_snapshot_under_another_name_is_refused(tmp_path: Path) -> None:
    keys = keys_of("k1")
    data = written(tmp_path, SMALL, keys)
    assert b"paid" not in data and len(rows_of(data, keys=keys)) == 4
    with pytest.raises(Forged, match="moved or replaced"):
        rows_of(data, PATH.replace("orders", "other"), keys)


def test_a_frame_of_a_snapshot_in_a_log_is_refused(tmp_path: Path) -> None:
    store = MemoryStore(f"segment-snapshot-{tmp_path.name}")
    store.create("a.wal", written(tmp_path, SMALL))
    with pytest.raises(UnsupportedVersion, match="unknown type 6"):
        list(SegmentReader(store, "a.wal").frames(NO_KEYS))


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_repair_reads_the_frames_around_the_damage(tmp_path: Path, encrypted: bool) -> None:
    keys = keys_of("k1") if encrypted else NO_KEYS
    rows = many(3 * snapshot.FRAME_ROWS_MAX)
    data = bytearray(written(tmp_path, [(rows, ["n1"] * len(rows))], keys))
    data[len(data) // 2] ^= 1
    *found, lost = salvaged(io.BytesIO(data), PATH, keys)
    assert [each.rows[0][1] for each in found if isinstance(each, SnapshotRows)] == [
        rows[0][1],
        rows[2 * snapshot.FRAME_ROWS_MAX][1],
    ]
    assert lost == snapshot.FRAME_ROWS_MAX
    *_, lost = salvaged(io.BytesIO(data[:-10]), PATH, keys)
    assert lost is None


def test_a_frame_with_other_content_is_corrupt(tmp_path: Path) -> None:
    """The checksum is right, but not the nodes, the entries, or the number of all entries."""
    whole = written(tmp_path, SMALL)
    for payload, count in (
        ([b""], 1),
        ([b"\xff\xff\xff\x7f"], 1),
        ([b"\0\0\0\0"], 1),
        ([b"\1\0\0\0\x90"], 1),
        ([b"\x04\0\0\0\x92\xa1a\xa1", b"b"], 1),
        ([b"\xa0"], 0),
        ([b"\x91\x05"], 0),
    ):
        writer = SnapshotWriter(
            tmp_path, PATH, FakeClock().now_ms(), NO_KEYS.key_ring, SeededRandomness(7)
        )
        writer._write(payload, count)
        writer._file.close()
        data = writer._local.read_bytes()
        assert data[:8] == format.MAGIC == whole[:8]
        with pytest.raises(LogError):
            rows_of(data)
