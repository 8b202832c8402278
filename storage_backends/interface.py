"""What the log asks of a storage, and what a storage says it can do.

Paths are relative to the root of the store, separated by `/`, and already percent-encoded by the
caller: a store never interprets them. No store caches a listing: what one process published,
another sees at once.
"""

from __future__ import annotations

import builtins
from dataclasses import dataclass
from types import TracebackType
from typing import BinaryIO, Protocol, Self, runtime_checkable


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The log picks its way from these, never from the kind of store."""

    durable_append: bool
    """`open_append` works: a file can grow. Without it the log writes one object per commit."""
    durable_sync: bool
    """`Appender.sync` returns only when the bytes survive a power loss."""
    exclusive_create: bool
    """`create` is atomic among all processes: of two, one gets `AlreadyExists`."""
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
        """Write all chunks, in order, at the end. Raises `NoSpace` or `Unavailable`; then `size` is
        unchanged and what stands beyond it is undefined."""

    def sync(self) -> None:
        """Return when all that was appended survives a power loss. After an error the file must not
        be trusted again."""

    def truncate(self, size: int) -> None:
        """Cut the file (and its preallocated space) to `size` bytes, and sync."""

    def close(self) -> None:
        """Let go of the file; not a sync. Safe to call twice."""


class Lock(Protocol):
    """An exclusive lock that is held."""

    @property
    def expires_ms(self) -> int:
        """0: held until released or until the process dies. Else a lease, which runs out at this
        Unix time unless renewed."""

    def renew(self) -> None:
        """Hold a lease for another term; nothing to do for a lock. `Locked` names who has taken it
        since."""

    def release(self) -> None:
        """Let go; safe to call twice."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


@runtime_checkable
class SegmentStore(Protocol):
    """A place for named byte files. Every method raises a `storage_backends.errors.StorageError` on
    failure, nothing else."""

    url: str
    capabilities: Capabilities

    def list(self, folder: str) -> list[StoredFile]:
        """All files at any depth below `folder` ("" is the root), sorted by path; temporary files
        left out. A missing folder is empty."""

    def folders(self, folder: str) -> builtins.list[str]:
        """Names (not paths) of the folders directly in `folder`, sorted; a missing folder has
        none."""

    def exists(self, path: str) -> bool:
        """Whether the file is there. Quick: on a local file system one stat."""

    def size(self, path: str) -> int:
        """Bytes, with preallocated space. `NotFound`."""

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """At most `length` bytes (None: to the end) from `offset`; fewer at the end of the file.
        `NotFound`."""

    def open_input(self, path: str) -> BinaryIO:
        """A seekable file for reading, to be closed by the caller. `NotFound`."""

    def create(self, path: str, data: bytes) -> None:
        """Publish a new file: exclusive, whole or not at all, durable on return (directory entry
        too). `AlreadyExists`."""

    def create_from(self, path: str, local_file: str) -> None:
        """`create` with the content of a file on this machine, streamed. The local file stays."""

    def replace(self, path: str, data: bytes) -> None:
        """Write the file, new or not: whole or not at all, durable on return."""

    def open_append(self, path: str, preallocate_bytes: int = 0) -> Appender:
        """Create the file (exclusive, directory entry durable on return) and open it for appending.
        `AlreadyExists`, `Unsupported`."""

    def truncate(self, path: str, size: int) -> None:
        """Cut a closed file to `size` bytes, durable on return. `NotFound`, `Unsupported`."""

    def delete(self, path: str) -> None:
        """Remove the file, durable on return; a missing one is fine. Folders that are left empty
        may go too."""

    def discard(self, path: str) -> None:
        """`delete` of a file that nothing needs, so it may stay. `Linked` if a symbolic link below
        the root is in its path: behind it may be a file of another log."""

    def lock(self, path: str, holder: str, *, take: bool = False) -> Lock:
        """Take the lock at `path` at once and write `holder` (one line of text) beside it for
        others to read. Raises `Locked` naming the holder. `take=True` takes it from a living
        holder, who is not told."""

    def close(self) -> None:
        """Let go of connections; safe to call twice."""
