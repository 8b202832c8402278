"""The files and folders below the root of a local store."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from storage_backends.descriptors import sync_folder, translate
from storage_backends.interface import StoredFile
from storage_backends.paths import TEMPORARY_PREFIX, check_path, folder_prefix, is_path
from storage_backends.reserve import RESERVE_NAME

LOST_AND_FOUND = "lost+found"
"""ext4 has it in the root of a disk; only root may read it."""


def files(root: str, folder: str) -> list[StoredFile]:
    """`SegmentStore.list`. Not a snapshot: it may or may not show changes made while a folder is
    read."""
    listed = [
        StoredFile(path, status.st_size, status.st_mtime_ns // 1_000_000)
        for path, status in _walk(root, folder_prefix(folder))
    ]
    listed.sort(key=lambda file: file.path)
    return listed


def folders(root: str, folder: str) -> list[str]:
    """`SegmentStore.folders`."""
    try:
        with os.scandir(_place(root, folder)) as entries:
            return sorted(
                entry.name
                for entry in entries
                if entry.name != LOST_AND_FOUND and is_path(entry.name) and _is_dir(entry)
            )
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise translate(error, folder) from error


def _walk(root: str, folder: str) -> Iterator[tuple[str, os.stat_result]]:
    try:
        with os.scandir(_place(root, folder)) as entries:
            present = list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise translate(error, folder) from error
    for entry in present:
        if entry.name.startswith(TEMPORARY_PREFIX) or (
            entry.name in (LOST_AND_FOUND, RESERVE_NAME) and not folder
        ):
            continue
        path = folder + entry.name
        try:
            if _is_dir(entry):
                if is_path(path) and not (entry.is_symlink() and _leads_up(root, path)):
                    yield from _walk(root, f"{path}/")
            elif stat.S_ISREG((status := entry.stat()).st_mode):
                yield path, status  # a read of a FIFO or a device might never return
        except FileNotFoundError:
            continue  # deleted since
        except OSError as error:
            if error.errno != errno.ELOOP:  # a link to itself
                raise translate(error, path) from error


def _leads_up(root: str, path: str) -> bool:
    """Whether a link leads to a folder that it is in: then a walk through it never ends."""
    target = os.stat(_place(root, path))
    folder = os.path.dirname(_place(root, path))
    while not os.path.samestat(target, os.stat(folder)):
        if folder == root:
            return False
        folder = os.path.dirname(folder)
    return True


def _is_dir(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno == errno.ELOOP:  # a link to itself
            return False
        raise


def _place(root: str, path: str) -> str:
    return f"{root.rstrip('/')}/{check_path(path.rstrip('/'))}" if path else root


# The folders of a local store: created when they are needed, made durable, removed when they are
# empty.

PRIVATE_FOLDER = 0o700
RACES_MAX = 100
"""How often to try again when another process removes the folder or replaces the lock file."""

T = TypeVar("T")


class LocalFolders:
    """The folders from `root` down; new ones get `mode`. A mode wider than private is set whatever
    the umask. Paths are absolute; methods raise OSError."""

    def __init__(self, root: str, mode: int) -> None:
        self._root, self._mode = root, mode
        self._known: dict[str, tuple[int, int]] = {}
        """Folders whose own name is durable, by device and inode: a folder that was removed and
        created again is another one."""

    def with_folder_of(self, target: str, action: Callable[[], T]) -> T:
        """Run an action that needs the folder of `target`. Creates a missing folder, and creates it
        again if another process has just removed it as empty."""
        for _ in range(RACES_MAX):
            try:
                return action()
            except FileNotFoundError:
                self._make(os.path.dirname(target))
        return action()

    def sync_name(self, target: str) -> None:
        """Make the entry of `target` durable, and those of the folders above it, once each: another
        process may have created them without having synced them yet. A file in a folder does not
        prove that it did: it may have been killed before its sync."""
        folder = os.path.dirname(target)
        status = sync_folder(folder)
        identity = (status.st_dev, status.st_ino)
        if folder != self._root and self._known.get(folder) != identity:
            self.sync_name(folder)
            self._known[folder] = identity

    def sync_deletion(self, target: str) -> None:
        """Make the deletion of `target` durable, and remove the folders above it that it left
        empty."""
        folder = os.path.dirname(target)
        while True:
            try:
                sync_folder(folder)
            except FileNotFoundError:
                pass  # removed as empty by another deletion; the sync continues above it
            if folder == self._root:
                return
            try:
                os.rmdir(folder)
            except FileNotFoundError:
                pass
            except OSError:
                return  # not empty, or not ours to remove
            folder = os.path.dirname(folder)

    def _make(self, folder: str) -> None:
        parent = os.path.dirname(folder)
        try:
            self._new(folder)
        except FileExistsError:
            return
        except FileNotFoundError:
            if parent == folder:
                raise
            self._make(parent)
            try:
                self._new(folder)
            except FileExistsError:
                return
            except FileNotFoundError:
                # A deletion removed the empty parent, and the caller tries again; or the folder
                # cannot be created, and the caller fails.
                return
        try:
            sync_folder(parent)
        except FileNotFoundError:
            pass  # a deletion removed both as empty: the caller tries again

    def _new(self, folder: str) -> None:
        os.mkdir(folder, self._mode)
        if self._mode != PRIVATE_FOLDER:
            os.chmod(folder, self._mode)


# Finds the file system of a directory, in the kernel's table of mounts.

NETWORK = re.compile(r"nfs\d*|cifs|smb\d*|ceph|lustre|glusterfs|fuse\..*|9p|afs")
"""File systems whose cache may still show a file that another client has removed."""

MOUNTS = Path("/proc/self/mountinfo")


def is_network(folder: str, mounts: Path = MOUNTS) -> bool:
    """Whether the folder, or the nearest existing one above it, is on a network file system. False
    if the kernel has no such table."""
    path = os.path.realpath(folder)
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    nearest: tuple[int, str] = (-1, "")
    for line in lines:
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(), after.split()
        if len(fields) < 5 or not kinds:
            continue
        # The table has \040 for a blank.
        point = re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), fields[4])
        if (path == point or path.startswith(f"{point.rstrip('/')}/")) and len(point) >= nearest[0]:
            nearest = len(point), kinds[0]
    return bool(NETWORK.fullmatch(nearest[1]))
