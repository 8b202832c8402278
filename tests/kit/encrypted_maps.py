"""Embedded maps with keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import imap_wal
from imap_wal.format import Frame
from imap_wal.segment.reader import SegmentReader
from storage_backends import SegmentStore, open_store
from tests.encrypted import key_file
from tests.kit.frames import with_right_crc
from tests.support import overwrite, segments

SECRET = "a-value-that-nobody-may-read"


SECRET_KEY = "a-key-that-nobody-may-read"


def fill(place: str, source: str, count: int = 20, start: int = 0, **settings: Any) -> None:
    with imap_wal.open(place, encryption_keys=source, **settings) as store:
        for number in range(start, start + count):
            store.map("orders")[f"{SECRET_KEY}-{number}"] = SECRET


def entries(place: str, source: str, **settings: Any) -> int:
    with imap_wal.open(place, encryption_keys=source, **settings) as store:
        return len(store.map("orders"))


def content(place: str) -> dict[str, bytes]:
    """All files of a log, without the locks and permits of writers."""
    store = open_store(place)
    return {
        file.path: store.read(file.path)
        for file in store.list("")
        if file.path.endswith((".wal", ".json", ".parquet"))
    }


def killed(place: str, source: str, torn: bytes = b"") -> None:
    """A log whose writer died, with some bytes of a commit at its end."""
    with imap_wal.open(place, encryption_keys=source, preallocate=False) as store:
        for number in range(20):
            store.map("orders")[f"k{number}"] = SECRET
        disk = open_store(place)
        left = {
            file.path: disk.read(file.path)
            for file in disk.list("")
            if not file.path.endswith(".lock")
        }
    for file in disk.list(""):
        disk.delete(file.path)
    for path, data in left.items():
        disk.create(path, data + (torn if path.endswith(".wal") else b""))


def last_frame(store: SegmentStore, path: str) -> tuple[int, int, int]:
    reader = SegmentReader(store, path)
    frames = list(reader.whole_frames())
    return reader.header.checksum_seed, frames[-1].offset, frames[-1].end


def forge_frame(store: SegmentStore, number: int = -1) -> tuple[str, Frame]:
    """Change one byte of a frame of the newest segment, with a right checksum; returns the path and
    the frame."""
    path = segments(store)[-1]
    reader = SegmentReader(store, path)
    frame = list(reader.whole_frames())[number]
    data = bytearray(store.read(path))
    data[frame.end - 1] ^= 1
    overwrite(store, path, with_right_crc(bytes(data), reader.header.checksum_seed, frame.offset))
    return path, frame


def wrong_keys(folder: Path, keys: tuple[str, ...] | None) -> str:
    """A source of these keys; "" for no keys."""
    return "" if keys is None else key_file(folder, *keys)
