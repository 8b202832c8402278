"""Bytes that were written once, and that every version must read. A test that fails here shows that
the format changed: then it needs a new format number (decision 82 in docs/decisions/files.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgpack
import pytest

from imap_wal import entry, format
from imap_wal.clock import SeededRandomness
from imap_wal.context import Context
from imap_wal.entry import DataEntry
from imap_wal.format import Position
from imap_wal.manifest.cluster import ClusterManifest, ClusterManifestLog, IncarnationRecord
from imap_wal.manifest.epochs import Epoch
from imap_wal.manifest.list_files import Archive, Listed
from imap_wal.manifest.node import NodeManifest, NodeManifestLog, Seen
from imap_wal.manifest.snapshots import LowWaterMark, PartitionVersions, Snapshot, SnapshotFile
from imap_wal.manifest.store import ManifestLog
from imap_wal.security.encryption_keys import NO_KEYS
from imap_wal.segment.reader import SegmentReader
from imap_wal.write.node_log import SegmentWriter
from storage_backends.memory import MemoryStore
from tests.kit.golden import DIRECTORY, ENTRIES, FRAMES, HEADER
from tests.support import FakeClock

GOLDEN = Path(__file__).parents[1] / "golden"


NODE = NodeManifest(
    directory=DIRECTORY,
    epoch=3,
    session=3,
    plugins={"p-1/2": 3},
    requests={3: 2**33},
    checkpoint=Position(3, 7, 400, 1),
    clean=True,
    archived=(2, 6),
    archives=Listed(
        [
            Archive(
                "../ä b",
                "a/b.parquet",
                Position(1, 1, 150, 0),
                Position(2, 6, 4096, 9),
                10,
                1,
                999,
                0xDEADBEEF,
                4321,
            )
        ]
    ),
    metadata=(("schema", -(2**62), "0102"),),
    removed=Position(1, 1, 90, 2),
    wal_id="7d0a1c55-6a3e-4f2b-9c11-0123456789ab",
    newest=7,
    begins=(3, 7),
    permit="00112233445566778899aabbccddeeff",
    former={2: 17, 1: -1},
    cluster=Seen(5, 1, 2),
    address="tcp://10.0.0.1:5700",
    copied=(2, 7, 1),
    epochs=(Epoch(2, "a1b2c3d4e5f6", Position(2, 6, 4096, 9)), Epoch(3, "0102030405aa")),
)

CLUSTER = ClusterManifest(
    incarnation=2,
    lifetimes=(IncarnationRecord("c-1", 2, {"n1": Position(2, 6, 4096, 9)}),),
    nodes={"n1": DIRECTORY},
    snapshots={
        "orders": Snapshot(
            1,
            Listed([SnapshotFile("s/p.parquet", 0xDEADBEEF, 777, 6, "", 1_763_723_600_002)]),
            {"n1": LowWaterMark(DIRECTORY, Position(1, 2, 3, 4))},
            5,
            1,
            777,
            1_763_720_000_000,
            until_ms=1_763_719_000_000,
            versions=1,
            last_expiry_ms=1_763_723_600_002,
        )
    },
    generation=1,
    orphan_floor=1,
    versions={1: PartitionVersions(dict.fromkeys(range(271), (2, 2**32)))},
    forgotten={"1c1f1ee6-9f0c-4c3a-8d1e-0123456789ab": Position(1, 9, 4096, 0)},
    embedded=1,
    clears=True,
    keys={"k1": "00112233445566778899aabbccddeeff"},
    token=True,
    all_maps={"n1": LowWaterMark(DIRECTORY, Position(1, 2, 3, 4))},
    losses={"n1": 1},
    epochs={DIRECTORY: ((1, "0a1b2c3d4e5f"), (2, "a1b2c3d4e5f6"))},
    decoded=("order*",),
)


def segment_bytes() -> bytes:
    """The golden segment, written by today's code."""
    store = MemoryStore("golden-segment")
    path = "segment-v1.wal"
    store.delete(path)
    writer = SegmentWriter(store, path, HEADER, preallocate_bytes=1024)
    for kind, payload in FRAMES:
        writer.append(kind, len(payload), payload)
        if kind != format.METADATA:
            writer.sync()
    return store.read(path)


def manifest_bytes(kind: str) -> bytes:
    store = MemoryStore(f"golden-{kind}")
    manifests, content = manifests_of(kind, store)
    for file in store.list(""):
        store.delete(file.path)
    manifests.update(lambda _: content)
    return store.read(f"{kind}/manifest/0000000001.json")


def manifests_of(kind: str, store: MemoryStore) -> tuple[ManifestLog[Any], Any]:
    if kind == "manifest-node":
        return NodeManifestLog(
            Context(store, clock=FakeClock(), randomness=SeededRandomness(1)), kind
        ), NODE
    return ClusterManifestLog(
        Context(store, clock=FakeClock(), randomness=SeededRandomness(1)), kind
    ), CLUSTER


def test_golden_segment_round_trips() -> None:
    """The golden segment is read and written again byte for byte."""
    golden = (GOLDEN / "segment-v1.wal").read_bytes()
    store = MemoryStore("golden-read")
    store.replace("segment-v1.wal", golden)
    reader = SegmentReader(store, "segment-v1.wal")
    frames = list(reader.frames(NO_KEYS))
    assert reader.header == HEADER
    assert [(frame.kind, frame.count, frame.payload) for frame in frames] == [
        (kind, len(payload), b"".join(payload)) for kind, payload in FRAMES
    ]
    assert [frame.synced for frame in frames] == [
        reader.first,
        frames[0].end,
        frames[0].end,
        frames[2].end,
        frames[3].end,
    ]
    assert reader.tail().status == "clean"
    assert segment_bytes() == golden


def test_golden_entries_are_read_and_written_again_byte_for_byte() -> None:
    golden = bytes.fromhex((GOLDEN / "entries-v1.hex").read_text())
    assert [DataEntry(*row) for row in entry.rows(golden)] == ENTRIES
    assert b"".join(map(entry.pack, ENTRIES)) == golden


@pytest.mark.parametrize("kind", ["manifest-node", "manifest-cluster"])
def test_golden_manifests_are_read_and_written_again_byte_for_byte(kind: str) -> None:
    golden = (GOLDEN / f"{kind}.json").read_bytes()
    store = MemoryStore(f"golden-read-{kind}")
    store.replace(f"{kind}/manifest/0000000001.json", golden)
    manifests, content = manifests_of(kind, store)
    number, found = manifests.read()
    assert number == 1
    assert found == content
    assert manifest_bytes(kind) == golden


# ---- the wire: written by the plug-in's tests, read by both sides --------------------------------

WIRE = sorted(path.stem for path in GOLDEN.glob("wire-*.json"))


def plain(value: Any) -> Any:
    """A msgpack value in the form of the JSON beside the bytes."""
    if isinstance(value, bytes):
        return {"bin": value.hex()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


@pytest.mark.parametrize("name", WIRE)
def test_golden_wire_message_round_trips(
    name: str,
) -> None:
    """A golden message of the wire is read as described, and written again byte for byte."""
    described = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    header, payload = (
        bytes.fromhex(line) for line in (GOLDEN / f"{name}.hex").read_text().split("\n")[:2]
    )
    assert plain(entry.values(header)) == [described["header"]]
    assert plain(entry.values(payload)) == described["payload"]
    for data in (header, payload):
        assert (
            b"".join(msgpack.packb(value, use_bin_type=True) for value in entry.values(data))
            == data
        )


def test_the_wire_has_golden_messages() -> None:
    assert {"wire-hello", "wire-welcome", "wire-append", "wire-ack"} <= set(WIRE)
