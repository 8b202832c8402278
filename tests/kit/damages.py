"""Logs of one node with damage of each kind, and what an open leaves of them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import google_crc32c

from imap_wal import format
from imap_wal.segment.reader import SegmentReader
from storage_backends.memory import MemoryStore
from tests.support import IDENTITY, node_log, overwrite, row, segments

MODES = ("absolute", "torn-tail", "point-in-time")
FOLDER = IDENTITY.node_folder


def history(memory: MemoryStore, *, segments_: int = 3, frames: int = 4, sync: bool = True) -> None:
    """Segments of `frames` frames with one entry each (key = number of the frame, from 0), then a
    kill: nothing is closed."""
    log = node_log(memory)
    number = 0
    for segment in range(segments_):
        for _ in range(frames):
            log.write(format.ENTRIES, 1, [row(str(number), "v", number + 1)])
            if sync:
                log.sync()
            number += 1
        if segment + 1 < segments_:
            log.rotate()


def entries(store: MemoryStore) -> list[int]:
    """Keys of all entries in the segments, in log order."""
    return [
        int(row[1])
        for path in segments(store)
        if "/wal/" in path
        for frame in SegmentReader(store, path).whole_frames()
        for row in _rows(frame)
    ]


def _rows(frame: format.Frame) -> Iterator[Any]:
    from imap_wal import entry

    return entry.rows(frame.payload) if frame.kind == format.ENTRIES else iter(())


def offsets(store: MemoryStore, path: str) -> list[int]:
    reader = SegmentReader(store, path)
    return [*(frame.offset for frame in reader.whole_frames()), reader.end]


def flip(store: MemoryStore, segment: int, frame: int, byte: int = 14) -> None:
    path = segments(store)[segment]
    data = bytearray(store.read(path))
    data[offsets(store, path)[frame] + byte] ^= 0x40
    overwrite(store, path, bytes(data))


def cut(store: MemoryStore, segment: int, frame: int, more: int = 0) -> None:
    path = segments(store)[segment]
    overwrite(store, path, store.read(path)[: offsets(store, path)[frame] + more])


def lost_files(store: MemoryStore) -> dict[str, bytes]:
    return {file.path: store.read(file.path) for file in store.list(f"{FOLDER}/lost")}


Damage = Callable[[MemoryStore], None]
ALL = list(range(12))
# name: what is done to three segments of four frames; whether it is a tail; what is left where it
# is cut or given up; frames lost that verify
DAMAGES: dict[str, tuple[Damage, bool, list[int], int]] = {
    "the last frame cut short": (lambda store: cut(store, 2, 3, 9), True, ALL[:11], 0),
    "a bit flipped in the last frame": (lambda store: flip(store, 2, 3), True, ALL[:11], 0),
    "a bit flipped in a middle frame of the newest segment": (
        lambda store: flip(store, 2, 1),
        False,
        ALL[:9],
        2,
    ),
    "a bit flipped in a sealed segment": (lambda store: flip(store, 1, 2), False, ALL[:6], 5),
    "a bit flipped in the last frame of a sealed segment": (
        lambda store: flip(store, 0, 3),
        False,
        ALL[:3],
        8,
    ),
    "a bit flipped in the header of a sealed segment": (
        lambda store: flip_header(store, 1),
        False,
        ALL[:4],
        4,
    ),
    "a sealed segment cut in the middle of a frame": (
        lambda store: cut(store, 1, 2, 5),
        False,
        ALL[:6],
        4,
    ),
    "a sealed segment cut between two frames": (lambda store: cut(store, 0, 2), False, ALL[:2], 8),
    "the first segment cut after its header": (lambda store: cut(store, 0, 0), False, [], 8),
    "a sealed segment cut after its header": (lambda store: cut(store, 1, 0), False, ALL[:4], 4),
    "a segment missing": (lambda store: store.delete(segments(store)[1]), False, ALL[:4], 4),
    "the first segment missing": (lambda store: store.delete(segments(store)[0]), False, [], 8),
    "a sealed segment of random bytes": (
        lambda store: overwrite(store, segments(store)[1], Random(7).randbytes(500)),
        False,
        ALL[:4],
        4,
    ),
    "a sealed segment of no bytes": (
        lambda store: overwrite(store, segments(store)[1], b""),
        False,
        ALL[:4],
        4,
    ),
}


def flip_header(store: MemoryStore, segment: int) -> None:
    path = segments(store)[segment]
    data = bytearray(store.read(path))
    data[30] ^= 1
    overwrite(store, path, bytes(data))


def closed(store: MemoryStore) -> None:
    node_log(store).close()


def newer(store: MemoryStore) -> None:
    path = segments(store)[1]
    data = bytearray(store.read(path))
    end = SegmentReader(store, path).first
    data[8] = 9
    data[end - 4 : end] = struct.pack("<I", google_crc32c.value(bytes(data[: end - 4])))
    overwrite(store, path, bytes(data))
