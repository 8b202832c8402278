"""Errors of a storage. The log turns them into its own public errors (`imap_wal.errors`)."""

from __future__ import annotations


class StorageError(Exception):
    """The storage did not do what was asked. `path` is relative to the root of the store. `url`: of
    the root, if the text has to name it, because the text of a driver may name neither."""

    def __init__(self, message: str, path: str = "", url: str = "") -> None:
        super().__init__(": ".join(filter(None, (url, path, message))))
        self.path = path


class AlreadyExists(StorageError):
    """An exclusive create found a file of that name; nothing was changed."""


class NotFound(StorageError):
    """There is no file of that name."""


class NoSpace(StorageError):
    """The storage is full (ENOSPC, EDQUOT)."""


class Unavailable(StorageError):
    """The storage could not be reached, refused the credentials, or had an input/output error."""


def unreachable(why: str, path: str, url: str) -> Unavailable:
    """The error for a service that did not answer."""
    return Unavailable(
        f"cannot be reached ({why}); check that the URL is right, and that the service runs and "
        "accepts connections from this machine",
        path,
        url,
    )


def with_url(url: object, error: BaseException) -> str:
    """The text of an error of the store at `url`, text or a `Location`; it names the URL once."""
    text, named = str(error), str(url)
    return text if named and named in text else f"{named}: {text}"


class Linked(StorageError):
    """The path of a file to discard has a symbolic link in it; nothing was changed."""


class Unsupported(StorageError):
    """The storage cannot do this at all; `Capabilities` says so."""


class Locked(StorageError):
    """Another process holds the lock; `holder` is the text it wrote about itself."""

    def __init__(self, path: str, holder: str) -> None:
        super().__init__(f"held by {holder or 'an unknown process'}", path)
        self.holder = holder
