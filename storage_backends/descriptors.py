"""Owners of file descriptors: open segments and held locks. Also translates errors of the operating
system."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import sys
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn, TypeAlias

from storage_backends.errors import AlreadyExists, NoSpace, NotFound, StorageError, Unavailable
from storage_backends.interface import LockContext

_IOV_MAX = 1024

READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
"""Without O_NONBLOCK, an open of a FIFO waits for a writer. It changes nothing for other files."""

ZERO_AHEAD_BYTES = 1024 * 1024
"""How far ahead of small appends reserved space is written with zeros. The first write to reserved
space changes the file's extents, and the sync must journal the change. With zeros written ahead,
300 small commits share one change instead of making 300 (3 KiB: 95 µs a sync instead of 140).
PostgreSQL's `wal_init_zero` does the same."""
_SMALL_BYTES = 64 * 1024
"""An append up to this size is small."""
_ZEROS = bytes(ZERO_AHEAD_BYTES)


def translate(error: OSError, path: str) -> StorageError:
    """The store's error for an error of the operating system; `path` is relative to the root."""
    text = (
        f"{os.strerror(error.errno)} [{errno.errorcode.get(error.errno, error.errno)}]"
        if error.errno
        else str(error)
    )
    if error.errno in (errno.EACCES, errno.EPERM):
        # a number: a directory of users may not answer
        text += (
            f"; this process runs as user {os.geteuid()}, who may not do this: run it as the user "
            "who owns the log"
        )
    if error.errno == errno.EFBIG:
        text += (
            "; this process may not write files so large: raise its limit (ulimit -f, "
            "LimitFSIZE= of systemd), or use a file system that allows them"
        )
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpace(text, path)
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return NotFound(text, path)
    if error.errno == errno.EEXIST:
        return AlreadyExists(text, path)
    return Unavailable(text, path)


if sys.platform == "darwin":

    def _sync_data(fd: int) -> None:
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)  # fsync there stops at the drive's cache

else:
    _sync_data = os.fdatasync


def sync_folder(folder: str) -> os.stat_result:
    """Make the names in an (absolute) folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
        return os.fstat(fd)
    finally:
        os.close(fd)


def read_local(local_file: str) -> bytes:
    """The content of a file of this machine, outside any store. Raises the `StorageError` of
    `translate`."""
    try:
        with open(local_file, "rb") as source:
            return source.read()
    except OSError as error:
        raise translate(error, local_file) from error


def write_all(fd: int, data: bytes | memoryview, offset: int) -> None:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(fd, rest, offset)
        offset += written
        rest = rest[written:]


class Descriptor:
    """Owns a file descriptor. A forked child closes all of them: it must neither keep the lock of a
    dead parent nor write into its segment."""

    _open: ClassVar[set[Descriptor]] = set()

    def __init__(self, fd: int) -> None:
        self._fd = fd
        Descriptor._open.add(self)

    def _forget(self) -> int:
        """The descriptor, which the caller must close; -1 if it is closed already."""
        fd, self._fd = self._fd, -1
        Descriptor._open.discard(self)
        return fd

    @staticmethod
    def _after_fork_in_child() -> None:
        for held in list(Descriptor._open):
            # Closing a copy leaves the parent's flock in place; LOCK_UN would not.
            os.close(held._forget())


os.register_at_fork(after_in_child=Descriptor._after_fork_in_child)


class LocalHeld(Descriptor):
    """An open file, identified by its device and inode: while it is open, no other file gets that
    inode. Symbolic links in its path are followed."""

    def __init__(self, fd: int, path: str, target: str, *, asks_server: bool = False) -> None:
        """`target`: the absolute path. `asks_server`: look with an open, because a stat may be
        answered from a cache (NFS)."""
        super().__init__(fd)
        self.path, self._target, self._asks_server = path, os.fsencode(target), asks_server
        self._identity = identity_of(os.fstat(fd))

    def is_there(self) -> bool:
        if self._fd < 0:
            return False
        try:
            return identity_at(self._target, self._asks_server) == self._identity
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise translate(error, self.path) from error

    def close(self) -> None:
        fd = self._forget()
        if fd >= 0:
            try:
                os.close(fd)
            except OSError as error:
                raise translate(error, self.path) from error


try:
    import ctypes

    _statx: Any = ctypes.CDLL(None).statx
    _Answer = ctypes.c_char * 256
except (ImportError, OSError, AttributeError):
    _statx = None  # macOS, musl before 1.2.5
_AT_FDCWD, _STATX_INO = -100, 0x100
_STATX = struct.Struct("=I28xQ96xII")
"""Which fields were answered, the inode, and the device's two numbers."""

Identity: TypeAlias = tuple[int, int, int]
"""The inode of a file, and the two numbers of its device."""


def identity_of(status: os.stat_result) -> Identity:
    return status.st_ino, os.major(status.st_dev), os.minor(status.st_dev)


def identity_at(target: bytes, asks_server: bool) -> Identity:
    """Of the file at a path. A stat asks for its times too. Linux 6.13 then gives the next write a
    time of its own, and changes the inode for that. A small write and its sync then take 250 µs
    instead of 175 µs (measured). So this asks for the inode only."""
    if _statx is not None and not asks_server:
        answer = _Answer()
        if not _statx(_AT_FDCWD, target, 0, _STATX_INO, answer):
            fields, inode, major, minor = _STATX.unpack_from(answer)
            if fields & _STATX_INO:
                return inode, major, minor
    return identity_of(status_of(target, asks_server))  # raises the error of the path


def status_of(target: str | bytes, asks_server: bool) -> os.stat_result:
    """The stat of a path. For up to a minute after another client removed the file, NFS answers a
    stat from its cache; an open asks the server."""
    if not asks_server:
        return os.stat(target)
    fd = os.open(target, READ)
    try:
        return os.fstat(fd)
    finally:
        os.close(fd)


class LocalAppender(LocalHeld):
    """An open segment. It keeps its own offset: with preallocated space the end of the file is not
    the end of the data. Methods raise the errors that `Appender` names, and `Unavailable` after a
    failed sync or `close`; `truncate` raises `StorageError` for more bytes than there are. `close`
    raises it if the system cannot close the file."""

    def __init__(
        self,
        fd: int,
        path: str,
        target: str,
        reserved_bytes: int = 0,
        demand: Callable[[str, int], None] = lambda path, length: None,
        *,
        asks_server: bool = False,
    ) -> None:
        """`demand` raises `NoSpace` if the disk must not take this many bytes more."""
        super().__init__(fd, path, target, asks_server=asks_server)
        self._demand = demand
        self.size = 0
        self._reserved = reserved_bytes
        self._zeroed = 0
        """The file has zeros or data up to this offset."""
        self._why_closed = "closed"

    def append(self, *chunks: bytes) -> None:
        size = self.size
        total = sum(map(len, chunks))
        end = ahead = size + total
        if end > self._reserved:
            self._demand(self.path, total)
        # A large append changes the extents once for many bytes anyway.
        if self._zeroed < end < self._reserved and 0 < total <= _SMALL_BYTES:
            ahead = min(end + ZERO_AHEAD_BYTES, self._reserved)
            chunks = (*chunks, _ZEROS[: ahead - end])
        try:
            written = os.pwritev(self._fd, chunks[:_IOV_MAX], size) if total else 0
            if total and written != ahead - size:
                write_all(self._fd, memoryview(b"".join(chunks))[written:], size + written)
        except OSError as error:
            self._fail(error)
        self.size = end
        if ahead > self._zeroed:
            self._zeroed = ahead

    def sync(self) -> None:
        if self._fd < 0:
            self._fail(None)
        try:
            _sync_data(self._fd)
        except OSError as error:
            # Linux reports a lost page only once: a second sync would succeed without the data.
            self._why_closed = f"an earlier sync failed: {error}"
            os.close(self._forget())
            raise translate(error, self.path) from error

    def truncate(self, size: int) -> None:
        if size > self.size:
            raise StorageError(f"cannot cut {self.size} bytes to {size}", self.path)
        if self._fd < 0:
            self._fail(None)
        try:
            os.ftruncate(self._fd, size)
        except OSError as error:
            self._fail(error)
        self.size = size
        self._reserved = 0
        self.sync()

    def _fail(self, error: OSError | None) -> NoReturn:
        if self._fd < 0 or error is None:
            raise Unavailable(self._why_closed, self.path) from error
        raise translate(error, self.path) from error


class LocalLock(Descriptor, LockContext):
    """A held `flock`; the kernel releases it when the process dies."""

    expires_ms = 0
    """Always 0: there is nothing to renew (see `storage_backends.lease`)."""

    def renew(self) -> None:
        pass

    def release(self) -> None:
        fd = self._forget()
        if fd >= 0:
            try:
                os.ftruncate(fd, 0)  # readers must not see a holder that no longer exists
                # A close is not enough while a child between fork and exec has a copy.
                fcntl.flock(fd, fcntl.LOCK_UN)
            except OSError:
                pass  # the close releases it as well
            finally:
                os.close(fd)
