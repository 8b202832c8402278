"""Files in the memory of this process, for tests and trials. Stores of one name share their
files; a store without a name has its own."""

from __future__ import annotations

import builtins
import io
import threading
from collections.abc import Sequence
from typing import BinaryIO

from storage_backends.descriptors import read_local
from storage_backends.errors import (
    AlreadyExists,
    Linked,
    Locked,
    NotFound,
    StorageError,
    Unavailable,
)
from storage_backends.interface import (
    Appender,
    Capabilities,
    Held,
    Lock,
    LockContext,
    StoredFile,
    discard_each,
)
from storage_backends.paths import check_path, folder_prefix, one_line
from storage_backends.registry import Opening


class _Medium:
    """The files that all stores of one name share."""

    def __init__(self) -> None:
        self.mutex = threading.RLock()
        self.files: dict[str, bytearray] = {}
        self.locks: dict[str, tuple[str, object]] = {}


_media: dict[str, _Medium] = {}
_media_mutex = threading.Lock()


def forget(name: str) -> None:
    """Drop the files of `memory://name`; stores that are open keep theirs."""
    with _media_mutex:
        _media.pop(name, None)


class MemoryHeld:
    """A file in memory."""

    def __init__(self, medium: _Medium, path: str, data: bytearray) -> None:
        self.path = path
        self._medium = medium
        self._data = data
        self._closed = False

    def is_there(self) -> bool:
        return not self._closed and self._medium.files.get(self.path) is self._data

    def close(self) -> None:
        self._closed = True


_RESERVED_BYTES_MAX = 64 * 1024
"""Of a file. No disk has to find room for it: more would only use memory, 64 MiB for each log."""


class MemoryAppender(MemoryHeld):
    """A growing file in memory. Methods raise `Unavailable` after `close`; `truncate` raises
    `StorageError` for more bytes than there are."""

    def __init__(self, medium: _Medium, path: str, data: bytearray) -> None:
        super().__init__(medium, path, data)
        self.size = 0

    def append(self, *chunks: bytes) -> None:
        self._check()
        data = b"".join(chunks)
        with self._medium.mutex:
            self._data[self.size : self.size + len(data)] = data
        self.size += len(data)

    def sync(self) -> None:
        self._check()

    def truncate(self, size: int) -> None:
        self._check()
        if size > self.size:
            raise StorageError(f"cannot cut {self.size} bytes to {size}", self.path)
        with self._medium.mutex:
            del self._data[size:]
        self.size = size

    def _check(self) -> None:
        if self._closed:
            raise Unavailable("closed", self.path)


class MemoryLock(LockContext):
    """A lock among the threads of this process."""

    expires_ms = 0
    """Always 0: there is nothing to renew (see `storage_backends.lease`)."""

    def __init__(self, medium: _Medium, path: str, token: object) -> None:
        self._medium = medium
        self._path = path
        self._token = token

    def renew(self) -> None:
        pass

    def release(self) -> None:
        with self._medium.mutex:
            present = self._medium.locks.get(self._path)
            if present is not None and present[1] is self._token:
                del self._medium.locks[self._path]


class MemoryStore:
    """A `SegmentStore` in the memory of this process. Its durability ends with the process. Methods
    raise the errors that `SegmentStore` names."""

    capabilities = Capabilities(
        durable_append=True,
        durable_sync=True,
        exclusive_create=True,
        atomic_replace=True,
        preallocate=True,
        locks=True,
    )

    def __init__(self, name: str = "") -> None:
        self.url = f"memory://{name}"
        with _media_mutex:
            self._medium = _media.setdefault(name, _Medium()) if name else _Medium()

    def list(self, folder: str) -> builtins.list[StoredFile]:
        prefix = folder_prefix(folder)
        with self._medium.mutex:
            return [
                StoredFile(path, len(data))
                for path, data in sorted(self._medium.files.items())
                if path.startswith(prefix)
            ]

    def folders(self, folder: str) -> builtins.list[str]:
        prefix = folder_prefix(folder)
        with self._medium.mutex:
            below = [path[len(prefix) :] for path in self._medium.files if path.startswith(prefix)]
        return sorted({path.partition("/")[0] for path in below if "/" in path})

    def exists(self, path: str) -> bool:
        return path in self._medium.files

    def hold(self, path: str) -> Held:
        return MemoryHeld(self._medium, path, self._get(path))

    def size(self, path: str) -> int:
        return len(self._get(path))

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        # Not a slice of the bytearray, which would be copied twice.
        with self._medium.mutex, memoryview(self._get(path)) as data:
            return bytes(data[offset : None if length is None else offset + length])

    def open_input(self, path: str) -> BinaryIO:
        return io.BytesIO(self.read(path))

    def create(self, path: str, data: bytes) -> None:
        with self._medium.mutex:
            self._add(path, bytearray(data))

    def create_from(self, path: str, local_file: str) -> None:
        self.create(path, read_local(local_file))

    def replace(self, path: str, data: bytes) -> None:
        with self._medium.mutex:
            self._medium.files[check_path(path)] = bytearray(data)

    def open_append(self, path: str, preallocate_bytes: int = 0) -> Appender:
        data = bytearray(min(preallocate_bytes, _RESERVED_BYTES_MAX))
        with self._medium.mutex:
            self._add(path, data)
        return MemoryAppender(self._medium, path, data)

    def truncate(self, path: str, size: int) -> None:
        with self._medium.mutex:
            data = self._get(path)
            if size > len(data):
                raise StorageError(f"cannot cut {len(data)} bytes to {size}", path)
            del data[size:]

    def delete(self, path: str) -> None:
        with self._medium.mutex:
            self._medium.files.pop(check_path(path), None)

    def discard(self, path: str) -> None:
        self.delete(path)  # there are no links

    def discard_all(self, paths: Sequence[str]) -> builtins.list[Linked]:
        return discard_each(self, paths)

    def lock(self, path: str, holder: str, *, take: bool = False) -> Lock:
        token = object()
        with self._medium.mutex:
            present = self._medium.locks.get(check_path(path))
            if present is not None and not take:
                raise Locked(path, present[0])
            self._medium.locks[path] = (one_line(holder), token)
        return MemoryLock(self._medium, path, token)

    def close(self) -> None:
        pass

    def _add(self, path: str, data: bytearray) -> None:
        if check_path(path) in self._medium.files:
            raise AlreadyExists("a file of this name already exists", path)
        self._medium.files[path] = data

    def _get(self, path: str) -> bytearray:
        try:
            return self._medium.files[path]
        except KeyError:
            raise NotFound("no such file", path) from None


def opened(opening: Opening) -> MemoryStore:
    """The store of a name in this process."""
    return MemoryStore(opening.url.partition("://")[2].strip("/"))
