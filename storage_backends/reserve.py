"""Space of a full disk that is kept for maintenance.

    taken      the file `.#reserve` of the root owns its blocks: no program can use them
    given up   a rewrite, a prune or an archive met a full disk: the file keeps its size, without
               blocks. Appends then leave that many bytes free, so only maintenance uses them
    absent     there was never room for it, or the setting is 0: nothing is kept free

It is taken again by an agent that opens its log, by the next segment, and at the end of the
maintenance command, once the disk has room. The name has a `#`, so no file of a caller has it. Only
for local file systems. See decision 53 in docs/decisions/storages.md.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

from storage_backends.errors import NoSpace
from storage_backends.gated import parts_of

RESERVE_NAME = ".#reserve"
ROOM = 4
"""It is taken if the free space is this many times its size: it must not be what fills the disk."""
FULL = (errno.ENOSPC, errno.EDQUOT)
_BLOCK = 512
"""The unit of `st_blocks`, whatever the file system's blocks are."""
_OPEN = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DiskState:
    """Bytes of the file system of a root. `wanted`: the size of the reserve; 0: there is none.
    `held`: how much of it is taken."""

    free: int
    size: int
    wanted: int
    held: int


class Reserve:
    """The reserve in one local folder. `local`: whether a local file system has it. Other processes
    may take it and give it up at the same time: each step is one call of the system, or is done
    under a lock."""

    def __init__(self, folder: str, file_mode: int, *, local: bool) -> None:
        self._folder, self._file_mode, self._local = folder, file_mode, local
        self._path = f"{folder.rstrip('/')}/{RESERVE_NAME}"
        self.may_be_given_up = False
        """Whether `spending` gives it up: only in a maintenance command."""
        self.given_up = 0
        """Bytes that this process gave up and that were not taken again."""

    def state(self) -> DiskState | None:
        """None if this is not a local file system, or if its state cannot be read."""
        if not self._local:
            return None
        try:
            disk = os.statvfs(self._folder)
        except OSError:
            return None
        size, held = self._sizes()
        return DiskState(disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize, size, held)

    def take(self, size: int) -> None:
        """Hold `size` bytes if the disk has room; 0: remove the reserve."""
        if not size:
            with suppress(OSError):
                os.unlink(self._path)
            return
        now = self.state()
        if now is None or (now.wanted, now.held) == (size, size):
            return
        if now.free + now.held < ROOM * size or not hasattr(os, "posix_fallocate"):
            return
        with suppress(OSError), self._locked(create=True) as fd:
            if os.fstat(fd).st_size > size:
                os.ftruncate(fd, 0)
            try:
                os.posix_fallocate(fd, 0, size)
            except OSError:
                # The disk filled meanwhile. A reserve that was given up stays given up; a new one
                # is removed, so that its size does not limit appends.
                if now.wanted:
                    _release(fd, now.wanted)
                else:
                    os.unlink(self._path)
                raise
            if _held(os.fstat(fd)) < size:
                os.unlink(self._path)  # this file system does not keep reserved blocks
            self.given_up = 0

    def take_again(self) -> None:
        """Hold it again if it was given up, and the disk has room."""
        if missing := self.floor():
            self.take(missing)

    def give_up(self) -> bool:
        """Free the blocks for maintenance. False: there are none."""
        if not self._local:
            return False
        try:
            with self._locked() as fd:
                status = os.fstat(fd)
                if not _held(status):
                    return False
                _release(fd, status.st_size)
                os.fsync(fd)  # a journal frees them only then
                self.given_up = status.st_size
                return True
        except OSError:
            return False

    def spending(self, action: Callable[[], T]) -> T:
        """Run an action that leaves nothing if it fails. In a maintenance command, give the reserve
        up and run it again if the disk is full."""
        try:
            return action()
        except OSError as error:
            if error.errno not in FULL or not self.may_be_given_up or not self.give_up():
                raise
        return action()

    def floor(self) -> int:
        """How many bytes appends must leave free now."""
        if not self._local:
            return 0
        size, held = self._sizes()
        return size if held < size else 0

    def demand(self, path: str, length: int = 0) -> None:
        """Raises `NoSpace` if an append of this many bytes would use what is left for
        maintenance."""
        floor = self.floor()
        if not floor:
            return
        now = self.state()
        if now is not None and now.free < floor + length:
            raise NoSpace(
                f"{os.strerror(errno.ENOSPC)} [ENOSPC] for appends: the last {floor >> 20} MiB "
                "are for rewrite and prune",
                path,
            )

    def _sizes(self) -> tuple[int, int]:
        try:
            status = os.stat(self._path, follow_symlinks=False)
        except OSError:
            return 0, 0
        return (status.st_size, _held(status)) if stat.S_ISREG(status.st_mode) else (0, 0)

    @contextmanager
    def _locked(self, *, create: bool = False) -> Iterator[int]:
        """Raises OSError if another process is taking it or giving it up now."""
        fd = os.open(self._path, _OPEN | (os.O_CREAT if create else 0), self._file_mode)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError(errno.EINVAL, "the reserve is not a file")
            if create and not os.fstat(fd).st_size:
                os.fchmod(fd, self._file_mode)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield fd
        finally:
            os.close(fd)


def _held(status: os.stat_result) -> int:
    return min(status.st_blocks * _BLOCK, status.st_size)


def _release(fd: int, size: int) -> None:
    """The size without blocks."""
    os.ftruncate(fd, 0)
    os.ftruncate(fd, size)


def disks_of(store: object) -> dict[str, DiskState]:
    """The disks of a store's local folders: `root`, and `wal` if segments have one of their own.
    No network storage is read."""
    parts = zip(("root", "wal"), parts_of(store), strict=False)
    states_of = {name: [reserve.state() for reserve in reserves(part)] for name, part in parts}
    return {
        name: states[0] for name, states in states_of.items() if states and states[0] is not None
    }


def reserves(store: object) -> list[Reserve]:
    """The reserves of all local folders that a store consists of."""
    own = (getattr(part, "reserve", None) for part in parts_of(store))
    return [reserve for reserve in own if isinstance(reserve, Reserve)]
