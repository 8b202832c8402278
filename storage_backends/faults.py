"""A store that fails on purpose: a wrapper around any other store, following a plan.

    # The process dies before its 7th storage operation.
    plan = Plan((Fault("kill", at=7),), seed=42)
    store = FaultyStore(MemoryStore("test"), plan)

Operations are counted from 1 over all kinds: list, folders, exists, hold, size, read, open_input,
create, create_from, replace, open_append, append, sync, truncate, delete, lock, renew. To try every
place of a workload, run it once without faults, read `store.count`, and run it again with
`Fault("kill", at=k)` for each k. The text of each fault has the plan with its seed, which replays
it.

`kill` and `power-loss` raise a `BaseException`, because no handler of the code under test may catch
its own death. After that every operation of this wrapper raises the same, locks are released as an
operating system would do, and the wrapped store has what survived. After a power loss that is what
was synced, and the part of each open segment's unsynced bytes that the seed selects. All other
operations are durable on return, so directory entries are never lost. `tests/faults/disk.py` checks
that for the local store at every system call.
"""

from __future__ import annotations

import builtins
import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from random import Random
from typing import BinaryIO, Literal, TypeVar

from storage_backends.errors import Linked, NoSpace, StorageError, Unavailable
from storage_backends.gated import GatedStore
from storage_backends.interface import (
    Appender,
    Capabilities,
    Held,
    Lock,
    LockContext,
    SegmentStore,
    StoredFile,
    discard_each,
)

SECTOR_BYTES = 512

T = TypeVar("T")


class Killed(BaseException):
    """The process was killed here. Bytes that it wrote to the operating system survive."""


class PowerLoss(Killed):
    """The machine lost its power here. Only synced bytes survive."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One planned failure."""

    action: Literal["error", "short-write", "kill", "power-loss"]
    """`error` raises `error`; `short-write` writes a part of an append and raises `NoSpace`."""
    at: int = 1
    """The first matching operation that fails, counted from 1."""
    kind: str = "*"
    """Glob over the kind of operation, or several separated by `|`."""
    path: str = "*"
    """Glob over the path; `*` also matches slashes."""
    when: Literal["before", "after"] = "before"
    """Whether the operation fails before or after it is done. The caller cannot know which."""
    times: int = 1
    """How many matching operations in a row fail; 0: all from `at`."""
    error: type[StorageError] = Unavailable

    def matches(self, kind: str, path: str) -> bool:
        return any(fnmatchcase(kind, pattern) for pattern in self.kind.split("|")) and fnmatchcase(
            path, self.path
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """The faults, and the seed of all random choices."""

    faults: tuple[Fault, ...] = ()
    seed: int = 0
    tear: Literal["prefix", "sectors"] = "prefix"
    """What a power loss keeps of unsynced bytes: a prefix, or any of their sectors, with zeros for
    the others."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation that was called."""

    number: int
    kind: str
    path: str


class FaultyStore:
    """A `SegmentStore` around another one. `operations` lists the calls in order. Methods raise the
    errors of the other one, and those of the plan."""

    def __init__(self, inner: SegmentStore, plan: Plan = Plan()) -> None:
        self.inner = inner
        self.plan = plan
        self.url = inner.url
        self.capabilities: Capabilities = inner.capabilities
        self.operations: builtins.list[Operation] = []
        self.fired: builtins.list[tuple[Operation, Fault]] = []
        self._seen = [0] * len(plan.faults)
        self._mutex = threading.RLock()
        self._death: Killed | None = None
        self._appenders: builtins.list[_FaultyAppender] = []
        self._locks: builtins.list[Lock] = []
        self._random = Random(plan.seed)  # noqa: S311  repeatable, not secret

    @property
    def count(self) -> int:
        """How many operations were called."""
        return len(self.operations)

    @property
    def dead(self) -> bool:
        return self._death is not None

    # the protocol

    def list(self, folder: str) -> builtins.list[StoredFile]:
        return self._run("list", folder, lambda: self.inner.list(folder))

    def folders(self, folder: str) -> builtins.list[str]:
        return self._run("folders", folder, lambda: self.inner.folders(folder))

    def exists(self, path: str) -> bool:
        return self._run("exists", path, lambda: self.inner.exists(path))

    def hold(self, path: str) -> Held:
        return self._run("hold", path, lambda: _FaultyHeld(self, self.inner.hold(path)))

    def size(self, path: str) -> int:
        return self._run("size", path, lambda: self.inner.size(path))

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        return self._run("read", path, lambda: self.inner.read(path, offset, length))

    def open_input(self, path: str) -> BinaryIO:
        return self._run("open_input", path, lambda: self.inner.open_input(path))

    def create(self, path: str, data: bytes) -> None:
        self._run("create", path, lambda: self.inner.create(path, data))

    def create_from(self, path: str, local_file: str) -> None:
        self._run("create_from", path, lambda: self.inner.create_from(path, local_file))

    def replace(self, path: str, data: bytes) -> None:
        self._run("replace", path, lambda: self.inner.replace(path, data))

    def open_append(self, path: str, preallocate_bytes: int = 0) -> Appender:
        def open_() -> Appender:
            appender = _FaultyAppender(
                self, self.inner.open_append(path, preallocate_bytes), preallocate_bytes
            )
            self._appenders.append(appender)
            return appender

        return self._run("open_append", path, open_)

    def truncate(self, path: str, size: int) -> None:
        self._run("truncate", path, lambda: self.inner.truncate(path, size))

    def delete(self, path: str) -> None:
        self._run("delete", path, lambda: self.inner.delete(path))

    def discard(self, path: str) -> None:
        self._run("delete", path, lambda: self.inner.discard(path))

    def discard_all(self, paths: Sequence[str]) -> builtins.list[Linked]:
        return discard_each(self, paths)

    def lock(self, path: str, holder: str, *, take: bool = False) -> Lock:
        def lock() -> Lock:
            held = _FaultyLock(self, self.inner.lock(path, holder, take=take))
            self._locks.append(held.inner)
            return held

        return self._run("lock", path, lock)

    def close(self) -> None:
        self.inner.close()

    # faults

    def _run(self, kind: str, path: str, action: Callable[[], T]) -> T:
        fault, operation = self._ask(kind, path)
        if fault is None:
            answer = action()
            # Another thread may have died in the meantime: then this one must not report success.
            self._live()
            return answer
        if fault.when == "after":
            action()
        raise self._strike(fault, operation)

    def _ask(self, kind: str, path: str) -> tuple[Fault | None, Operation]:
        with self._mutex:
            self._live()
            operation = Operation(len(self.operations) + 1, kind, path)
            self.operations.append(operation)
            hit = None
            for at, fault in enumerate(self.plan.faults):
                if fault.matches(kind, path) and (
                    fault.action != "short-write" or kind == "append"
                ):
                    self._seen[at] += 1
                    if (
                        hit is None
                        and self._seen[at] >= fault.at
                        and (not fault.times or self._seen[at] < fault.at + fault.times)
                    ):
                        hit = fault
            if hit is not None:
                self.fired.append((operation, hit))
            return hit, operation

    def _live(self) -> None:
        if self._death is not None:
            raise type(self._death)(*self._death.args)

    def _strike(self, fault: Fault, operation: Operation) -> BaseException:
        """Does the fault's damage to the store, and returns what to raise."""
        text = f"{fault.when} {operation.kind} (operation {operation.number}), {self.plan}"
        if fault.action == "error":
            return fault.error(f"planned fault {text}", operation.path)
        if fault.action == "short-write":
            return NoSpace(f"planned short write, {text}", operation.path)
        with self._mutex:
            self._live()
            self._death = (PowerLoss if fault.action == "power-loss" else Killed)(
                f"{operation.path}: {text}"
            )
            # The operating system closes the files and locks of a dead process. A power loss also
            # damages unsynced bytes.
            for appender in self._appenders:
                appender.die(lose=fault.action == "power-loss")
            for lock in self._locks:
                _let_go(lock)
            return type(self._death)(*self._death.args)

    @contextlib.contextmanager
    def alive(self) -> Iterator[None]:
        """A writer holds this until its bytes are counted, so no other thread can die meanwhile."""
        with self._mutex:
            self._live()
            yield


def _let_go(lock: Lock) -> None:
    """Releases a lock. A lease outlives its holder's process."""
    from storage_backends.lease import Lease

    if not isinstance(lock, Lease):
        with contextlib.suppress(StorageError):
            lock.release()


class AwayStore(GatedStore):
    """A storage that can become unreachable: while `away` is set, every operation raises
    `Unavailable`, also on files and locks that are open already. The data stay as they are. `waits`
    runs before an operation fails, because unreachable storage often fails late."""

    def __init__(self, inner: SegmentStore) -> None:
        super().__init__(inner)
        self.away = False
        self.refused = 0
        """How many operations failed."""
        self.waits: Callable[[], object] = lambda: None

    def there(self, path: str = "") -> SegmentStore:
        if self.away:
            self.refused += 1
            self.waits()
            raise Unavailable("the storage is away", path)
        return self.inner


class _FaultyHeld:
    def __init__(self, store: FaultyStore, inner: Held) -> None:
        self.path, self._store, self._held = inner.path, store, inner

    def is_there(self) -> bool:
        """Counted as `exists`."""
        return self._store._run("exists", self.path, self._held.is_there)

    def close(self) -> None:
        self._held.close()


class _FaultyAppender(_FaultyHeld):
    def __init__(self, store: FaultyStore, inner: Appender, preallocated_bytes: int) -> None:
        super().__init__(store, inner)
        self.size = 0
        self._inner = inner
        self._synced = 0
        self._written_beyond = False
        """A short write left bytes after `size`; the next append overwrites them."""
        self._preallocated = preallocated_bytes

    def append(self, *chunks: bytes) -> None:
        fault, operation = self._store._ask("append", self.path)
        if fault is None or fault.when == "after" or fault.action == "short-write":
            data = b"".join(chunks)
            short = fault is not None and fault.action == "short-write"
            if short and data:
                data = data[: self._store._random.randrange(len(data))]
            with self._store.alive():
                if self._written_beyond:
                    self._inner.truncate(self.size)
                    self._preallocated = 0
                    self._written_beyond = False
                if data:
                    self._inner.append(data)
                if short:
                    self._written_beyond = True
                else:
                    self.size += len(data)
        if fault is not None:
            if fault.action == "error" and fault.when == "after":
                self.size -= len(data)
                self._written_beyond = True
            raise self._store._strike(fault, operation)

    def sync(self) -> None:
        def sync() -> None:
            size = self.size
            self._inner.sync()
            self._synced = max(self._synced, size)

        self._store._run("sync", self.path, sync)

    def truncate(self, size: int) -> None:
        def truncate() -> None:
            with self._store.alive():
                self._inner.truncate(size)
                self.size = self._synced = size
                self._preallocated = 0
                self._written_beyond = False

        self._store._run("truncate", self.path, truncate)

    def die(self, *, lose: bool) -> None:
        """Closes the file. With `lose`, keeps what was synced and a part of the rest."""
        self._inner.close()
        inner, path = self._store.inner, self.path
        if not lose or not inner.exists(path):
            return
        length = self._inner.size
        if length == self._synced:
            return
        remaining = bytearray(inner.read(path, 0, length))
        chance = self._store._random
        del remaining[chance.randint(self._synced, length) :]
        if self._store.plan.tear == "sectors":
            first = self._synced - self._synced % SECTOR_BYTES
            for start in range(first, len(remaining), SECTOR_BYTES):
                if chance.random() < 0.5:
                    begin, end = max(start, self._synced), min(start + SECTOR_BYTES, len(remaining))
                    remaining[begin:end] = bytes(end - begin)
        inner.delete(path)
        again = inner.open_append(path, self._preallocated)
        again.append(bytes(remaining))
        again.sync()
        again.close()


class _FaultyLock(LockContext):
    def __init__(self, store: FaultyStore, inner: Lock) -> None:
        self.inner = inner
        self._store = store

    @property
    def expires_ms(self) -> int:
        return self.inner.expires_ms

    def renew(self) -> None:
        self._store._run("renew", "", self.inner.renew)

    def release(self) -> None:
        if not self._store.dead:  # the death has released it
            self.inner.release()
