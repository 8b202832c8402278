"""What the log needs from a storage, and what a storage says it can do.

Paths are relative to the root of the store, separated by `/`, and percent-encoded by the caller: a
store never interprets them. No store caches a listing: a process sees at once what another one
published.
"""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import BinaryIO, Protocol, Self, runtime_checkable

from storage_backends.errors import Linked


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The log decides by these what it does, never by the class of the store."""

    durable_append: bool
    """`open_append` works: a file can grow. Without it the log writes one object per commit."""
    durable_sync: bool
    """`Appender.sync` returns only when the bytes survive a power loss."""
    exclusive_create: bool
    """`create` is atomic among all processes: of two callers, one gets `AlreadyExists`."""
    atomic_replace: bool
    """`replace` shows either the old or the new content, whole."""
    preallocate: bool
    """`open_append(preallocate_bytes=…)` reserves space that reads as zeros until written."""
    locks: bool
    """`lock` is released by the operating system when its holder dies."""
    stale_listings: bool = False
    """A listing may not show the latest changes of other machines (NFS). Only creating a file shows
    whether it exists now."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file of a listing; `size` in bytes (with preallocated space), `modified_ms` in Unix
    milliseconds (0: unknown)."""

    path: str
    size: int
    modified_ms: int = 0


class Held(Protocol):
    """One file, identified by its identity and not by its name: a copy of it, or another file that
    replaced it, is a different one."""

    path: str

    def is_there(self) -> bool:
        """Whether the path still leads to this file. Fast: one stat on a local file system. False
        after `close`.

        Raises:
            Unavailable: the storage failed.
        """

    def close(self) -> None:
        """Release the file. Safe to call twice."""


class Appender(Held, Protocol):
    """A file being written at its end by one process."""

    size: int
    """Bytes written so far; preallocated space does not count."""

    def append(self, *chunks: bytes) -> None:
        """Write all chunks, in order, at the end. After an error, `size` is unchanged and the bytes
        after it are undefined.

        Raises:
            NoSpace: the storage is full.
            Unavailable: the write failed.
        """

    def sync(self) -> None:
        """Return when all appended bytes survive a power loss. After an error, the file must not be
        trusted again: a later sync may succeed without having written them.

        Raises:
            NoSpace: the storage is full.
            Unavailable: the sync failed.
        """

    def truncate(self, size: int) -> None:
        """Cut the file (and its preallocated space) to `size` bytes, and sync.

        Raises:
            NoSpace: the storage is full.
            Unavailable: the storage failed.
        """

    def close(self) -> None:
        """Close the file, without a sync. Safe to call twice."""


class Lock(Protocol):
    """A held exclusive lock."""

    @property
    def expires_ms(self) -> int:
        """0: held until released or until the process dies. Otherwise a lease, which expires at
        this Unix time in milliseconds unless it is renewed."""

    def renew(self) -> None:
        """Extend a lease by another term. Does nothing for a lock.

        Raises:
            Locked: another holder has taken it since.
            Unavailable: the storage failed.
        """

    def release(self) -> None:
        """Release the lock. Safe to call twice."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class LockContext(ABC):
    """`with lock:` releases the lock at the end. A base class of locks."""

    @abstractmethod
    def release(self) -> None:
        """See `Lock`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


@runtime_checkable
class SegmentStore(Protocol):
    """A place for named byte files. Methods raise only `storage_backends.errors.StorageError`:
    the subclasses that each of them names, and any of them `Unavailable`, if the storage cannot be
    reached, refuses the credentials or has an input/output error.

    Every `path` and `folder` is relative to the root of the store."""

    url: str
    capabilities: Capabilities

    def list(self, folder: str) -> list[StoredFile]:
        """List all files at any depth below a folder.

        Args:
            folder: "" is the root.

        Returns:
            The files, sorted by path, without temporary files. A missing folder is empty.
        """

    def folders(self, folder: str) -> builtins.list[str]:
        """The names (not paths) of the folders directly in `folder`, sorted; [] for a missing
        folder."""

    def exists(self, path: str) -> bool:
        """Whether the file exists. Fast: one stat on a local file system."""

    def hold(self, path: str) -> Held:
        """Remember which file this is. The caller closes it.

        Raises:
            NotFound: there is no such file.
        """

    def size(self, path: str) -> int:
        """The size of a file in bytes, with preallocated space.

        Raises:
            NotFound: there is no such file.
        """

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """Read a part of a file.

        Args:
            path: the file.
            offset: the first byte to read.
            length: the number of bytes; None: to the end of the file.

        Returns:
            The bytes; fewer than `length` at the end of the file.

        Raises:
            NotFound: there is no such file.
        """

    def open_input(self, path: str) -> BinaryIO:
        """A seekable file for reading. The caller closes it.

        Raises:
            NotFound: there is no such file.
        """

    def create(self, path: str, data: bytes) -> None:
        """Publish a new file: exclusively, whole or not at all. File and directory entry are
        durable on return.

        Raises:
            AlreadyExists: there is a file of this name.
            NoSpace: the storage is full.
        """

    def create_from(self, path: str, local_file: str) -> None:
        """`create` with the content of a file on this machine, streamed. Keeps the local file.

        Args:
            path: the new file.
            local_file: a path on this machine.

        Raises:
            AlreadyExists: there is a file of this name.
            NoSpace: the storage is full.
        """

    def replace(self, path: str, data: bytes) -> None:
        """Write a new or an existing file: whole or not at all, durable on return.

        Raises:
            NoSpace: the storage is full.
        """

    def open_append(self, path: str, preallocate_bytes: int = 0) -> Appender:
        """Create a file, exclusively, and open it for appending. The directory entry is durable on
        return.

        Args:
            path: the new file.
            preallocate_bytes: space to reserve, if `Capabilities.preallocate`.

        Raises:
            AlreadyExists: there is a file of this name.
            NoSpace: the storage is full.
            Unsupported: this storage cannot append.
        """

    def truncate(self, path: str, size: int) -> None:
        """Cut a closed file to `size` bytes, durable on return.

        Raises:
            NotFound: there is no such file.
            Unsupported: this storage cannot append.
        """

    def delete(self, path: str) -> None:
        """Remove a file, durable on return. A missing file is not an error. Folders that become
        empty may be removed too."""

    def discard(self, path: str) -> None:
        """Remove a file that is no longer needed. A store may keep it.

        Raises:
            Linked: its path has a symbolic link below the root, so the target may belong to
                another log. The file was not removed.
        """

    def discard_all(self, paths: Sequence[str]) -> builtins.list[Linked]:
        """Remove files that are no longer needed, with one request for many where the storage has
        one.

        Returns:
            An error for each file that is kept because of a link.

        Raises:
            StorageError: another error. Some of the files may have been removed.
        """

    def lock(self, path: str, holder: str, *, take: bool = False) -> Lock:
        """Take a lock, without waiting.

        Args:
            path: the file of the lock.
            holder: one line of text about the caller, stored next to the lock for others to read.
            take: take it from a living holder, without notifying it.

        Raises:
            Locked: another process has the lock; the error names its holder.
        """

    def close(self) -> None:
        """Close connections. Safe to call twice."""


def discard_each(store: SegmentStore, paths: Sequence[str]) -> list[Linked]:
    """`SegmentStore.discard_all` for a store that deletes one file at a time."""
    linked = []
    for path in paths:
        try:
            store.discard(path)
        except Linked as error:
            linked.append(error)
    return linked
