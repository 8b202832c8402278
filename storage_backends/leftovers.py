"""Removes temporary files that killed processes left in a local directory.

The process that writes such a file has a `flock` on it. So a file that can be locked belongs to no
process any more. A file that cannot be examined is kept.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress

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


def sweep_below(root: str, folder: str) -> None:
    """Remove what is left in all folders below a folder, and then the empty folders. Links below
    `root` are not followed."""
    with suppress(OSError):
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in folder.split("/"):
                above, fd = fd, os.open(name, _FOLDER, dir_fd=fd)
                os.close(above)
            for _, folders, files, folder_fd in os.fwalk(topdown=False, dir_fd=fd):
                for name in files:
                    _remove_dead(name, folder_fd)
                for name in folders:
                    with suppress(OSError):  # not empty, or a link
                        os.rmdir(name, dir_fd=folder_fd)
        finally:
            os.close(fd)


def _remove_dead(name: str, folder: int) -> None:
    if not name.startswith(TEMPORARY_PREFIX):
        return
    with suppress(OSError):
        fd = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(name, dir_fd=folder)
        finally:
            os.close(fd)
