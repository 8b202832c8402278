"""Valid paths inside a store; the same rule for every store."""

from __future__ import annotations

import re

from storage_backends.errors import StorageError

_BAD_PATH = re.compile(r"(?:^|/)\.{0,2}(?:/|$)|[\0-\x1f]")
"""Empty, `.` and `..` components would leave the root or give one file two names. Some systems end
a name at a control character."""


def check_path(path: str) -> str:
    """The path itself; `StorageError` if it is not valid."""
    if _BAD_PATH.search(path):
        raise StorageError("not a path inside the store", path)
    return path


def folder_prefix(folder: str) -> str:
    """The prefix of the paths of all files below `folder` ("" is the root)."""
    return f"{check_path(folder.rstrip('/'))}/" if folder else ""


def one_line(text: str) -> str:
    """A holder's text on one line."""
    return " ".join(text.split())


def is_wal(path: str) -> bool:
    """Whether a file or folder is in the `wal` of a node, or is that folder."""
    parts = path.split("/", 5)
    return len(parts) >= 5 and parts[2] == "nodes" and parts[4] == "wal"
