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
    """The log chooses its way by these, never by the class of the store."""

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


class Appender(Protocol):
    """A file being written at its end by one process."""

    path: str
    size: int
    """Bytes written so far; preallocated space does not count."""

    def append(self, *chunks: bytes) -> None:
        """Write all chunks, in order, at the end. On `NoSpace` or `Unavailable`, `size` is
        unchanged and the bytes after it are undefined."""

    def sync(self) -> None:
        """Return when all appended bytes survive a power loss. After an error the file must not be
        trusted again."""

    def truncate(self, size: int) -> None:
        """Cut the file (and its preallocated space) to `size` bytes, and sync."""

    def close(self) -> None:
        """Close the file, without a sync. Safe to call twice."""


class Lock(Protocol):
    """A held exclusive lock."""

    @property
    def expires_ms(self) -> int:
        """0: held until released or until the process dies. Otherwise a lease, which expires at
        this Unix time unless it is renewed."""

    def renew(self) -> None:
        """Extend a lease by another term; does nothing for a lock. `Locked` if another holder has
        taken it since."""

    def release(self) -> None:
        """Release the lock; safe to call twice."""

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
    """A place for named byte files. Methods raise only `storage_backends.errors.StorageError`."""

    url: str
    capabilities: Capabilities

    def list(self, folder: str) -> list[StoredFile]:
        """All files at any depth below `folder` ("" is the root), sorted by path, without temporary
        files. A missing folder is empty."""

    def folders(self, folder: str) -> builtins.list[str]:
        """Names (not paths) of the folders directly in `folder`, sorted; [] for a missing
        folder."""

    def exists(self, path: str) -> bool:
        """Whether the file exists. Quick: one stat on a local file system."""

    def size(self, path: str) -> int:
        """Bytes, with preallocated space. `NotFound`."""

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """At most `length` bytes (None: to the end) from `offset`; fewer at the end of the file.
        `NotFound`."""

    def open_input(self, path: str) -> BinaryIO:
        """A seekable file for reading; the caller closes it. `NotFound`."""

    def create(self, path: str, data: bytes) -> None:
        """Publish a new file: exclusively, whole or not at all. File and directory entry are
        durable on return. `AlreadyExists`."""

    def create_from(self, path: str, local_file: str) -> None:
        """`create` with the content of a file on this machine, streamed. Keeps the local file."""

    def replace(self, path: str, data: bytes) -> None:
        """Write a new or an existing file: whole or not at all, durable on return."""

    def open_append(self, path: str, preallocate_bytes: int = 0) -> Appender:
        """Create the file (exclusive, directory entry durable on return) and open it for appending.
        `AlreadyExists`, `Unsupported`."""

    def truncate(self, path: str, size: int) -> None:
        """Cut a closed file to `size` bytes, durable on return. `NotFound`, `Unsupported`."""

    def delete(self, path: str) -> None:
        """Remove the file, durable on return; a missing one is no error. Folders that become empty
        may be removed too."""

    def discard(self, path: str) -> None:
        """`delete` of a file that nothing needs; it may also stay. `Linked` if its path has a
        symbolic link below the root: the target may belong to another log."""

    def discard_all(self, paths: Sequence[str]) -> builtins.list[Linked]:
        """`discard` each of them, with one request for many where the storage has that. Returns an
        error for each file that stays because of a link. After any other error, some of the files
        are deleted."""

    def lock(self, path: str, holder: str, *, take: bool = False) -> Lock:
        """Take the lock at `path` without waiting, and write `holder` (one line of text) next to it
        for others to read. `Locked` names the holder. `take=True` takes it from a living holder,
        without notifying it."""

    def close(self) -> None:
        """Close connections; safe to call twice."""


def discard_each(store: SegmentStore, paths: Sequence[str]) -> list[Linked]:
    """`SegmentStore.discard_all` for a store that deletes one file at a time."""
    linked = []
    for path in paths:
        try:
            store.discard(path)
        except Linked as error:
            linked.append(error)
    return linked
