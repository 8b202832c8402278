"""The contents of the golden files."""

from __future__ import annotations

import msgpack

from imap_wal import entry, format
from imap_wal.entry import DataEntry
from imap_wal.format import SegmentHeader

DIRECTORY = "0b0f0ee5-9f0c-4c3a-8d1e-0123456789ab"


ENTRIES = [
    DataEntry(
        "orders",
        b"\x00\xff",
        "java.lang.String",
        b"paid",
        "java.lang.String",
        False,
        1_763_720_000_001,
        0,
        270,
        (2, 5, 3, 300),
    ),
    DataEntry(
        "../ä b",
        b"k",
        "",
        b"",
        "msgpack",
        False,
        1_763_720_000_002,
        1_763_723_600_002,
        0,
        (2, 0, 3, 301),
    ),
    DataEntry(
        "orders",
        b"\x00\xff",
        "java.lang.String",
        None,
        "",
        True,
        1_763_720_000_003,
        0,
        270,
        (2**40, 128, 3, 2**33),
    ),
]


HEADER = SegmentHeader(
    bytes(range(16)), "prod", "eu/ä", "n1", 3, 7, 0xDEADBEEF, 1_763_720_000_000, DIRECTORY
)


FRAMES: list[tuple[int, list[bytes]]] = [
    (format.ENTRIES, [entry.pack(ENTRIES[0]), entry.pack(ENTRIES[1])]),
    (
        format.METADATA,
        [
            msgpack.packb(["member", "c-1", "m-1", "n1", 3, 2]),
            msgpack.packb(["schema", -(2**62), b"\x01\x02"]),
        ],
    ),
    (format.ENTRIES, [entry.pack(ENTRIES[2])]),
    (format.LOW_WATER_MARK, [msgpack.packb(["orders", [1, 2, 3, 4]])]),
    (format.CLEAN_SHUTDOWN, [msgpack.packb([1_763_720_000_009, {3: 2**33}])]),
]
