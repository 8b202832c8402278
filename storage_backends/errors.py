"""Errors of a storage. The log turns them into its own public errors (`imap_wal.errors`)."""

from __future__ import annotations


class StorageError(Exception):
    """The storage did not do what was asked. `path` is relative to the root of the store."""

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path


class AlreadyExists(StorageError):
    """An exclusive create found a file of that name; nothing was changed."""


class NotFound(StorageError):
    """There is no file of that name."""


class NoSpace(StorageError):
    """The storage is full (ENOSPC, EDQUOT)."""


class Unavailable(StorageError):
    """The storage could not be reached, refused the credentials, or had an input/output error."""


class Linked(StorageError):
    """The path of a file to discard has a symbolic link in it; nothing was changed."""


class Unsupported(StorageError):
    """The storage cannot do this at all; `Capabilities` says so."""


class Locked(StorageError):
    """Another process holds the lock; `holder` is the text it wrote about itself."""

    def __init__(self, path: str, holder: str) -> None:
        super().__init__(f"held by {holder or 'an unknown process'}", path)
        self.holder = holder
