"""Immutable objects through any fsspec file system: S3, Google Cloud Storage, Azure and others.

Objects cannot grow, so the log writes one object per commit. The exclusive create decides between
two writers, and it is only as good as the service. The drivers of four services turn
`mode="create"` into a condition that the service checks (S3 and Azure `If-None-Match: *`, GCS
`ifGenerationMatch=0`, OSS `x-oss-forbid-overwrite: true`; for content in several parts, on the
request that completes them). Every other driver first checks and then writes, which is not atomic:
`exclusive_create` is False there, and `create` raises `Unsupported`. It also does so if a program
registered a driver for these schemes that inherits `pipe_file` or `put_file` from fsspec.

Some services with the API of S3 ignore the condition and overwrite, and so do some drivers. So
before its first create, and before its first create from a file, a store creates a probe object
twice, and fails if the second create succeeds.

A driver gets only the user's options, because an option that it does not know would be an error.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import os
import socket
import tempfile
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from datetime import datetime
from glob import has_magic
from secrets import token_hex
from typing import Any, BinaryIO, TypeVar, cast

import fsspec
from fsspec.asyn import AsyncFileSystem
from fsspec.dircache import DirCache
from fsspec.spec import AbstractFileSystem

from storage_backends.errors import (
    AlreadyExists,
    Linked,
    NoSpace,
    NotFound,
    StorageError,
    Unavailable,
    Unsupported,
    unreachable,
)
from storage_backends.gated import HeldByAnswer
from storage_backends.interface import Capabilities, Held, StoredFile
from storage_backends.lease import DEFAULT_LEASE_MS, Immutable, system_clock_ms
from storage_backends.local import LocalStore, folder_of
from storage_backends.location import PRIVATE
from storage_backends.options import demand_spelt
from storage_backends.paths import check_path, folder_prefix
from storage_backends.registry import Opening, backend_of, scheme_of
from storage_backends.veil import Veil

_PROBE_PREFIX = ".probe-"
_CONFLICTS_MAX = 10
_VERSION_KEYS = ("ETag", "etag", "VersionId", "generation", "ino")
_MODIFIED_KEYS = ("LastModified", "last_modified", "updated", "mtime", "modificationTime")

T = TypeVar("T")


class ObjectStore(Immutable):
    """A `SegmentStore` of immutable objects. An `AlreadyExists` from `create` may be the caller's
    own object, which a driver sent twice after the first answer was lost. A caller that must know
    puts a nonce into the content. Methods raise the errors that `SegmentStore` names."""

    def __init__(
        self,
        url: str,
        storage_options: Mapping[str, Any] | None = None,
        *,
        clock_ms: Callable[[], int] = system_clock_ms,
        lease_ms: int = DEFAULT_LEASE_MS,
        driver: type[AbstractFileSystem] | None = None,
    ) -> None:
        """`driver`: of this project. None: the one that fsspec has for the scheme."""
        protocol, backend = scheme_of(url), backend_of(url)
        options = dict(storage_options or {})
        self._veil = Veil(options)
        try:
            # A separate instance without a listing cache: otherwise fsspec may return a shared one
            # that has a cache. fsspec itself uses this option; a driver does not get it.
            opened: tuple[Any, str] = (
                (driver(**options), url.partition("://")[2])
                if driver
                else fsspec.core.url_to_fs(url, **{**options, "skip_instance_cache": True})
            )
            self._fs, self._root = opened[0], opened[1].rstrip("/")
            demand_spelt(type(self._fs), options)
            self._fs.dircache = DirCache(use_listings_cache=False)
        except ImportError as error:
            advice = (
                f"pip install the fsspec driver ({error})"
                if backend.library == "fsspec"
                else f"pip install 'imap-wal[{backend.extra}]'"
            )
            raise StorageError(
                f"the driver for {protocol}:// is not installed: {advice}"
            ) from error
        except ValueError as error:
            if protocol in fsspec.available_protocols():
                raise
            raise StorageError(
                f"no driver knows {protocol}://; a URL begins as in file:///var/lib/maps or "
                "s3://bucket/maps"
            ) from error
        kind = type(self._fs)
        self._driver = f"{kind.__module__}.{kind.__qualname__}"
        self._given = ", ".join(sorted(options))
        self._has_find = kind.find is not AbstractFileSystem.find or (
            issubclass(kind, AsyncFileSystem) and kind._find is not AsyncFileSystem._find
        )
        # With its options: another process of this program may have to open it, for example a
        # worker of Spark. Its text does not have them.
        self.url = url.rstrip("/")
        self.capabilities = Capabilities(
            durable_append=False,
            durable_sync=True,
            exclusive_create=backend.conditional_create and _has_own_creates(kind),
            atomic_replace=backend.conditional_create,
            preallocate=False,
            locks=False,
        )
        self._clock_ms = clock_ms
        self._lease_ms = lease_ms
        self._ignoring = f"; {backend.ignoring}" if backend.ignoring else ""
        self._deleted_at_once = backend.deleted_at_once
        self._probed: set[str] = set()
        """The methods of the driver that are known to respect the condition."""
        self._probe_mutex = threading.Lock()

    # reading

    def list(self, folder: str) -> builtins.list[StoredFile]:
        prefix = folder_prefix(folder)
        nothing: dict[str, Any] = {}
        infos = self._call(
            folder,
            lambda: self._find(self._full(prefix.rstrip("/"))),
            missing=nothing,
        )
        start = len(self._root) + 1
        files = [
            StoredFile(name[start:], int(info.get("size") or 0), _modified_ms(info))
            for name, info in infos.items()
            # Some consoles create a key with a slash at its end as a folder.
            if info.get("type") != "directory" and not name.endswith("/")
        ]
        return sorted(
            (file for file in files if file.path.startswith(prefix) and not _is_probe(file.path)),
            key=lambda file: file.path,
        )

    def _find(self, full: str) -> dict[str, Any]:
        """The driver's information on each file below a folder."""
        if self._has_find:
            answer = self._fs.find(full, detail=True)
            if isinstance(answer, Mapping):
                return dict(answer)
            # adlfs answers with a list for the path of a file. Then nothing is below it.
            if any(name.strip("/") != full.strip("/") for name in answer):
                raise TypeError("the driver lists files without their sizes")
            return {}
        # fsspec's own `find` treats a folder as empty if its listing fails with an `OSError`, and
        # many drivers raise one: then a server that cannot be reached would be an empty log.
        files: dict[str, Any] = {}
        waiting, seen = [full], {full}
        while waiting:
            folder = waiting.pop()
            try:
                listed = self._fs.ls(folder, detail=True)
            except FileNotFoundError as error:
                if folder == full or not isinstance(translated(error, "", ""), NotFound):
                    raise
                continue  # it was deleted meanwhile
            for info in listed:
                name = info["name"].rstrip("/")
                if info["type"] != "directory":
                    files[info["name"]] = info
                elif name not in seen:
                    seen.add(name)
                    waiting.append(name)
        return files

    def folders(self, folder: str) -> builtins.list[str]:
        prefix = folder_prefix(folder)
        nothing: builtins.list[Any] = []
        entries = self._call(
            folder,
            lambda: self._fs.ls(self._full(prefix.rstrip("/")), detail=True),
            missing=nothing,
        )
        return sorted(
            {
                info["name"].rstrip("/").rpartition("/")[2]
                for info in entries
                if info["type"] == "directory"
            }
        )

    def exists(self, path: str) -> bool:
        # Not fs.exists: some drivers return False for every error, and a writer would take its
        # fence for absent.
        info = self._call(path, lambda: self._fs.info(self._full(path)), missing=None)
        return info is not None and info.get("type") != "directory"

    def hold(self, path: str) -> Held:
        return HeldByAnswer(path, lambda: self._version(path))

    def _version(self, path: str) -> Hashable:
        """What distinguishes an object from others of the same name. An object that replaced it has
        another time, and often another version."""
        info = self._call(path, lambda: self._fs.info(self._full(path)))
        if info.get("type") == "directory":
            raise NotFound("is a folder", path)
        return tuple(str(info[key]) for key in (*_MODIFIED_KEYS, *_VERSION_KEYS) if info.get(key))

    def size(self, path: str) -> int:
        info = self._call(path, lambda: self._fs.info(self._full(path)))
        if info.get("type") == "directory":
            raise NotFound("is a folder", path)
        return int(info["size"])

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        end = None if length is None else offset + length
        if length == 0:
            self.size(path)
            return b""
        full = self._full(path)
        try:
            return bytes(self._fs.cat_file(full, start=offset, end=end))
        except FileNotFoundError as error:
            raise self._error(error, path) from self._veil.cause(error)
        except Exception as error:  # noqa: BLE001  # drivers raise anything
            if is_unreachable(error):
                raise self._error(error, path) from self._veil.cause(error)
            # For a range that begins at or after the end, some services return an error ("416"),
            # others nothing.
            if self.size(path) <= offset:
                return b""
            raise self._error(error, path) from self._veil.cause(error)

    def open_input(self, path: str) -> BinaryIO:
        return cast(BinaryIO, self._call(path, lambda: self._fs.open(self._full(path), "rb")))

    # writing

    def create(self, path: str, data: bytes) -> None:
        self._exclusive(
            path, "pipe_file", lambda: self._fs.pipe_file(self._full(path), data, mode="create")
        )

    def create_from(self, path: str, local_file: str) -> None:
        if not os.path.isfile(local_file):
            raise StorageError(f"no such local file: {local_file}", path)
        # From 100 MB on S3, the driver sends parts, which are invisible until the last request.
        # That request has the condition.
        self._exclusive(
            path,
            "put_file",
            lambda: self._fs.put_file(local_file, self._full(path), mode="create"),
        )

    def replace(self, path: str, data: bytes) -> None:
        self._writing(path, lambda: self._fs.pipe_file(self._full(path), data))

    def delete(self, path: str) -> None:
        self._call(path, lambda: self._fs.rm_file(self._full(path)), missing=None)

    def discard(self, path: str) -> None:
        self.delete(path)  # there are no links

    def discard_all(self, paths: Sequence[str]) -> builtins.list[Linked]:
        for first in range(0, len(paths), self._deleted_at_once):
            batch = paths[first : first + self._deleted_at_once]
            full = [self._full(path) for path in batch]
            # The driver would treat a star in a name as a pattern.
            if len(full) > 1 and not any(map(has_magic, full)):
                # It reports one error for all of them. Deleting one by one names the object.
                with contextlib.suppress(Exception):
                    self._fs.rm(full)
                    continue
            for path in batch:
                self.delete(path)
        return []

    def close(self) -> None:
        pass  # the driver closes its own connections

    # parts

    def _full(self, path: str) -> str:
        return f"{self._root}/{check_path(path)}" if path else self._root

    def _call(self, path: str, action: Callable[[], T], **missing: T) -> T:
        """The answer of the driver; `missing=…` is the result for an object that does not exist."""
        self._fs.invalidate_cache()  # some drivers cache listings whatever the options say
        try:
            return action()
        except FileNotFoundError as error:
            absent = translated(error, path, self.url)
            if "missing" in missing and isinstance(absent, NotFound):
                return missing["missing"]
            raise self._veil.over(absent) from self._veil.cause(error)
        except Exception as error:  # noqa: BLE001  # drivers raise anything
            raise self._error(error, path) from self._veil.cause(error)

    def _writing(self, path: str, action: Callable[[], object]) -> None:
        try:
            action()
        except FileNotFoundError as error:
            raise self._veil.over(
                Unavailable(f"the bucket or container is missing: {error}", path, self.url)
            ) from self._veil.cause(error)
        except Exception as error:  # noqa: BLE001  # drivers raise anything
            raise self._error(error, path) from self._veil.cause(error)

    def _error(self, error: Exception, path: str) -> StorageError:
        """What an error of the driver means. An error that is not the service's may be caused by an
        option: many drivers examine their options only at the first use."""
        meaning = translated(error, path, self.url)
        from_service = service_code(error) != ("", 0) or isinstance(
            error, OSError | NotImplementedError
        )
        if self._given and not from_service and not is_unreachable(error):
            meaning = Unavailable(
                f"{meaning}; the driver is {self._driver}, with the options {self._given}"
            )
            meaning.path = path
        return self._veil.over(meaning)

    def _exclusive(self, path: str, method: str, action: Callable[[], object]) -> None:
        check_path(path)
        if not self.capabilities.exclusive_create:
            raise Unsupported(
                f"the driver {self._driver} has no create that is atomic between processes", path
            )
        self._probe(method)
        self._exclusive_now(path, action)

    def _exclusive_now(self, path: str, action: Callable[[], object]) -> None:
        for attempt in range(_CONFLICTS_MAX):
            try:
                action()
                return
            except FileExistsError as error:
                raise self._veil.over(
                    AlreadyExists("an object of this name already exists", path)
                ) from self._veil.cause(error)
            except FileNotFoundError as error:
                raise self._veil.over(
                    Unavailable(f"the bucket or container is missing: {error}", path, self.url)
                ) from self._veil.cause(error)
            except Exception as error:  # noqa: BLE001  # drivers raise anything
                code, status = service_code(error)
                if status == 412 or code in ("PreconditionFailed", "412"):
                    raise self._veil.over(
                        AlreadyExists("an object of this name already exists", path)
                    ) from self._veil.cause(error)
                # For two conditional puts at the same moment, S3 answers 409 to one: it wrote
                # nothing and must be sent again.
                if code == "ConditionalRequestConflict" and attempt < _CONFLICTS_MAX - 1:
                    continue
                if status == 501:
                    raise self._veil.over(
                        Unsupported(
                            "the service does not know the condition of an exclusive create: "
                            f"{error}. Alibaba Cloud OSS answers so at its S3 interface: use "
                            "oss://bucket/path",
                            path,
                            self.url,
                        )
                    ) from self._veil.cause(error)
                raise self._error(error, path) from self._veil.cause(error)

    def _probe(self, method: str) -> None:
        with self._probe_mutex:
            if method not in self._probed and not self._keeps_condition(method):
                raise Unsupported(
                    f"{self.url} ignores the condition of an exclusive create: two writers "
                    "would overwrite each other; use a service and a driver that support it (the "
                    f"driver is {self._driver}{self._ignoring})"
                )
            self._probed.add(method)

    def _keeps_condition(self, method: str) -> bool:
        path = f"{_PROBE_PREFIX}{token_hex(8)}"
        full = self._full(path)
        try:
            self._exclusive_now(path, lambda: self._fs.pipe_file(full, b"1", mode="create"))
            if method == "pipe_file":
                self._exclusive_now(path, lambda: self._fs.pipe_file(full, b"2", mode="create"))
            else:
                with tempfile.NamedTemporaryFile() as file:
                    file.write(b"2")
                    file.flush()
                    self._exclusive_now(
                        path, lambda: self._fs.put_file(file.name, full, mode="create")
                    )
        except AlreadyExists:
            return True
        finally:
            # A probe that cannot be removed is left out of listings. Later operations report why.
            with contextlib.suppress(Exception):
                self._fs.rm_file(full)
        return False


class LocalObjects(Immutable, LocalStore):
    """A local directory used like an object store, for trials and tests. Creates are as exclusive
    and durable as those of `LocalStore`."""

    def __init__(
        self,
        root: str,
        *,
        clock_ms: Callable[[], int] = system_clock_ms,
        lease_ms: int = DEFAULT_LEASE_MS,
        file_mode: int = PRIVATE,
    ) -> None:
        super().__init__(root, file_mode)
        self.url = f"objects+file://{self.root}"
        self.capabilities = Capabilities(
            durable_append=False,
            durable_sync=True,
            exclusive_create=True,
            atomic_replace=True,
            preallocate=False,
            locks=False,
            stale_listings=self.capabilities.stale_listings,
        )
        self._clock_ms = clock_ms
        self._lease_ms = lease_ms


def opened(opening: Opening) -> ObjectStore:
    """The store of a URL that a driver of fsspec serves."""
    return ObjectStore(str(opening.url), opening.options, clock_ms=opening.clock_ms)


def opened_folder(opening: Opening) -> LocalObjects:
    """The store of objects in a local folder."""
    return LocalObjects(
        folder_of(opening.url), clock_ms=opening.clock_ms, file_mode=opening.file_mode
    )


def _has_own_creates(kind: type[AbstractFileSystem]) -> bool:
    """Whether a driver has its own methods that create: those of fsspec check whether the file
    exists, and then write it. (An asyncio driver must have its own.)"""
    return issubclass(kind, AsyncFileSystem) or (
        kind.pipe_file is not AbstractFileSystem.pipe_file
        and kind.put_file is not AbstractFileSystem.put_file
    )


def _modified_ms(info: Mapping[str, Any]) -> int:
    value = next((info[key] for key in _MODIFIED_KEYS if info.get(key)), None)
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return 0
    if isinstance(value, datetime):
        return int(value.timestamp() * 1000)
    if isinstance(value, int | float):
        # WebHDFS counts milliseconds, the others seconds.
        return int(value if value > 1e11 else value * 1000)
    return 0


def _is_probe(path: str) -> bool:
    return path.startswith(_PROBE_PREFIX)


# What the error of an fsspec driver means. Each driver has exceptions of its own, and those of the
# libraries that it uses.

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
    if isinstance(error, NotImplementedError):
        return Unsupported(str(error), path, url)
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
