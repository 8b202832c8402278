"""What the error of an fsspec driver means. Each driver has exceptions of its own, and those of the
libraries that it uses."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator, Mapping

from storage_backends.errors import (
    AlreadyExists,
    NoSpace,
    NotFound,
    StorageError,
    Unavailable,
    unreachable,
)

_NO_ANSWER = frozenset(
    [
        "ConnectionError",  # Python, botocore, requests
        "ClientConnectionError",  # aiohttp
        "HTTPClientError",  # botocore
        "ServiceRequestError",  # azure: no connection
        "ServiceResponseError",  # azure: no answer
        "TransportError",  # google.auth
    ]
)
"""Names of classes for a service that does not answer; their subclasses count too."""
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
_ABSENT = (0, 404, 410)
"""HTTP statuses of a missing object; 0: unknown."""


def service_code(error: BaseException) -> tuple[str, int]:
    """The service's own code and HTTP status ("" and 0: unknown), from the causes of an error, for
    any driver."""
    for cause in _causes(error):
        response = getattr(cause, "response", None)
        if isinstance(response, Mapping):  # botocore
            return str(response.get("Error", {}).get("Code", "")), int(
                response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            )
        for name in ("status_code", "status", "code"):  # azure, aiohttp, gcsfs
            status = getattr(cause, name, None)
            if isinstance(status, int):
                return str(getattr(cause, "error_code", "")), status
    return "", 0


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, and what it was raised from."""
    cause: BaseException | None = error
    seen = set[int]()
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


def is_unreachable(error: BaseException) -> bool:
    """Whether a driver got no answer from its service. The libraries of the drivers have classes of
    their own for this, and not all of them are an `OSError`."""
    return service_code(error) == ("", 0) and any(
        isinstance(cause, TimeoutError | socket.gaierror)
        or any(ancestor.__name__ in _NO_ANSWER for ancestor in type(cause).__mro__)
        for cause in _causes(error)
    )


def translated(error: Exception, path: str, url: str) -> StorageError:
    """The error of the store at `url` for an error of a driver."""
    if isinstance(error, FileExistsError):
        return AlreadyExists("an object of this name already exists", path)
    code, status = service_code(error)
    if code in _NO_BUCKET:  # a misspelt bucket must not look like an empty map
        return Unavailable(f"the bucket or container is missing: {error}", path, url)
    shown: BaseException = error
    if isinstance(error, FileNotFoundError):
        # The driver for HTTP says that a file is missing if its server gives no answer, refuses
        # the request or fails.
        if not is_unreachable(error) and status in _ABSENT:
            return NotFound("no such object", path)
        shown = next((cause for cause in _causes(error) if cause is not error), error)
    text = f"{type(shown).__name__}: {shown}"
    if is_unreachable(error):
        return unreachable(text, path, url)
    number = error.errno if isinstance(error, OSError) else None
    if (
        number in (errno.ENOSPC, errno.EDQUOT)
        or status == 507
        or code in ("QuotaExceeded", "XMinioStorageFull")
    ):
        return NoSpace(text, path, url)
    if (
        isinstance(error, PermissionError)
        or status in (401, 403)
        or "Credentials" in type(error).__name__
    ):
        return Unavailable(
            f"refused: {text} (check the credentials and what they allow)", path, url
        )
    return Unavailable(f"the storage failed: {text}", path, url)
