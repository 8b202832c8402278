"""The backups of one place.

    backups/{number}.json             one backup: its files, and the chunks of each
    chunks/{ab}/{sha256}-{size}       a part of a file, at most CHUNK_BYTES
    writer.lock                       one run at a time

A backup is visible when its JSON file is there, which is created last, whole. The checksum of a
chunk is its name, so equal chunks are stored once, and any number of backups share them.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any

from imap_wal.errors import CorruptLog, UnsupportedVersion
from storage_backends import NotFound, SegmentStore

FORMAT = 1
CHUNK_BYTES = 8 * 1024 * 1024
LOCK = "writer.lock"
_DAMAGED = "choose another backup, and run `imap-wal backup --verify` to make a whole one"


@dataclass(frozen=True, slots=True)
class BackupFile:
    """One file: its path in the log, its size, and the names of its chunks in order."""

    path: str
    size: int
    chunks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DamagedFile:
    """A file that was damaged in the log when it was copied: from byte `offset` on."""

    file: str
    offset: int
    what: str

    def __str__(self) -> str:
        return f"{self.file} at byte {self.offset:,}: {self.what}"


@dataclass(frozen=True)
class Backup:
    """One backup.

    `source`: the URL of the logs. `selection`: the options that selected some of them; (): all of
    this URL. `directories`: the UUIDs of the log directories of their nodes. `damaged`: what was
    damaged in the log.
    """

    number: int
    source: str
    begun_ms: int
    ended_ms: int
    clusters: tuple[str, ...]
    files: tuple[BackupFile, ...]
    selection: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()
    damaged: tuple[DamagedFile, ...] = ()

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def chunks(self) -> set[str]:
        return {chunk for file in self.files for chunk in file.chunks}

    def is_like(self, other: Backup) -> bool:
        """Whether both are of the same logs with the same selection. Not if one of them is of logs
        that were deleted and begun again at the same URL, or on another machine."""
        if (self.source, self.selection) != (other.source, other.selection):
            return False
        one, another = {*self.directories}, {*other.directories}
        return not one or not another or bool(one & another)


def chunk_name(data: bytes) -> str:
    """The name of a chunk: its content decides it."""
    return f"{sha256(data).hexdigest()}-{len(data)}"


def chunk_path(name: str) -> str:
    return f"chunks/{name[:2]}/{name}"


def chunk_size(name: str) -> int:
    return int(name.rpartition("-")[2])


def numbers(store: SegmentStore) -> list[int]:
    """The numbers of all backups, oldest first."""
    names = [file.path.removeprefix("backups/") for file in store.list("backups")]
    return sorted(
        int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdigit()
    )


def read(store: SegmentStore, number: int) -> Backup:
    """Read one backup.

    Args:
        store: The place.
        number: Which one.

    Returns:
        The backup.

    Raises:
        NotFound: There is no such backup.
        CorruptLog: Its file is damaged.
        UnsupportedVersion: A newer version wrote it.
    """
    path = _path(number)
    text = store.read(path)
    try:
        head, _, body = text.partition(b"\n")
        if sha256(body).hexdigest().encode() != head:
            raise ValueError("its checksum is wrong")
        data: dict[str, Any] = json.loads(body)
        if data["format"] != FORMAT:
            version = f"a backup of format {data['format']}"
            raise UnsupportedVersion(path, 0, version, "use the release of imap-wal that wrote it")
        return Backup(
            number=data["number"],
            source=data["source"],
            begun_ms=data["begun_ms"],
            ended_ms=data["ended_ms"],
            clusters=tuple(data["clusters"]),
            files=tuple(
                BackupFile(file["path"], file["size"], tuple(file["chunks"]))
                for file in data["files"]
            ),
            selection=tuple(data["selection"]),
            directories=tuple(data["directories"]),
            damaged=tuple(
                DamagedFile(file["file"], file["offset"], file["what"]) for file in data["damaged"]
            ),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptLog(path, 0, f"this is not a whole backup ({error})", _DAMAGED) from error


def publish(store: SegmentStore, backup: Backup) -> None:
    """Make a backup visible. Raises `AlreadyExists` if another run has published this number."""
    body = json.dumps({"format": FORMAT, **asdict(backup)}, separators=(",", ":")).encode()
    head = sha256(body).hexdigest().encode()
    store.create(_path(backup.number), head + b"\n" + body)


def remove(store: SegmentStore, number: int) -> None:
    """Make a backup invisible. Its chunks stay."""
    store.delete(_path(number))


def read_chunk(store: SegmentStore, name: str) -> bytes:
    """The content of a chunk. Raises `CorruptLog` if it is missing or damaged."""
    path = chunk_path(name)
    try:
        data = store.read(path)
    except NotFound as error:
        raise CorruptLog(path, 0, "this part of a backup is missing", _DAMAGED) from error
    if chunk_name(data) != name:
        raise CorruptLog(path, 0, "this part of a backup does not match its checksum", _DAMAGED)
    return data


def _path(number: int) -> str:
    return f"backups/{number:08d}.json"
