"""Reads files that only root or the user of this process may write: secrets, and lists of the peers
that may connect.

The owner of a file, and everyone who may write to a folder above it, can change its content. So
each part of the path is checked, from `/` on and through symbolic links:

    owner      root, or the user of this process
    folders    only the owner may write; others too if the folder is sticky, like `/tmp`: there,
               a user cannot replace the files of another user
    a secret   mode 0600 or 0400; if root owns it, its group may read it
    a list     only the owner may write

The group may read root's files because Kubernetes (with `fsGroup`) and systemd's `LoadCredential=`
pass a secret to one process in this way: root owns the file, and only that process is in the group
(or in an access list, which is shown as the group's permission). `SecretFile.java` does the same
in the plug-in.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path

from imap_wal.errors import InvalidSetting

BYTES_MAX = 1 << 20
"""At most this number of bytes of a file is read."""
LINKS_MAX = 40
"""The most symbolic links in one path; the limit of Linux."""

_DESCRIPTORS = re.compile(r"/proc/\d+/fd")


def read_secret_file(path: str | Path) -> bytes:
    """The content of a file of secrets. Raises `InvalidSetting` if another user may read or replace
    it, and OSError if it cannot be read."""
    return _read(path, "has secrets", 0o077)


def read_trusted_file(path: str | Path) -> bytes:
    """The content of a file that everyone may read. Raises `InvalidSetting` if another user may
    change or replace it, and OSError if it cannot be read."""
    return _read(path, "says who may connect", 0o022)


def _read(path: str | Path, purpose: str, refused: int) -> bytes:
    about = f"{path} {purpose}, and"
    with Path(_resolved(os.fspath(path), about)).open("rb") as file:
        status = os.fstat(file.fileno())
        _check_owner(str(path), status, about)
        if status.st_uid == 0:
            refused &= ~0o040
        if status.st_mode & refused:
            may, remedy = ("open it", "go=") if refused & 0o004 else ("change it", "go-w")
            raise InvalidSetting(
                f"{about} other users may {may} ({stat.filemode(status.st_mode)}); run: chmod "
                f"{remedy} {path}"
            )
        return file.read(BYTES_MAX)


def _resolved(path: str, about: str) -> str:
    """The path without links. All its parts are checked except the file itself."""
    left = _parts(os.path.join(os.getcwd(), path))
    at, links = "/", 0
    _check_folder(at, os.lstat(at), about)
    while left:
        part = left.pop()
        if part == "..":
            at = os.path.dirname(at)
            continue
        joined = os.path.join(at, part)
        status = os.lstat(joined)
        if stat.S_ISLNK(status.st_mode):
            _check_owner(joined, status, about)
            if _DESCRIPTORS.fullmatch(at):
                return joined  # a pipe, as in `--key-file <(command)`, has no path
            links += 1
            if links > LINKS_MAX:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            target = os.readlink(joined)
            at = "/" if target.startswith("/") else at
            left += _parts(target)
            continue
        if stat.S_ISDIR(status.st_mode):
            _check_folder(joined, status, about)
        at = joined
    return at


def _parts(path: str) -> list[str]:
    """The parts of a path, the last one first."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _check_owner(place: str, status: os.stat_result, about: str) -> None:
    # Numbers, not names: looking up a name may need a server, and the agent's loop may be waiting.
    own = os.geteuid()
    if status.st_uid not in (0, own):
        allowed = "root" if own == 0 else f"root or user {own}, who runs this process"
        raise InvalidSetting(
            f"{about} {place} belongs to user {status.st_uid}, not to {allowed}; check it, "
            f"then run: chown -h {own} {place}"
        )


def _check_folder(folder: str, status: os.stat_result, about: str) -> None:
    _check_owner(folder, status, about)
    if status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX:
        raise InvalidSetting(
            f"{about} other users may write to the folder {folder} "
            f"({stat.filemode(status.st_mode)}); run: chmod go-w {folder}"
        )
