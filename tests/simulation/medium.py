"""The files of the disks, and a `SegmentStore` of each kind over them.

append    a local disk: appended bytes are in the page cache until synced
objects   no append; one object per commit, leases in place of locks
hdfs      append by path: an appender knows a name, not a file; leases
nfs       append, but each machine has a cache of listings and of names that did not exist
split     two of them: the segments on the disk of one machine, the rest shared
"""

from __future__ import annotations

import builtins
import io
import itertools
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from functools import lru_cache
from random import Random
from typing import Any, BinaryIO, TypeVar

from imap_wal.placement.router import SplitStore
from storage_backends import AlreadyExists, Linked, Locked, NotFound, StorageError, Unavailable
from storage_backends.descriptors import read_local
from storage_backends.interface import (
    Appender,
    Capabilities,
    Held,
    Lock,
    LockContext,
    StoredFile,
    discard_each,
)
from storage_backends.lease import acquire
from storage_backends.paths import check_path, folder_prefix, one_line
from tests.simulation import parquet
from tests.simulation.world import BASE_MS, Process, World

APPEND, OBJECTS, HDFS, NFS, SPLIT = "append", "objects", "hdfs", "nfs", "split"
KINDS = (APPEND, OBJECTS, HDFS, SPLIT, NFS)
STALE_STEPS = 100
"""How old a cached listing, or a cached absence of a file, may be on NFS. Exclusive creates and
deletions ask the server, and so does an open of a file that the cache shows."""

_CAPABILITIES = {
    APPEND: Capabilities(True, True, True, True, False, True),
    NFS: Capabilities(True, True, True, True, False, True, stale_listings=True),
    OBJECTS: Capabilities(False, False, True, True, False, False),
    HDFS: Capabilities(True, True, True, True, False, False),
}

_check, _prefix = lru_cache(100_000)(check_path), lru_cache(10_000)(folder_prefix)
T = TypeVar("T")
_numbers = itertools.count(1)


class File:
    """`synced`: how many bytes survive a power loss. What an unsynced truncation would leave is not
    modelled: all calls but appends are durable on return."""

    __slots__ = ("data", "listed", "modified_ms", "synced")

    def __init__(self, data: bytes, modified_ms: int, synced: int = -1) -> None:
        self.data = bytes(data)
        self.synced = len(data) if synced < 0 else synced
        self.modified_ms = modified_ms
        self.listed: StoredFile | None = None
        """The same value until the file changes: most requests are listings."""

    def copy(self) -> File:
        other = File(self.data, self.modified_ms, self.synced)
        other.listed = self.listed
        return other


class Files(dict[str, File]):
    """Path → file; `under` gives the paths of a folder in order. `listings`: folder → its
    listing, until anything in it changes."""

    def __init__(self) -> None:
        super().__init__()
        self._sorted: list[str] = []
        self.listings: dict[str, list[StoredFile]] = {}

    def copy(self) -> Files:
        other = Files()
        for path, file in self.items():
            dict.__setitem__(other, path, file.copy())
        other._sorted = self._sorted.copy()
        other.listings = self.listings.copy()  # a listing is never changed, only replaced
        return other

    def __setitem__(self, path: str, file: File) -> None:
        if path not in self:
            insort(self._sorted, path)
        super().__setitem__(path, file)
        self.changed(path)

    def __delitem__(self, path: str) -> None:
        super().__delitem__(path)
        del self._sorted[bisect_left(self._sorted, path)]
        self.changed(path)

    def changed(self, path: str) -> None:
        """This file has changed: forget the listings that show it."""
        listings = self.listings
        for prefix in _prefixes(path):
            if prefix in listings:
                del listings[prefix]

    def listing(self, prefix: str) -> list[StoredFile]:
        found = self.listings.get(prefix)
        if found is None:
            found = []
            for path in self.under(prefix):
                file = self[path]
                listed = file.listed
                if (
                    listed is None
                    or listed.size != len(file.data)
                    or listed.modified_ms != file.modified_ms
                ):
                    listed = file.listed = StoredFile(path, len(file.data), file.modified_ms)
                found.append(listed)
            self.listings[prefix] = found
        return found

    def under(self, prefix: str) -> list[str]:
        paths = self._sorted
        if not prefix:
            return paths.copy()
        return paths[bisect_left(paths, prefix) : bisect_left(paths, prefix[:-1] + "0")]


@lru_cache(100_000)
def _prefixes(path: str) -> tuple[str, ...]:
    """The folders that a file is in, as `folder_prefix` writes them."""
    return "", *(path[: at + 1] for at, letter in enumerate(path) if letter == "/")


class Medium:
    """The files of one disk or bucket."""

    def __init__(self) -> None:
        self.files = Files()
        self.locks: dict[str, tuple[str, object, Process | None]] = {}

    def copy(self) -> Medium:
        """The same files, without locks."""
        other = Medium()
        other.files = self.files.copy()
        return other

    def replaced(self) -> None:
        """All files are copied, and the copies take the place of the folder. Programs that have
        files open keep the old ones."""
        self.files = self.files.copy()
        self.locks.clear()

    def lose_power(self, rng: Random) -> None:
        """Lose unsynced bytes: only a beginning of them is left, perhaps with zeros in place of a
        sector."""
        for file in self.files.values():
            if file.synced < len(file.data):
                kept = rng.randint(file.synced, len(file.data))
                data = file.data[:kept]
                if rng.random() < 0.25 and kept > file.synced:
                    hole = rng.randint(file.synced, kept - 1)
                    data = data[:hole] + bytes(kept - hole)
                file.data, file.synced = data, kept
        self.files.listings.clear()
        self.locks.clear()


class SimHeld:
    def __init__(self, store: SimStore, path: str, file: File) -> None:
        self.path, self._store, self._file = path, store, file
        self._closed = False

    def is_there(self) -> bool:
        return not self._closed and self._store.names(self.path, self._file)

    def close(self) -> None:
        self._closed = True


class SimAppender(SimHeld):
    """On HDFS it finds its file by name at each append; elsewhere it keeps the file open."""

    def __init__(self, store: SimStore, path: str, file: File) -> None:
        super().__init__(store, path, file)
        self.size = 0

    def _target(self) -> File:
        if self._store.kind == HDFS:
            return self._store.file(self.path)
        return self._file

    def append(self, *chunks: bytes) -> None:
        data = b"".join(chunks)

        def effect() -> None:
            file = self._target()
            if self._store.kind == HDFS:
                file.data += data
                file.synced = len(file.data)
            else:
                file.data = file.data[: self.size] + data + file.data[self.size + len(data) :]
            file.modified_ms = self._store.storage_ms()
            self._store.medium.files.changed(self.path)
            self._store._changed(self.path)

        self._check()
        self._store.do("append", self.path, effect)
        self.size += len(data)

    def sync(self) -> None:
        def effect() -> None:
            file = self._target()
            file.synced = len(file.data)

        self._check()
        self._store.do("sync", self.path, effect)

    def truncate(self, size: int) -> None:
        def effect() -> None:
            file = self._target()
            file.data = file.data[:size]
            file.synced = len(file.data)
            self._store.medium.files.changed(self.path)

        self._check()
        if size > self.size:
            raise StorageError(f"cannot cut {self.size} bytes to {size}", self.path)
        self._store.do("truncate", self.path, effect)
        self.size = size

    def _check(self) -> None:
        if self._closed:
            raise Unavailable("closed", self.path)


class SimLock(LockContext):
    """A lock that the operating system releases when its holder dies."""

    expires_ms = 0

    def __init__(self, store: SimStore, path: str, token: object) -> None:
        self._store, self._path, self._token = store, path, token

    def renew(self) -> None:
        pass

    def release(self) -> None:
        locks = self._store.medium.locks
        if self._path in locks and locks[self._path][1] is self._token:
            del locks[self._path]


class SimStore:
    """The access of one process to a medium. Every method is a step of the world."""

    def __init__(self, world: World, process: Process, medium: Medium, kind: str) -> None:
        self.world, self.process, self.medium, self.kind = world, process, medium, kind
        self.url = f"sim+{kind}://{process.name}/{next(_numbers)}"
        """Each store has its own: what a process remembers of one storage is of no use in another
        run."""
        self.capabilities = _CAPABILITIES[kind]
        self.cache: Cache | None = None
        if kind == NFS:
            self.cache = process.memory.setdefault("nfs cache", Cache(world))

    def do(self, call: str, path: str, effect: Callable[[], T]) -> T:
        world, process = self.world, self.process
        fault = world.enter(process, call, path)
        found = effect()
        if fault is not None:
            world.leave(process, fault, path)
        return found

    def storage_ms(self) -> int:
        return BASE_MS + self.world.elapsed_ms

    def file(self, path: str) -> File:
        try:
            return self.medium.files[path]
        except KeyError:
            raise NotFound("no such file", path) from None

    # reading

    def list(self, folder: str) -> builtins.list[StoredFile]:
        # As in `do`, but inline for speed: half of all calls are listings.
        prefix, world, process = _prefix(folder), self.world, self.process
        fault = world.enter(process, "list", folder)
        files, cache = self.medium.files, self.cache
        found = files.listing(prefix).copy() if cache is None else cache.list(files, prefix)
        if fault is not None:
            world.leave(process, fault, folder)
        return found

    def folders(self, folder: str) -> builtins.list[str]:
        prefix = _prefix(folder)

        def effect() -> builtins.list[str]:
            below = [path[len(prefix) :] for path in self.medium.files.under(prefix)]
            return sorted({path.partition("/")[0] for path in below if "/" in path})

        return self.do("folders", folder, effect)

    def exists(self, path: str) -> bool:
        def effect() -> bool:
            try:
                self._seen(path)  # an open does not find a file that was deleted
            except NotFound:
                return False
            return True

        return self.do("exists", path, effect)

    def names(self, path: str, file: File) -> bool:
        """Whether the path leads to this very file."""

        def effect() -> bool:
            try:
                return self._seen(path) is file
            except NotFound:
                return False

        return self.do("exists", path, effect)

    def hold(self, path: str) -> Held:
        return SimHeld(self, path, self.do("hold", path, lambda: self._seen(path)))

    def size(self, path: str) -> int:
        return self.do("size", path, lambda: len(self._seen(path).data))

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        world, process = self.world, self.process  # inline too
        fault = world.enter(process, "read", path)
        data = self._seen(path).data
        if fault is not None:
            world.leave(process, fault, path)
        return data[offset : None if length is None else offset + length]

    def open_input(self, path: str) -> BinaryIO:
        return self.do("open_input", path, lambda: io.BytesIO(self._seen(path).data))

    # writing

    def create(self, path: str, data: bytes) -> None:
        self.do("create", path, lambda: self._add(path, data))

    def create_from(self, path: str, local_file: str) -> None:
        data = parquet.taken(local_file) or read_local(local_file)
        self.do("create_from", path, lambda: self._add(path, data))

    def replace(self, path: str, data: bytes) -> None:
        def effect() -> None:
            self.medium.files[_check(path)] = File(data, self.storage_ms())
            self._changed(path)

        self.do("replace", path, effect)

    def open_append(self, path: str, preallocate_bytes: int = 0) -> Appender:
        def effect() -> File:
            self._add(path, b"")
            return self.medium.files[path]

        return SimAppender(self, path, self.do("open_append", path, effect))

    def truncate(self, path: str, size: int) -> None:
        def effect() -> None:
            file = self.file(path)
            if size > len(file.data):
                raise StorageError(f"cannot cut {len(file.data)} bytes to {size}", path)
            file.data = file.data[:size]
            file.synced = size
            self.medium.files.changed(path)
            self._changed(path)

        self.do("truncate", path, effect)

    def delete(self, path: str) -> None:
        def effect() -> None:
            if _check(path) in self.medium.files:
                del self.medium.files[path]
                self._changed(path)

        self.do("delete", path, effect)

    def discard(self, path: str) -> None:
        self.delete(path)

    def discard_all(self, paths: Sequence[str]) -> builtins.list[Linked]:
        return discard_each(self, paths)

    def lock(self, path: str, holder: str, *, take: bool = False) -> Lock:
        if not self.capabilities.locks:
            return acquire(self, path, holder, take=take, clock_ms=self.process.clock.now_ms)

        def effect() -> Lock:
            present = self.medium.locks.get(_check(path))
            if present is not None and not take:
                raise Locked(path, present[0])
            token = object()
            self.medium.locks[path] = (one_line(holder), token, self.process)
            return SimLock(self, path, token)

        return self.do("lock", path, effect)

    def close(self) -> None:
        pass

    # parts

    def _add(self, path: str, data: bytes) -> None:
        if _check(path) in self.medium.files:
            raise AlreadyExists("a file of this name already exists", path)
        self.medium.files[path] = File(data, self.storage_ms())
        self._changed(path)

    def _seen(self, path: str) -> File:
        """Open a file."""
        return self.cache.open(self, path) if self.cache is not None else self.file(path)

    def _changed(self, path: str) -> None:
        if self.cache is not None:
            self.cache.forget(path)


class Cache:
    """What one machine caches of a file system that others change too (NFS): listings of folders,
    with sizes and times, and names that it did not find. Each is used until it is STALE_STEPS old,
    or until this machine changes something there."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._listings: dict[str, tuple[int, list[StoredFile]]] = {}
        self._absent: dict[str, int] = {}

    def list(self, files: Files, prefix: str) -> list[StoredFile]:
        step = self._world.step
        found = self._listings.get(prefix)
        if found is None or step - found[0] >= STALE_STEPS:
            found = self._listings[prefix] = step, files.listing(prefix)
        return found[1].copy()

    def open(self, store: SimStore, path: str) -> File:
        step = self._world.step
        if step - self._absent.get(path, -STALE_STEPS) < STALE_STEPS:
            raise NotFound("no such file (an old absence)", path)
        if path not in store.medium.files:
            self._absent[path] = step
        return store.file(path)

    def forget(self, path: str) -> None:
        """This machine created, changed or deleted that file."""
        self._absent.pop(path, None)
        for prefix in [prefix for prefix in self._listings if path.startswith(prefix)]:
            del self._listings[prefix]


def open_sim(world: World, process: Process, media: dict[str, Medium], kind: str) -> Any:
    """The store of a process. Split: what is not a segment is shared, segments are on the disk of
    its machine."""
    store: Any
    if kind == SPLIT:
        disk = media.setdefault(f"disk {process.machine}", Medium())
        root = SimStore(world, process, media["root"], OBJECTS)
        store = SplitStore(root, SimStore(world, process, disk, APPEND))
    else:
        store = SimStore(world, process, media["root"], kind)
    return store
