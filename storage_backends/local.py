"""A local directory, through the operating system alone.

When an operation returns, its result is on disk. `fdatasync` makes file contents durable. A sync of
the directory makes a name durable, and so do syncs of all directories above it that had to be
created. A new file is written under a temporary name and then hard-linked, because a link, unlike a
rename, fails if the name is taken. fsspec does not help here: its local file system has no sync,
and its exclusive create first checks and then writes.

Temporary names have a `#` in them. Percent-encoding replaces that, so no caller's name looks like a
temporary one. The first write into a folder removes those of killed processes
(`storage_backends.paths`).
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import BinaryIO, TypeVar

from storage_backends import local_listing, paths
from storage_backends.descriptors import (
    READ,
    LocalAppender,
    LocalHeld,
    LocalLock,
    status_of,
    translate,
    write_all,
)
from storage_backends.errors import Linked, Locked, NotFound, StorageError, Unavailable, Unsupported
from storage_backends.interface import (
    Appender,
    Capabilities,
    Held,
    Lock,
    StoredFile,
    discard_each,
)
from storage_backends.local_listing import RACES_MAX, LocalFolders, is_network
from storage_backends.location import PRIVATE
from storage_backends.paths import TEMPORARY_PREFIX, check_path, one_line
from storage_backends.registry import Opening
from storage_backends.reserve import Reserve

COPY_BYTES = 1 << 20
HOLDER_BYTES_MAX = 4096
_CANNOT_RESERVE = (
    errno.EOPNOTSUPP,
    errno.ENOSYS,
    errno.EINVAL,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
)

T = TypeVar("T")


class LocalStore:
    """A `SegmentStore` over the directory `root`, which the first write creates. New files get
    `file_mode`, and the same users may enter new folders. A mode wider than private is set whatever
    the umask; existing files keep their modes. `folder_mode` is for folders that other users than
    those of the files may enter. Methods raise the errors that `SegmentStore` names."""

    def __init__(self, root: str, file_mode: int = PRIVATE, folder_mode: int = 0) -> None:
        self.root = os.path.abspath(root)
        self.url = f"file://{self.root}"
        self._file_mode = file_mode
        self._folders = LocalFolders(self.root, folder_mode or file_mode | (file_mode & 0o444) >> 2)
        self.capabilities = Capabilities(
            durable_append=True,
            durable_sync=True,
            exclusive_create=True,
            atomic_replace=True,
            preallocate=hasattr(os, "posix_fallocate"),
            locks=True,
            stale_listings=is_network(self.root),
        )
        self.reserve = Reserve(self.root, file_mode, local=not self.capabilities.stale_listings)
        self._prefix = self.root.rstrip("/") + "/"
        self._swept: set[str] = set()

    # reading

    def list(self, folder: str) -> builtins.list[StoredFile]:
        return local_listing.files(self.root, folder)

    def folders(self, folder: str) -> builtins.list[str]:
        return local_listing.folders(self.root, folder)

    def exists(self, path: str) -> bool:
        try:
            status = status_of(self._file(path), self.capabilities.stale_listings)
            return stat.S_ISREG(status.st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise translate(error, path) from error

    def hold(self, path: str) -> Held:
        target = self._file(path)

        def hold() -> Held:
            fd = os.open(target, READ)
            try:
                self._regular(os.fstat(fd), path)
            except BaseException:
                os.close(fd)
                raise
            return LocalHeld(fd, path, target, asks_server=self.capabilities.stale_listings)

        return self._guard(path, hold)

    def size(self, path: str) -> int:
        return self._guard(path, lambda: self._regular(os.stat(self._file(path)), path).st_size)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        def read() -> bytes:
            fd = os.open(self._file(path), READ)
            try:
                left = max(self._regular(os.fstat(fd), path).st_size - offset, 0)
                if length is not None:
                    left = min(left, length)
                parts, at = [], offset
                while left > 0 and (part := os.pread(fd, left, at)):
                    parts.append(part)
                    at += len(part)
                    left -= len(part)
                return parts[0] if len(parts) == 1 else b"".join(parts)
            finally:
                os.close(fd)

        return self._guard(path, read)

    def open_input(self, path: str) -> BinaryIO:
        def input_() -> BinaryIO:
            file = open(self._file(path), "rb", opener=lambda name, _: os.open(name, READ))
            try:
                self._regular(os.fstat(file.fileno()), path)
            except NotFound:
                file.close()
                raise
            return file

        return self._guard(path, input_)

    # writing

    def create(self, path: str, data: bytes) -> None:
        self._publish(path, lambda: (data,), os.link)

    def create_from(self, path: str, local_file: str) -> None:
        try:
            with open(local_file, "rb", buffering=0) as source:

                def chunks() -> Iterator[bytes]:
                    source.seek(0)
                    return iter(lambda: source.read(COPY_BYTES), b"")

                self._publish(path, chunks, os.link)
        except OSError as error:  # of the source; those of the target are translated inside
            raise translate(error, local_file) from error

    def replace(self, path: str, data: bytes) -> None:
        self._publish(path, lambda: (data,), os.replace)

    def open_append(self, path: str, preallocate_bytes: int = 0) -> Appender:
        target = self._file(path)
        self.reserve.take_again()
        self.reserve.demand(path)

        def make() -> Appender:
            fd = self._new(target)
            try:
                reserved = self._preallocate(fd, preallocate_bytes) if preallocate_bytes else 0
                os.fsync(fd)
                self._folders.sync_name(target)
            except BaseException:
                os.unlink(target)
                os.close(fd)
                raise
            return LocalAppender(
                fd,
                path,
                target,
                reserved,
                self.reserve.demand,
                asks_server=self.capabilities.stale_listings,
            )

        return self._guard(path, lambda: self._folders.with_folder_of(target, make))

    def truncate(self, path: str, size: int) -> None:
        def cut() -> None:
            fd = os.open(self._file(path), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                present = self._regular(os.fstat(fd), path).st_size
                if size > present:
                    raise StorageError(f"cannot cut {present} bytes to {size}", path)
                os.ftruncate(fd, size)
                os.fsync(fd)
            finally:
                os.close(fd)

        self._guard(path, cut)

    def delete(self, path: str) -> None:
        target = self._file(path)

        def remove() -> None:
            try:
                os.unlink(target)
            except (FileNotFoundError, NotADirectoryError):
                return
            self._folders.sync_deletion(target)

        self._guard(path, remove)

    def discard(self, path: str) -> None:
        check_path(path)
        *names, name = path.split("/")

        def remove() -> None:
            with ExitStack() as opened:
                folders = [self._opened(opened, self.root)]  # may be a link: the user named it
                for folder in names:
                    folders.append(self._opened(opened, folder, folders[-1]))
                try:
                    os.unlink(name, dir_fd=folders[-1])
                except FileNotFoundError:
                    return
                os.fsync(folders[-1])
                for folder in reversed(names):
                    folders.pop()
                    try:
                        os.rmdir(folder, dir_fd=folders[-1])
                    except FileNotFoundError:
                        pass
                    except OSError:
                        return  # not empty, or not ours to remove
                    os.fsync(folders[-1])

        try:
            self._guard(path, remove)
        except NotFound:
            pass

    def discard_all(self, paths: Sequence[str]) -> builtins.list[Linked]:
        return discard_each(self, paths)

    @staticmethod
    def _opened(opened: ExitStack, name: str, folder: int | None = None) -> int:
        """Open a folder inside a folder, without following a link."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        try:
            fd = (
                os.open(name, flags)
                if folder is None
                else os.open(name, flags | os.O_NOFOLLOW, dir_fd=folder)
            )
        except OSError:
            if folder is not None and stat.S_ISLNK(
                os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
            ):
                raise Linked(f"{name} is a symbolic link; its target is not deleted") from None
            raise
        opened.callback(os.close, fd)
        return fd

    def close(self) -> None:
        pass

    # lock

    def lock(self, path: str, holder: str, *, take: bool = False) -> Lock:
        target = self._file(path)
        text = one_line(holder).encode()[: HOLDER_BYTES_MAX - 1] + b"\n"
        return self._guard(
            path,
            lambda: self.reserve.spending(
                lambda: self._take(target, text) if take else self._acquire(target, path, text)
            ),
        )

    def _acquire(self, target: str, path: str, text: bytes) -> Lock:
        def open_() -> int:
            try:
                return self._new(target)
            except FileExistsError:
                # Opening overwrites the file; through a link, that would be another file.
                return os.open(target, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)

        for _ in range(RACES_MAX):
            fd = self._folders.with_folder_of(target, open_)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                opened_file = os.fstat(fd)
                there = os.stat(target)
                if (opened_file.st_dev, opened_file.st_ino) != (there.st_dev, there.st_ino):
                    # The file was replaced since it was opened: this lock excludes no process.
                    raise FileNotFoundError
                # Write first, and then cut longer old text: a reader takes the first line, and sees
                # either the old or the new one.
                os.pwrite(fd, text, 0)
                os.ftruncate(fd, len(text))
            except FileNotFoundError:
                os.close(fd)
            except BlockingIOError:
                present = os.pread(fd, HOLDER_BYTES_MAX, 0)
                os.close(fd)
                raise Locked(path, present.partition(b"\n")[0].decode(errors="replace")) from None
            except OSError as error:
                os.close(fd)
                if error.errno in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
                    raise Unsupported(
                        f"this file system has no flock: {os.strerror(error.errno)}", path
                    ) from error
                raise
            else:
                return LocalLock(fd)
        raise Unavailable("the lock file was replaced at each attempt; try again", path)

    def _take(self, target: str, text: bytes) -> Lock:
        """Replace the lock file by a new one that is already locked: the name is never free in
        between."""
        fd, temporary = self._temporary(target)
        try:
            os.pwrite(fd, text, 0)
            os.replace(temporary, target)
        except BaseException:
            os.close(fd)
            raise
        return LocalLock(fd)

    # parts

    def _file(self, path: str) -> str:
        return self._prefix + check_path(path)

    @staticmethod
    def _regular(status: os.stat_result, path: str) -> os.stat_result:
        if not stat.S_ISREG(status.st_mode):
            kind = "is a folder" if stat.S_ISDIR(status.st_mode) else "is not a regular file"
            raise NotFound(kind, path)
        return status

    @staticmethod
    def _guard(path: str, action: Callable[[], T]) -> T:
        try:
            return action()
        except OSError as error:
            raise translate(error, path) from error

    def _new(self, target: str) -> int:
        fd = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, self._file_mode)
        if self._file_mode != PRIVATE:
            os.fchmod(fd, self._file_mode)
        return fd

    def _publish(
        self, path: str, chunks: Callable[[], Iterable[bytes]], place: Callable[[str, str], None]
    ) -> None:
        target = self._file(path)

        def publish() -> None:
            fd, temporary = self._temporary(target)
            try:
                offset = 0
                for chunk in chunks():
                    write_all(fd, chunk, offset)
                    offset += len(chunk)
                os.fsync(fd)
                place(temporary, target)
            finally:
                try:
                    os.unlink(temporary)
                except FileNotFoundError:
                    pass  # a replace has moved it
                os.close(fd)
            self._folders.sync_name(target)

        self._guard(path, lambda: self.reserve.spending(publish))

    def _temporary(self, target: str) -> tuple[int, str]:
        """A new file next to `target`, locked by this process while it is open."""
        folder = os.path.dirname(target)

        def make() -> tuple[int, str]:
            temporary = f"{folder}/{TEMPORARY_PREFIX}{secrets.token_hex(8)}"
            fd = self._new(temporary)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
            except OSError:
                pass  # without flock nothing is removed either
            if os.fstat(fd).st_nlink == 0:  # removed between open and flock
                os.close(fd)
                raise FileNotFoundError
            return fd, temporary

        if folder not in self._swept:
            self._swept.add(folder)
            paths.sweep(folder)
        return self._folders.with_folder_of(target, make)

    def _preallocate(self, fd: int, length: int) -> int:
        """Reserve `length` bytes, but at most half of the free space that is not kept for
        maintenance: others write to this disk too. Returns how many were reserved. It is 0 if the
        file system cannot reserve or is full: then the segment grows with each write."""
        try:
            disk = os.fstatvfs(fd)
            free = disk.f_bavail * disk.f_frsize - self.reserve.floor()
            length = max(min(length, free // 2), 0)
            if length:
                os.posix_fallocate(fd, 0, length)
        except OSError as error:
            if error.errno not in _CANNOT_RESERVE:
                raise
            os.ftruncate(fd, 0)  # free the part that was reserved before the disk was full
            return 0
        except AttributeError:
            return 0  # macOS
        return length


def opened(opening: Opening) -> LocalStore:
    """A store in a folder that exists or can be created. Raises `StorageError` if the path, or the
    part of it that exists, is not a folder."""
    store = LocalStore(folder_of(opening.url), opening.file_mode)
    above = store.root
    while not os.path.lexists(above):
        above = os.path.dirname(above)
    if not os.path.isdir(above):
        raise StorageError(f"{above} is not a folder; pass a folder or a new path")
    return store


def folder_of(url: str) -> str:
    """The folder of a URL, or of a path, which may have a question mark. Raises `StorageError`."""
    _, separator, path = url.partition("://")
    if not separator:
        return url
    path = path.removeprefix("localhost")
    if not path.startswith("/"):
        raise StorageError("a file URL has three slashes, as in file:///var/lib/maps")
    return path
