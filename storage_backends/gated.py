"""Stores that forward each operation, and one that checks before it whether it may be done.

Subclasses decide in `there`. Files and locks that were opened through a `GatedStore` check too; a
lock of the operating system can always be released.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Hashable, Sequence
from typing import Any, BinaryIO

from storage_backends.errors import Linked, NotFound
from storage_backends.interface import (
    Appender,
    Capabilities,
    Held,
    Lock,
    LockContext,
    SegmentStore,
    StoredFile,
)


class ForwardingStore:
    """A `SegmentStore` that forwards what is done with a path to the store that `there` returns."""

    url: str
    capabilities: Capabilities

    def there(self, path: str = "") -> SegmentStore:
        """The storage of a file, or an error that the caller gets."""
        raise NotImplementedError

    def list(self, folder: str) -> builtins.list[StoredFile]:
        return self.there(folder).list(folder)

    def folders(self, folder: str) -> builtins.list[str]:
        return self.there(folder).folders(folder)

    def exists(self, path: str) -> bool:
        return self.there(path).exists(path)

    def hold(self, path: str) -> Held:
        return self.there(path).hold(path)

    def size(self, path: str) -> int:
        return self.there(path).size(path)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        return self.there(path).read(path, offset, length)

    def open_input(self, path: str) -> BinaryIO:
        return self.there(path).open_input(path)

    def create(self, path: str, data: bytes) -> None:
        self.there(path).create(path, data)

    def create_from(self, path: str, local_file: str) -> None:
        self.there(path).create_from(path, local_file)

    def replace(self, path: str, data: bytes) -> None:
        self.there(path).replace(path, data)

    def open_append(self, path: str, preallocate_bytes: int = 0) -> Appender:
        return self.there(path).open_append(path, preallocate_bytes)

    def truncate(self, path: str, size: int) -> None:
        self.there(path).truncate(path, size)

    def delete(self, path: str) -> None:
        self.there(path).delete(path)

    def discard(self, path: str) -> None:
        self.there(path).discard(path)

    def lock(self, path: str, holder: str, *, take: bool = False) -> Lock:
        return self.there(path).lock(path, holder, take=take)


def parts_of(store: object) -> tuple[Any, ...]:
    """The storages below all stores around them: the root first, that of segments last."""
    while (inner := getattr(store, "inner", None)) is not None:
        store = inner
    parts: tuple[Any, ...] = getattr(store, "parts", ())
    return tuple(lowest for part in parts for lowest in parts_of(part)) or (store,)


class GatedStore(ForwardingStore):
    """A `SegmentStore` around another one."""

    def __init__(self, inner: SegmentStore) -> None:
        self.inner = inner
        self.url = inner.url
        self.capabilities = inner.capabilities

    def there(self, path: str = "") -> SegmentStore:
        return self.inner

    def hold(self, path: str) -> Held:
        return _GatedHeld(self, super().hold(path))

    def open_append(self, path: str, preallocate_bytes: int = 0) -> Appender:
        return _GatedAppender(self, super().open_append(path, preallocate_bytes))

    def discard_all(self, paths: Sequence[str]) -> builtins.list[Linked]:
        for path in paths:
            self.there(path)
        return self.inner.discard_all(paths)

    def lock(self, path: str, holder: str, *, take: bool = False) -> Lock:
        return _GatedLock(self, super().lock(path, holder, take=take))

    def close(self) -> None:
        self.inner.close()


class _GatedHeld:
    def __init__(self, store: GatedStore, inner: Held) -> None:
        self._store, self._held, self.path = store, inner, inner.path

    def is_there(self) -> bool:
        self._store.there(self.path)
        return self._held.is_there()

    def close(self) -> None:
        self._held.close()


class _GatedAppender(_GatedHeld):
    def __init__(self, store: GatedStore, inner: Appender) -> None:
        super().__init__(store, inner)
        self._inner, self.size = inner, inner.size

    def append(self, *chunks: bytes) -> None:
        self._store.there(self.path)
        self._inner.append(*chunks)
        self.size = self._inner.size

    def sync(self) -> None:
        self._store.there(self.path)
        self._inner.sync()

    def truncate(self, size: int) -> None:
        self._store.there(self.path)
        self._inner.truncate(size)
        self.size = self._inner.size


class _GatedLock(LockContext):
    def __init__(self, store: GatedStore, inner: Lock) -> None:
        self._store, self.inner = store, inner

    @property
    def expires_ms(self) -> int:
        return self.inner.expires_ms

    def renew(self) -> None:
        self._store.there()
        self.inner.renew()

    def release(self) -> None:
        # The release of a lease is a write; the operating system releases other locks.
        if self.inner.expires_ms:
            self._store.there()
        self.inner.release()


# Files that are identified by an id of the storage.


class HeldByAnswer:
    """A file, and the identity that the storage reports for it. No two files have the same one."""

    def __init__(self, path: str, ask: Callable[[], Hashable]) -> None:
        """`ask` returns the identity of the file at `path` now. It raises `NotFound` if there is
        none; so does this."""
        self.path, self._ask, self._identity = path, ask, ask()
        self._closed = False

    def is_there(self) -> bool:
        if self._closed:
            return False
        try:
            return self._ask() == self._identity
        except NotFound:
            return False

    def close(self) -> None:
        self._closed = True
