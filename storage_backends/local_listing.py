"""The files and folders below the root of a local store."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator

from storage_backends.descriptors import translate
from storage_backends.interface import StoredFile
from storage_backends.leftovers import TEMPORARY_PREFIX
from storage_backends.paths import check_path, folder_prefix, is_path
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
