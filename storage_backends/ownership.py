"""Checks who owns a local folder, before a user works on the log of another user."""

from __future__ import annotations

import os
import pwd
import stat

from storage_backends.location import PRIVATE, Place, located
from storage_backends.paths import local_folder


def doubts(url: Place) -> list[str]:
    """Warnings before this user works on the log at `url`. [] for the user's own log, a log that
    does not exist, and storages that are not a local folder. Raises the error of `located`."""
    place = located(url)
    path = local_folder(place.url)
    if not path:
        return []
    try:
        status = os.stat(path)
    except OSError:
        return []
    found_doubts = []
    if status.st_uid != os.geteuid():
        found_doubts.append(
            f"{place} belongs to another user, {user_name(status.st_uid)}, and this process "
            f"is {user_name(os.geteuid())}: "
            "its owner decides what it contains, and may not be able to read what is written "
            f"now; run this as {user_name(status.st_uid)}"
        )
    if status.st_mode & stat.S_IWOTH:
        found_doubts.append(
            f"every user of this machine may write to {place}, and so decides what a restart "
            f"loads; run: chmod o-w {path}"
        )
    return found_doubts


def mode_of(url: Place) -> int:
    """The mode of new files in the log at `url`: the users that its root and all its namespaces
    admit. `PRIVATE` if there is no local log. Only the group can get the right to write. Raises the
    error of `located`."""
    root = local_folder(located(url).url)
    if not root:
        return PRIVATE
    try:
        with os.scandir(root) as entries:
            inner = [
                entry.stat(follow_symlinks=False).st_mode
                for entry in entries
                if entry.is_dir() and not entry.name.startswith((".", "lost+found"))
            ]
        mode_bits = os.stat(root).st_mode
    except OSError:
        return PRIVATE
    for mode in inner:
        mode_bits &= mode
    return PRIVATE | (mode_bits & 0o064 if inner else 0)


def user_name(uid: int) -> str:
    """A user's name for messages."""
    try:
        return f"{pwd.getpwuid(uid).pw_name} ({uid})"
    except KeyError:
        return f"user {uid}"
