"""Valid paths inside a store; the same rule for every store."""

from __future__ import annotations

import re

from storage_backends.errors import StorageError

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
