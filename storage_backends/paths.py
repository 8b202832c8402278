"""Valid paths inside a store; the same rule for every store."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterable
from contextlib import suppress

from storage_backends.errors import StorageError
from storage_backends.registry import backend_of

_BAD_PATH = re.compile(r"(?:^|/)\.{0,2}(?:/|$)|[\0-\x1f\ud800-\udfff]")
"""Empty, `.` and `..` components would leave the root or give one file two names. Some systems end
a name at a control character. A lone surrogate is a byte of a name that is not UTF-8."""


def check_path(path: str) -> str:
    """The path itself; `StorageError` if it is not valid."""
    if _BAD_PATH.search(path):
        raise StorageError("not a path inside the store", path)
    return path


def is_path(path: str) -> bool:
    """Whether `check_path` accepts it. A listing may find others."""
    return _BAD_PATH.search(path) is None


def folder_prefix(folder: str) -> str:
    """The prefix of the paths of all files below `folder` ("" is the root). Raises `StorageError`
    if it is not valid."""
    return f"{check_path(folder.rstrip('/'))}/" if folder else ""


NUMBER_MAX = 2**32 - 1
"""No log reaches this number of segments, epochs, incarnations or manifests."""


def number_in(text: str, width: int = 8) -> int | None:
    """The number in a file's name, or None if imap-wal names no file so: with other digits than 0
    to 9, with too many or too few zeros, or with an impossible number. Otherwise two files could
    have the same number, and the file of a number could not be found."""
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(NUMBER_MAX)):
        return None
    number = int(text)
    return number if number <= NUMBER_MAX and f"{number:0{width}d}" == text else None


def one_line(text: str) -> str:
    """A holder's text on one line."""
    return " ".join(text.split())


# Removes temporary files that killed processes left in a local directory.
#
# The process that writes such a file has a `flock` on it. So a file that can be locked belongs to
# no process any more. A file that cannot be examined is kept.

TEMPORARY_PREFIX = ".#tmp-"
"""Percent-encoding replaces the `#`, so no caller's name begins like this."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def sweep(folder: str) -> None:
    """Remove what is left in a folder."""
    with suppress(OSError):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in os.listdir(fd):
                _remove_dead(name, fd)
        finally:
            os.close(fd)


def sweep_below(root: str, folder: str, *, remove: bool = True) -> dict[str, int]:
    """Remove what is left in all folders below a folder, and then the empty folders. Links below
    `root` are not followed. Returns the size of each file that was left; without `remove`, nothing
    is removed."""
    sizes: dict[str, int] = {}
    with suppress(OSError):
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in folder.split("/"):
                above, fd = fd, os.open(name, _FOLDER, dir_fd=fd)
                os.close(above)
            for above_files, folders, files, folder_fd in os.fwalk(topdown=False, dir_fd=fd):
                for name in files:
                    size = _remove_dead(name, folder_fd, remove)
                    if size is not None:
                        sizes[os.path.normpath(f"{folder}/{above_files}/{name}")] = size
                for name in folders if remove else ():
                    with suppress(OSError):  # not empty, or a link
                        os.rmdir(name, dir_fd=folder_fd)
        finally:
            os.close(fd)
    return sizes


def _remove_dead(name: str, folder: int, remove: bool = True) -> int | None:
    """The size of a file that a killed process left; None: it is none."""
    if not name.startswith(TEMPORARY_PREFIX):
        return None
    with suppress(OSError):
        fd = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            size = os.fstat(fd).st_size
            if remove:
                os.unlink(name, dir_fd=folder)
            return size
        finally:
            os.close(fd)
    return None


# Symbolic links below the root of a local log. Reads and writes follow them; nothing that is
# reached through them is discarded (`SegmentStore.discard`).


def links(url: str, paths: Iterable[str]) -> dict[str, str]:
    """The paths that are a link, or are reached through one, with the first link on the way (its
    full path). `paths` are relative to the root. {} if `url` is not a local folder."""
    root = local_folder(url)
    seen: dict[str, bool] = {}
    first_links: dict[str, str] = {}
    for path in paths:
        full = root
        for name in path.split("/") if root else ():
            full = f"{full}/{name}"
            if full not in seen:
                seen[full] = os.path.islink(full)
            if seen[full]:
                first_links[path] = full
                break
    return first_links


def local_folder(url: str) -> str:
    """The local folder at a URL without options; "" for other storages."""
    if not backend_of(url).is_folder:
        return ""
    path = url.partition("://")[2].removeprefix("localhost") if "://" in url else url
    return os.path.abspath(os.path.expanduser(path)).rstrip("/")
