"""Files that are written once and never change, snapshots and archives: publishes them, and
compares them with the facts about them in a manifest. The name alone proves nothing.

The manifest has the CRC-32C of all bytes, the size and the number of rows. These are checked before
such a file is read, and before the files that it replaces are removed.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

import google_crc32c

from imap_wal.errors import CorruptLog, StorageUnavailable
from storage_backends import AlreadyExists, NotFound, SegmentStore, StorageError

CHUNK_BYTES = 1024 * 1024
SPOOL_BYTES = 8 * 1024 * 1024
"""A remote file up to this size is read into memory, a larger one into a scratch file."""
ADVICE = (
    "bring the file back from a copy, or write a repaired copy of the log with `imap-wal repair`"
)

DIFFERS = "the file does not match the checksum in the manifest"


class Published(NamedTuple):
    """The facts about a file for the manifest: its size, and the CRC-32C of all its bytes."""

    bytes: int
    checksum: int


def checksum(file: BinaryIO) -> int:
    """CRC-32C of a file, from its current offset."""
    crc = 0
    while data := file.read(CHUNK_BYTES):
        crc = google_crc32c.extend(crc, data)
    return crc


def publish(
    store: SegmentStore, path: str, local: Path, discard: Callable[[], Published]
) -> Published:
    """Publish a file of this machine under a name that no other run chooses, and `discard` it here.
    Raises `AlreadyExists` if another file has that name."""
    try:
        store.create_from(path, str(local))
    except AlreadyExists:
        published = discard()
        with store.open_input(path) as there:
            if checksum(there) != published.checksum:
                raise
        return published  # it is this run's own file: only the response was lost
    return discard()


def discard(local: Path) -> Published:
    """Remove a file of this machine."""
    with local.open("rb") as file:
        published = Published(local.stat().st_size, checksum(file))
    with suppress(OSError):  # its folder is removed soon
        local.unlink()
    return published


@contextmanager
def open_checked(store: SegmentStore, path: str, checksum: int) -> Iterator[BinaryIO]:
    """A file whose bytes all match the manifest; `checksum` 0: unknown. Raises `NotFound` and
    `CorruptLog`. A local file is read twice; a remote one once, into memory or a scratch file."""
    with store.open_input(path) as source:
        if not checksum:
            yield source
        elif isinstance(source, io.BufferedReader | io.BytesIO):
            crc = 0
            for data in chunks(source, path):
                crc = google_crc32c.extend(crc, data)
            demand_checksum(path, crc, checksum)
            source.seek(0)
            yield cast(BinaryIO, source)
        else:
            with tempfile.SpooledTemporaryFile(SPOOL_BYTES, prefix="imap-wal-read-") as copy:
                crc = 0
                for data in chunks(source, path):
                    crc = google_crc32c.extend(crc, data)
                    _keep(copy, data, path)
                demand_checksum(path, crc, checksum)
                copy.seek(0)
                yield cast(BinaryIO, copy)


def check_contents(store: SegmentStore, path: str, checksum: int, size: int = 0) -> None:
    """Read a file once, in bounded memory. Raises `NotFound` if it is missing, and `CorruptLog` if
    it differs from the manifest (0: unknown)."""
    actual = store.size(path)
    if size and actual != size:
        difference = f"this file has {actual} bytes, but the manifest says {size}"
        raise CorruptLog(path, min(actual, size), difference, ADVICE)
    if not checksum:
        return
    crc = 0
    with store.open_input(path) as source:
        for data in chunks(source, path):
            crc = google_crc32c.extend(crc, data)
    demand_checksum(path, crc, checksum)


def demand_checksum(path: str, actual: int, expected: int) -> None:
    """Raise `CorruptLog` unless both are equal."""
    if actual != expected:
        raise CorruptLog(path, 0, DIFFERS, ADVICE)


def chunks(source: BinaryIO, path: str) -> Iterator[bytes]:
    """The bytes of a file. Raises `NotFound` if the file no longer exists, and `StorageError` for
    other errors of the driver that opened it."""
    while True:
        try:
            data = source.read(CHUNK_BYTES)
        except StorageError:
            raise
        except FileNotFoundError as error:
            raise NotFound(str(error), path) from error
        except OSError as error:
            raise StorageError(f"reading failed: {error}", path) from error
        if not data:
            return
        yield data


def _keep(copy: tempfile.SpooledTemporaryFile[bytes], data: bytes, path: str) -> None:
    try:
        copy.write(data)
    except OSError as error:
        room = tempfile.gettempdir()
        reason = f"reading {path} needs space for a copy in {room}: {error}; free space there"
        raise StorageUnavailable(reason) from error
