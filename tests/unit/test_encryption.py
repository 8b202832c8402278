"""Frames of an encrypted segment: which keys decrypt them, and which changes are found."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from imap_wal import format
from imap_wal.clock import SeededRandomness
from imap_wal.context import Context
from imap_wal.errors import CorruptLog, EncryptionError, Forged
from imap_wal.format import SegmentHeader
from imap_wal.segment.reader import SegmentReader, is_header_torn
from imap_wal.write.node_log import SegmentWriter
from storage_backends.memory import MemoryStore
from tests.encrypted import key_ring, keyed, other
from tests.kit.frames import with_right_crc
from tests.kit.golden import FRAMES, HEADER
from tests.support import header, overwrite, row

GOLDEN = Path(__file__).parent.parent / "golden"
PATH = "default/embedded/nodes/n1/wal/00000001-00000001.wal"


@pytest.fixture
def context(request: pytest.FixtureRequest) -> Context:
    return keyed(MemoryStore(request.node.name), "a")


def written(context: Context, *values: str, path: str = PATH, **changes: object) -> SegmentHeader:
    """One frame for each value."""
    writer = SegmentWriter(
        context.store,
        path,
        header(**changes),
        randomness=SeededRandomness(len(path)),
        keys=context.keys.key_ring,
    )
    for number, value in enumerate(values):
        writer.append(format.ENTRIES, 1, [row(f"key-{number}", value, number + 1)])
        writer.sync()
    writer.seal()
    return writer.header


def payloads(context: Context, path: str = PATH) -> list[bytes]:
    return [frame.payload for frame in SegmentReader(context.store, path).frames(context.keys)]


def test_written_values_are_read_and_stored_only_encrypted(context: Context) -> None:
    found = written(context, "first-value", "second-value")
    assert payloads(context) == [row("key-0", "first-value", 1), row("key-1", "second-value", 2)]
    data = context.store.read(PATH)
    assert b"value" not in data and b"key-" not in data
    assert found.key_id == "a" and data[8:10] == b"\x02\0"


def test_without_keys_the_bytes_of_a_segment_are_unchanged(context: Context) -> None:
    for name, of in (
        ("plain", Context(context.store)),
        ("plain-first", keyed(context.store, "plain", "a")),
    ):
        written(of, "value", path=name)
    assert context.store.read("plain") == context.store.read("plain-first")
    assert context.store.read("plain")[8:10] == b"\x01\0"


def test_the_same_value_is_never_the_same_bytes(context: Context) -> None:
    writer = SegmentWriter(context.store, PATH, header(), keys=context.keys.key_ring)
    payload = [row("k", "v" * 100)]
    first = writer.append(format.ENTRIES, 1, payload)
    once = context.store.read(PATH, first)
    # A failed append is cut off, and another frame is written at the same offset.
    writer.rewind(first)
    assert writer.append(format.ENTRIES, 1, payload) == first
    again = context.store.read(PATH, first)
    assert len(once) == len(again)
    sealed = format.FRAME_HEADER_BYTES + format.SYNCED_BYTES
    assert once[sealed : sealed + 12] != again[sealed : sealed + 12]
    assert sum(a == b for a, b in zip(once[sealed:], again[sealed:])) < 20


def test_missing_key_wrong_key_and_no_keys_are_distinct(context: Context) -> None:
    written(context, "value")
    for keys, said in (
        (("b",), "'a', but the keys given are b"),
        ((other("a"),), "is not the one it was written with"),
    ):
        with pytest.raises(EncryptionError, match=said) as raised:
            payloads(keyed(context.store, *keys))
        assert (raised.value.file, raised.value.key_id) == (PATH, "a")
    with pytest.raises(EncryptionError, match="no keys are given; give the keys: encryption_keys"):
        payloads(Context(context.store))


def test_unencrypted_segment_is_read_only_if_allowed(
    context: Context,
) -> None:
    written(Context(context.store), "value")
    with pytest.raises(EncryptionError, match="it is not encrypted, but the keys require it"):
        payloads(context)
    assert len(payloads(keyed(context.store, "a", "plain"))) == 1


def test_frames_are_whole_also_without_a_key(context: Context) -> None:
    written(context, "first", "second")
    reader = SegmentReader(context.store, PATH)
    assert [frame.count for frame in reader.whole_frames()] == [1, 1]
    assert reader.tail().status == "clean"
    data = bytearray(context.store.read(PATH))
    data[-1] ^= 1
    overwrite(context.store, PATH, bytes(data))
    reader = SegmentReader(context.store, PATH)
    assert len(list(reader.whole_frames())) == 1
    assert reader.tail().status == "torn-tail"


@pytest.mark.parametrize(
    "at",
    [20, 31, 32, 40, -1],
    ids=["nonce", "end of nonce", "ciphertext", "more ciphertext", "tag"],
)
def test_a_changed_frame_with_the_right_checksum_is_forged(context: Context, at: int) -> None:
    head = written(context, "first", "second")
    frames = list(SegmentReader(context.store, PATH).frames(context.keys))
    place = (frames[1].offset if at >= 0 else frames[1].end) + at
    data = bytearray(context.store.read(PATH))
    data[place] ^= 1
    overwrite(
        context.store, PATH, with_right_crc(bytes(data), head.checksum_seed, frames[1].offset)
    )
    reader = SegmentReader(context.store, PATH)
    read = reader.frames(context.keys)
    assert next(read).payload == frames[0].payload
    with pytest.raises(Forged, match="forged or moved") as raised:
        next(read)
    assert raised.value.offset == frames[1].offset == reader.end


@pytest.mark.parametrize(("at", "what"), [(8, "type"), (9, "count"), (12, "last synced offset")])
def test_a_frame_whose_clear_fields_were_changed_is_forged(
    context: Context, at: int, what: str
) -> None:
    head = written(context, "first")
    data = bytearray(context.store.read(PATH))
    start = SegmentReader(context.store, PATH).first
    data[start + at] ^= 3 if what == "type" else 1  # entries become metadata
    overwrite(context.store, PATH, with_right_crc(bytes(data), head.checksum_seed, start))
    with pytest.raises(Forged):
        payloads(context)


def test_encrypted_frame_moved_in_its_segment_is_forged(context: Context) -> None:
    head = written(context, "aaaa", "bbbb")
    first, second = SegmentReader(context.store, PATH).frames(context.keys)
    data = context.store.read(PATH)
    swapped = (
        data[: first.offset] + data[second.offset : second.end] + data[first.offset : first.end]
    )
    assert len(swapped) == len(data)
    for offset in (first.offset, second.offset):
        swapped = with_right_crc(swapped, head.checksum_seed, offset)
    overwrite(context.store, PATH, swapped)
    with pytest.raises(Forged):
        payloads(context)


def test_a_frame_of_another_segment_is_forged(context: Context) -> None:
    head = written(context, "mine")
    written(context, "your", path="other", segment_id=b"\x05" * 16)
    start = SegmentReader(context.store, PATH).first
    data = context.store.read(PATH)[:start] + context.store.read("other")[start:]
    overwrite(context.store, PATH, with_right_crc(data, head.checksum_seed, start))
    with pytest.raises(Forged):
        payloads(context)


@pytest.mark.parametrize(
    "changes", [{"number": 2}, {"node": "n2"}, {"previous_checksum": 7}, {"key_id": "b"}]
)
def test_a_changed_header_does_not_open(context: Context, changes: dict[str, object]) -> None:
    head = written(context, "value")
    frames = context.store.read(PATH)[len(head.encode()) :]
    overwrite(context.store, PATH, head._replace(**changes).encode() + frames)  # type: ignore[arg-type]
    with pytest.raises(EncryptionError, match="or its header was forged"):
        payloads(keyed(context.store, "a", "b"))


def test_only_a_version_2_header_has_a_key() -> None:
    head = header().encode()
    sealed = header(key_id="a", key_check=bytes(16)).encode()
    assert format.decode_header(sealed, "f")[0].key_id == "a"
    for data, version in ((head, 2), (sealed, 1)):
        with pytest.raises(CorruptLog, match="not those of its version"):
            format.decode_header(
                format.with_crc(data[:8] + struct.pack("<H", version) + data[10:-4]), "f"
            )
    for wrong in ({"key_id": "x" * 65, "key_check": bytes(16)}, {"key_id": "a", "key_check": b""}):
        with pytest.raises(CorruptLog, match="not those of its version"):
            format.decode_header(header(**wrong).encode(), "f")


def test_truncated_header_without_later_data_is_no_damage(context: Context) -> None:
    """A header that was cut off is no damage, but any bytes after it are."""
    head = written(context, "value")
    size = len(head.encode())
    data = context.store.read(PATH)
    for cut in (5, 12, size - 1):
        overwrite(context.store, PATH, data[:cut] + bytes(4096 - cut))
        assert is_header_torn(context.store, PATH)
    overwrite(context.store, PATH, data[:12] + bytes(size) + data[size:])
    assert not is_header_torn(context.store, PATH)


def encrypted_segment() -> bytes:
    context = keyed(MemoryStore("golden-encrypted"), "a")
    context.store.delete("segment")
    writer = SegmentWriter(
        context.store, "segment", HEADER, randomness=SeededRandomness(1), keys=context.keys.key_ring
    )
    for kind, payload in FRAMES:
        writer.append(kind, len(payload), payload)
        writer.sync()
    return context.store.read("segment")


def test_golden_encrypted_segment_round_trips() -> None:
    """The golden encrypted segment is read and written again byte for byte."""
    golden = (GOLDEN / "segment-v2.wal").read_bytes()
    context = keyed(MemoryStore("golden-encrypted-read"), "a")
    context.store.replace("segment", golden)
    found = [
        (frame.kind, frame.count, frame.payload)
        for frame in SegmentReader(context.store, "segment").frames(context.keys)
    ]
    assert found == [(kind, len(payload), b"".join(payload)) for kind, payload in FRAMES]
    assert encrypted_segment() == golden


def test_the_key_ring_of_tests_is_stable() -> None:
    """The golden segment depends on it."""
    assert key_ring("a").keys["a"].hex().startswith("ca978112")
