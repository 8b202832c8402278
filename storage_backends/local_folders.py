"""The folders of a local store: created when they are needed, made durable, removed when they are
empty."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from storage_backends.descriptors import sync_folder

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
