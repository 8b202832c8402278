"""What a storage can answer besides success. The log turns these into its own public errors
(`imap_wal.errors`)."""

from __future__ import annotations


class StorageError(Exception):
    """The storage did not do what was asked. `path` names the file, relative to the root of the
    store."""

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path


class AlreadyExists(StorageError):
    """An exclusive create found the name taken; nothing was changed."""


class NotFound(StorageError):
    """There is no file of that name."""


class NoSpace(StorageError):
    """The storage is full (ENOSPC, EDQUOT)."""


class Unavailable(StorageError):
    """The storage could not be reached, refused the credentials, or failed with an input/output
    error."""


class Linked(StorageError):
    """A symbolic link is in the path of a file that was to be discarded; nothing was changed."""


class Unsupported(StorageError):
    """The storage cannot do this at all; `Capabilities` says so beforehand."""


class Locked(StorageError):
    """Somebody else holds the lock; `holder` is what they wrote about themselves."""

    def __init__(self, path: str, holder: str) -> None:
        super().__init__(f"held by {holder or 'an unknown process'}", path)
        self.holder = holder
