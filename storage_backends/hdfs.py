"""HDFS over WebHDFS, which needs no Hadoop on this machine.

A new file is written under a temporary name and renamed: a rename is atomic in the name node, and
fails if the name is taken. Each append is its own request (`op=APPEND`; the append mode of fsspec's
driver never asks where to send it). fsspec's driver makes the session with its Kerberos, tokens and
certificates. Requests are made here, so that errors keep their Hadoop class.

A process that is killed leaves its temporary file. Another process deletes the file when it is a
day old, by the clock of the name node: before its own first write into that folder, or in
`sweep_below`. If the first process was only slow, its rename fails, and nothing is lost.

WebHDFS has no hsync. An append that has returned is in the memory of every data node of its
pipeline. It survives the death of processes and of some machines, but not a power cut of all of
them. So `durable_sync` is False, unless the cluster sets `dfs.datanode.synconclose` and the caller
passes `sync_on_close=true`.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from secrets import token_hex
from typing import Any, BinaryIO, cast
from urllib.parse import quote, urlsplit

import requests
from fsspec.implementations.webhdfs import WebHDFS

from storage_backends.descriptors import read_local
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
from storage_backends.interface import Appender, Capabilities, Held, StoredFile, discard_each
from storage_backends.lease import DEFAULT_LEASE_MS, LeasedLocks, system_clock_ms
from storage_backends.options import demand_spelt
from storage_backends.paths import check_path, folder_prefix
from storage_backends.ranged_input import RangedInput
from storage_backends.registry import Opening
from storage_backends.veil import Veil

HTTP_PORT = 9870
"""HTTP ports of a name node. The port of an hdfs:// URL is for another protocol."""
TIMEOUT_S = (10, 120)
"""Timeouts to connect and to wait for an answer."""
READ_BUFFER_BYTES = 1 << 20
_TEMPORARY_PREFIX = ".#tmp-"
_LEFT_MS = 24 * 3_600_000
"""A temporary file that is older than this was left by a process that died."""
_RECOVERY_S = 120
_HEADERS = {"content-type": "application/octet-stream"}
_NO_SPACE = {
    "DSQuotaExceededException",
    "NSQuotaExceededException",
    "QuotaExceededException",
    "DiskOutOfSpaceException",
}
_REFUSED = {
    "AccessControlException",
    "SecurityException",
    "AuthenticationException",
    "InvalidToken",
}


class HdfsStore(LeasedLocks):
    """A `SegmentStore` on HDFS. `storage_options` are those of fsspec's WebHDFS (user, token,
    kerberos, use_https, …), and `http_port`, `sync_on_close`. Methods raise the errors that
    `SegmentStore` names."""

    def __init__(
        self,
        url: str,
        storage_options: Mapping[str, Any] | None = None,
        *,
        clock_ms: Callable[[], int] = system_clock_ms,
        lease_ms: int = DEFAULT_LEASE_MS,
    ) -> None:
        parts = urlsplit(url)
        options = dict(storage_options or {})
        self._veil = Veil(options)
        demand_spelt(WebHDFS, options, ("http_port", "sync_on_close"))
        port = (
            options.pop("http_port", None)
            or (parts.port if parts.scheme != "hdfs" else None)
            or HTTP_PORT
        )
        sync_on_close = bool(options.pop("sync_on_close", False))
        if not parts.hostname:
            raise StorageError(
                f"{url}: the name node is missing, as in {parts.scheme}://namenode/path"
            )
        if parts.username:
            options.setdefault("user", parts.username)
        if parts.scheme == "swebhdfs":
            options["use_https"] = True
        try:
            self._driver: Any = WebHDFS(
                parts.hostname, port=int(port), skip_instance_cache=True, **options
            )
        except ImportError as error:
            raise StorageError(
                f"the driver for {parts.scheme}:// needs another library ({error}); for "
                "Kerberos: pip install requests-kerberos"
            ) from error
        self._root = parts.path.rstrip("/")
        server = f"{parts.hostname}:{parts.port}" if parts.port else parts.hostname
        self.url = f"{parts.scheme}://{server}{self._root}"
        self.capabilities = Capabilities(
            durable_append=True,
            durable_sync=sync_on_close,
            exclusive_create=True,
            atomic_replace=True,
            preallocate=False,
            locks=False,
        )
        self._clock_ms = clock_ms
        self._lease_ms = lease_ms
        self._swept: set[str] = set()

    # reading

    def list(self, folder: str) -> builtins.list[StoredFile]:
        return sorted(self._walk(folder_prefix(folder)), key=lambda file: file.path)

    def folders(self, folder: str) -> builtins.list[str]:
        return sorted(
            status["pathSuffix"]
            for status in self._statuses(folder_prefix(folder))
            if status["type"] == "DIRECTORY"
        )

    def exists(self, path: str) -> bool:
        try:
            return bool(self._status(path)["type"] != "DIRECTORY")
        except NotFound:
            return False

    def hold(self, path: str) -> Held:
        return HeldByAnswer(path, lambda: self._file_id(path))

    def size(self, path: str) -> int:
        status = self._status(path)
        if status["type"] == "DIRECTORY":
            raise NotFound("is a folder", path)
        return int(status["length"])

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        # Hadoop reports an error for a range that begins after the end.
        if offset or length is not None:
            left = max(self.size(path) - offset, 0)
            length = left if length is None else min(length, left)
            if not length:
                return b""
        parameters = {"offset": offset, **({} if length is None else {"length": length})}
        return bytes(self._send("GET", "OPEN", path, b"", **parameters).content)

    def open_input(self, path: str) -> BinaryIO:
        return cast(
            BinaryIO, io.BufferedReader(RangedInput(self, path, self.size(path)), READ_BUFFER_BYTES)
        )

    # writing

    def create(self, path: str, data: bytes) -> None:
        with self._temporary(path, data) as temporary:
            if self._ask("PUT", "RENAME", temporary, destination=self._full(path))["boolean"]:
                return
            if self.exists(path):
                raise AlreadyExists("a file of this name already exists", path)
            raise Unavailable("the name node did not rename the new file", path)

    def create_from(self, path: str, local_file: str) -> None:
        self.create(path, read_local(local_file))

    def replace(self, path: str, data: bytes) -> None:
        with self._temporary(path, data) as temporary:
            # With options the name node answers with nothing, or with an error.
            self._ask(
                "PUT", "RENAME", temporary, destination=self._full(path), renameoptions="OVERWRITE"
            )

    def open_append(self, path: str, preallocate_bytes: int = 0) -> Appender:
        # Not op=CREATE of this name: several at once would fail because of each other's HDFS
        # leases.
        self.create(path, b"")
        return HdfsAppender(self, path)

    def truncate(self, path: str, size: int) -> None:
        present = self.size(path)
        if size > present:
            raise StorageError(f"cannot cut {present} bytes to {size}", path)
        if size == present:
            return
        deadline = time.monotonic() + _RECOVERY_S
        if not self._ask("POST", "TRUNCATE", path, newlength=size)["boolean"]:
            # The data nodes cut the last block later; until then appends fail.
            while self._ask("GET", "GET_BLOCK_LOCATIONS", path)["LocatedBlocks"][
                "isUnderConstruction"
            ]:
                if time.monotonic() > deadline:
                    raise Unavailable(
                        f"the data nodes have not cut the file within {_RECOVERY_S} s", path
                    )
                time.sleep(0.1)

    def delete(self, path: str) -> None:
        check_path(path)
        self._ask("DELETE", "DELETE", path, recursive="false")
        folder = path.rpartition("/")[0]
        with contextlib.suppress(StorageError):  # not empty
            while folder and self._ask("DELETE", "DELETE", folder, recursive="false")["boolean"]:
                folder = folder.rpartition("/")[0]

    def discard(self, path: str) -> None:
        self.delete(path)  # there are no links

    def discard_all(self, paths: Sequence[str]) -> builtins.list[Linked]:
        return discard_each(self, paths)

    def close(self) -> None:
        self._driver.session.close()

    def sweep_below(self, folder: str) -> None:
        """Delete what killed processes left below a folder. What cannot be deleted is left."""
        self._sweep(folder_prefix(folder), below=True)

    # parts

    def append(self, path: str, data: bytes) -> None:
        """Appends to a file. After an error it is unknown how much was appended."""
        self._send("POST", "APPEND", path, data)

    @contextlib.contextmanager
    def _temporary(self, path: str, data: bytes) -> Iterator[str]:
        """A new file next to `path`; it is removed unless it was renamed."""
        check_path(path)
        folder, slash, _ = path.rpartition("/")
        if folder not in self._swept:
            self._swept.add(folder)
            self._sweep(folder + slash)
        temporary = f"{folder}{slash}{_TEMPORARY_PREFIX}{token_hex(8)}"
        try:
            self._send("PUT", "CREATE", temporary, data, overwrite="false")
            yield temporary
        except BaseException:
            with contextlib.suppress(StorageError):
                self._ask("DELETE", "DELETE", temporary, recursive="false")
            raise

    def _sweep(self, prefix: str, *, below: bool = False) -> None:
        with contextlib.suppress(StorageError):
            path = prefix.rstrip("/")
            parameters = {"op": "LISTSTATUS", **self._driver.pars}
            answer = self._request("GET", self._address(path), path, params=parameters)
            now = parsedate_to_datetime(answer.headers["Date"])
            dead_ms = now.timestamp() * 1000 - _LEFT_MS
            for status in answer.json()["FileStatuses"]["FileStatus"]:
                name = status["pathSuffix"]
                if below and status["type"] == "DIRECTORY":
                    self._sweep(f"{prefix}{name}/", below=True)
                if name.startswith(_TEMPORARY_PREFIX) and status["modificationTime"] < dead_ms:
                    self.delete(prefix + name)

    def _walk(self, prefix: str) -> Iterator[StoredFile]:
        for status in self._statuses(prefix):
            name = status["pathSuffix"]
            if status["type"] == "DIRECTORY":
                yield from self._walk(f"{prefix}{name}/")
            # The listing of a file is the file itself, without a name.
            elif name and not name.startswith(_TEMPORARY_PREFIX):
                yield StoredFile(
                    prefix + name, int(status["length"]), int(status["modificationTime"])
                )

    def _statuses(self, prefix: str) -> builtins.list[dict[str, Any]]:
        try:
            statuses = self._ask("GET", "LISTSTATUS", prefix.rstrip("/"))["FileStatuses"][
                "FileStatus"
            ]
        except NotFound:
            return []
        return [status for status in statuses if status["pathSuffix"]]

    def _status(self, path: str) -> dict[str, Any]:
        check_path(path)
        return cast(dict[str, Any], self._ask("GET", "GETFILESTATUS", path)["FileStatus"])

    def _file_id(self, path: str) -> int:
        """The inode in the name node, which is never used again."""
        status = self._status(path)
        if status["type"] == "DIRECTORY":
            raise NotFound("is a folder", path)
        return int(status["fileId"])

    def _full(self, path: str) -> str:
        return f"{self._root}/{check_path(path)}" if path else self._root or "/"

    def _ask(self, method: str, operation: str, path: str, **parameters: object) -> dict[str, Any]:
        """The answer of the name node."""
        answer = self._request(
            method,
            self._address(path),
            path,
            params={"op": operation, **parameters, **self._driver.pars},
        )
        return cast(dict[str, Any], answer.json()) if answer.content else {}

    def _send(
        self, method: str, operation: str, path: str, data: bytes, **parameters: object
    ) -> Any:
        """The answer of the data node that the name node redirected to."""
        answer = self._request(
            method,
            self._address(path),
            path,
            params={"op": operation, **parameters, **self._driver.pars},
        )
        if "Location" not in answer.headers:
            return answer  # no redirect: an empty file has no data node
        return self._request(
            method,
            self._driver._apply_proxy(answer.headers["Location"]),
            path,
            data=data,
            headers=_HEADERS,
        )

    def _address(self, path: str) -> str:
        return str(self._driver._apply_proxy(self._driver.url + quote(self._full(path), safe="/")))

    def _request(self, method: str, address: str, path: str, **more: Any) -> Any:
        try:
            answer = self._driver.session.request(
                method, address, allow_redirects=False, timeout=TIMEOUT_S, **more
            )
        except requests.exceptions.Timeout as error:
            raise self._veil.over(
                unreachable(f"no answer in time: {error}", path, self.url)
            ) from self._veil.cause(error)
        except requests.exceptions.RequestException as error:
            raise self._veil.over(unreachable(_why(error), path, self.url)) from self._veil.cause(
                error
            )
        if answer.status_code >= 400:
            raise self._veil.over(_translated(answer, path, self.url))
        return answer


class HdfsAppender(HeldByAnswer):
    """A growing file. After a failed append nothing more is written: the next append would begin at
    an unknown end. Methods raise the errors that `Appender` names, and `Unavailable` after `close`;
    `truncate` raises `StorageError` for more bytes than there are."""

    def __init__(self, store: HdfsStore, path: str) -> None:
        super().__init__(path, lambda: store._file_id(path))
        self.size = 0
        self._store = store
        self._why_closed = ""

    def append(self, *chunks: bytes) -> None:
        self._check()
        data = b"".join(chunks)
        if data:
            try:
                self._store.append(self.path, data)
            except StorageError as error:
                self._why_closed = f"an earlier append failed: {error}"
                raise
        self.size += len(data)

    def sync(self) -> None:
        # A returned append is closed in its data nodes: nothing is left to sync.
        self._check()

    def truncate(self, size: int) -> None:
        if size > self.size:
            raise StorageError(f"cannot cut {self.size} bytes to {size}", self.path)
        if self._why_closed == "closed":
            self._check()
        self._store.truncate(self.path, size)
        self.size = size
        self._why_closed = ""

    def close(self) -> None:
        super().close()
        self._why_closed = self._why_closed or "closed"

    def _check(self) -> None:
        if self._why_closed:
            raise Unavailable(self._why_closed, self.path)


def opened(opening: Opening) -> HdfsStore:
    """The store of a URL of HDFS."""
    return HdfsStore(str(opening.url), opening.options, clock_ms=opening.clock_ms)


def _why(error: Exception) -> str:
    """The innermost reason of an error of `requests`, whose own text has the parts of a URL."""
    inner: Any = error.args[0] if error.args else error
    return str(getattr(inner, "reason", None) or error)


def _translated(answer: Any, path: str, url: str) -> StorageError:
    try:
        remote = answer.json()["RemoteException"]
        kind, text = (
            str(remote["exception"]),
            f"{remote['exception']}: {str(remote['message']).partition(chr(10))[0]}",
        )
    except (ValueError, KeyError, TypeError):
        kind, text = "", f"HTTP {answer.status_code} {answer.reason}"
    if kind == "FileNotFoundException" or (not kind and answer.status_code == 404):
        return NotFound(text, path)
    if kind == "FileAlreadyExistsException":
        return AlreadyExists(text, path)
    if kind in _NO_SPACE:
        return NoSpace(text, path, url)
    if kind == "UnsupportedOperationException":
        return Unsupported(text, path)
    if kind in _REFUSED or answer.status_code == 401:
        return Unavailable(
            f"refused: {text} (check the user, as in webhdfs://user@namenode/path, or the ticket)",
            path,
            url,
        )
    return Unavailable(f"the storage failed: {text}", path, url)
