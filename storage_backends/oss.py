"""Alibaba Cloud OSS, by its own SDK, as a driver of fsspec for `ObjectStore`.

`x-oss-forbid-overwrite: true` makes a create exclusive; content in several parts has it on the
request that completes them, too. OSS ignores it in a bucket that has or had versioning, and then
answers with the id of a version: such a create is undone, and refused.

Options are those of the SDK's `Config` (`region`, `endpoint`, `use_internal_endpoint`, …),
`access_key_id`, `access_key_secret`, `security_token`, and `anon`. The environment has the rest:
docs/how-to/oss.md.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import alibabacloud_oss_v2 as oss
import requests
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from storage_backends.errors import StorageError
from storage_backends.objects import ObjectStore
from storage_backends.registry import Opening

PART_BYTES = 100 << 20
"""A larger file is sent in parts of this size, one after the other."""
READS_MAX = 3
"""How often a read is sent if the connection ends within an answer. The SDK repeats other
requests."""
_ENVIRONMENT = {
    "access_key_id": "OSS_ACCESS_KEY_ID",
    "access_key_secret": "OSS_ACCESS_KEY_SECRET",
    "security_token": "OSS_SESSION_TOKEN",
}
_NO_ANSWER = (oss.exceptions.RequestError, oss.exceptions.ResponseError)
_PLACE = {"region": "OSS_REGION", "endpoint": "OSS_ENDPOINT"}


def opened(opening: Opening) -> ObjectStore:
    """The store of an `oss://` URL."""
    options = dict(opening.options)
    # The names of both keys come from one place. They are options from here on, so that the errors
    # of the store do not show them.
    keys = {} if options.get("anon") or options.keys() & _ENVIRONMENT.keys() else _ENVIRONMENT
    for option, variable in (_PLACE | keys).items():
        if os.environ.get(variable):
            options.setdefault(option, os.environ[variable])
    if not options.get("region"):
        raise StorageError(
            f"{opening.url}: the region of the bucket is not known: add ?region=cn-hangzhou to the "
            "URL, or set OSS_REGION"
        )
    return ObjectStore(opening.url, options, clock_ms=opening.clock_ms, driver=OssDriver)


class OssDriver(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Objects of OSS. A path is a bucket, and a key after its first slash. Methods raise what the
    drivers of fsspec raise; `OssError` has what the service said."""

    protocol = "oss"
    cachable = False

    def __init__(
        self,
        *,
        access_key_id: str = "",
        access_key_secret: str = "",
        security_token: str | None = None,
        anon: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        provider: Any
        if anon:
            provider = oss.credentials.AnonymousCredentialsProvider()
        elif access_key_id or access_key_secret:
            provider = oss.credentials.StaticCredentialsProvider(
                access_key_id, access_key_secret, security_token
            )
        else:
            provider = oss.credentials.CredentialsProviderFunc(_of_chain())
        self._client = oss.Client(oss.Config(credentials_provider=provider, **options))

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        bucket, key = _parted(path)
        if not key:
            return {"name": path, "size": 0, "type": "directory"}
        head = _asked(self._client.head_object, oss.HeadObjectRequest(bucket=bucket, key=key))
        return {
            "name": path,
            "size": head.content_length,
            "type": "file",
            "LastModified": head.last_modified,
            "ETag": head.etag,
        }

    def find(self, path: str, *_: Any, **__: Any) -> dict[str, Any]:
        return {info["name"]: info for info in self._below(path) if info["type"] == "file"}

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        entries = list(self._below(path, delimiter="/"))
        return entries if detail else [info["name"] for info in entries]

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_: Any
    ) -> bytes:
        bucket, key = _parted(path)
        wanted = f"bytes={start or 0}-{'' if end is None else end - 1}"
        request = oss.GetObjectRequest(
            bucket=bucket,
            key=key,
            range_header=wanted if start or end is not None else None,
            range_behavior="standard",  # otherwise the whole object, for a range after its end
        )
        for attempt in range(READS_MAX):
            try:
                content: bytes = _asked(lambda: _body(self._client.get_object(request)))
                return content
            except _Cut:
                if attempt == READS_MAX - 1:
                    raise
        raise AssertionError

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        self._put(path, mode, self._client.put_object, body=value)

    def put_file(
        self, lpath: str, rpath: str, callback: Any = None, mode: str = "overwrite", **_: Any
    ) -> None:
        upload = self._client.uploader(part_size=PART_BYTES, parallel_num=1).upload_file
        self._put(rpath, mode, lambda request: upload(request, lpath))

    def rm_file(self, path: str) -> None:
        bucket, key = _parted(path)
        _asked(self._client.delete_object, oss.DeleteObjectRequest(bucket=bucket, key=key))

    def rm(self, path: str | Sequence[str], *_: Any, **__: Any) -> None:
        paths = [path] if isinstance(path, str) else path
        buckets = {_parted(name)[0] for name in paths}
        for bucket in buckets:
            keys = {key for name in paths for at, key in [_parted(name)] if at == bucket}
            objects = [oss.DeleteObject(key=key) for key in keys]
            answer = _asked(
                self._client.delete_multiple_objects,
                oss.DeleteMultipleObjectsRequest(bucket=bucket, delete=oss.Delete(objects=objects)),
            )
            if kept := keys - {item.key for item in answer.deleted_objects or ()}:
                raise OSError(f"{len(kept)} objects were not deleted, one of them is {min(kept)}")

    def _open(self, path: str, mode: str = "rb", *_: Any, **__: Any) -> AbstractBufferedFile:
        return _Reader(self, path, mode)

    def _below(self, path: str, delimiter: str | None = None) -> Iterator[dict[str, Any]]:
        bucket, key = _parted(path)
        request = oss.ListObjectsV2Request(
            bucket=bucket, prefix=f"{key}/" if key else None, delimiter=delimiter, max_keys=1_000
        )
        pages = self._client.list_objects_v2_paginator().iter_page(request)
        while (page := _asked(next, pages, None)) is not None:
            for item in page.common_prefixes or ():
                name = f"{bucket}/{item.prefix.rstrip('/')}"
                yield {"name": name, "size": 0, "type": "directory"}
            for item in page.contents or ():
                yield {
                    "name": f"{bucket}/{item.key}",
                    "size": item.size,
                    "type": "file",
                    "LastModified": item.last_modified,
                    "ETag": item.etag,
                }

    def _put(self, path: str, mode: str, send: Callable[[Any], Any], **content: Any) -> None:
        bucket, key = _parted(path)
        create = mode == "create"
        request = oss.PutObjectRequest(
            bucket=bucket, key=key, forbid_overwrite=True if create else None, **content
        )
        version = _asked(send, request).version_id
        if create and version:
            # The create may have covered an object of another writer. Without this version, that
            # one is the newest again. "null" is what a suspended versioning overwrites.
            if version != "null":
                undo = oss.DeleteObjectRequest(bucket=bucket, key=key, version_id=version)
                with contextlib.suppress(Exception):
                    self._client.delete_object(undo)
            raise NotImplementedError(
                f"the bucket {bucket} has or had versioning: there, OSS ignores "
                "x-oss-forbid-overwrite, and two writers would overwrite each other; use a bucket "
                "that never had versioning"
            )


class OssError(OSError):
    """The service refused, or failed. The names of its code and status are those that
    `storage_backends.objects.service_code` looks for."""

    def __init__(self, error: oss.exceptions.ServiceError) -> None:
        self.error_code, self.status_code = str(error.code), int(error.status_code)
        super().__init__(
            f"{error.message} ({self.error_code}, HTTP {self.status_code}, "
            f"request {error.request_id})"
        )


class _Cut(ConnectionError):
    """The connection ended within the body of an answer."""


class _Reader(AbstractBufferedFile):  # type: ignore[misc]
    def _fetch_range(self, start: int, end: int) -> bytes:
        content: bytes = self.fs.cat_file(self.path, start, end)
        return content


def _of_chain() -> Callable[[], Any]:
    """Credentials of Alibaba Cloud's usual places. Its library renews those that expire, which may
    take a thread."""

    @functools.cache
    def chain() -> Any:
        from alibabacloud_credentials.client import Client

        # They log each failure with its traces, and at DEBUG the headers of requests. Errors have
        # what is needed.
        logging.getLogger("credentials").addFilter(_is_foreign)
        logging.getLogger("alibabacloud-tea").disabled = True
        return Client()

    def current() -> Any:
        model = chain().get_credential()
        return oss.credentials.Credentials(
            model.access_key_id, model.access_key_secret, model.security_token
        )

    return current


def _is_foreign(record: logging.LogRecord) -> bool:
    """Whether a logger with a common name writes for another library."""
    return "alibabacloud_credentials" not in record.pathname


def _parted(path: str) -> tuple[str, str]:
    bucket, _, key = path.partition("/")
    return bucket, key


def _body(answer: Any) -> bytes:
    try:
        with answer.body as stream:
            content: bytes = stream.read()
    except requests.RequestException as error:
        raise _Cut(f"{type(error).__name__}: {error}") from error
    if len(content) != answer.content_length:
        raise _Cut(f"{len(content)} of {answer.content_length} bytes")
    return content


def _asked(action: Callable[..., Any], *arguments: Any) -> Any:
    """The SDK's answer, or Python's error for one of its own."""
    try:
        return action(*arguments)
    except oss.exceptions.BaseError as error:
        raise _meaning(error) from error


def _meaning(error: Exception) -> Exception:
    cause, answered = error, True
    while isinstance(inner := getattr(cause, "unwrap", lambda: None)(), Exception):
        answered = answered and not isinstance(cause, _NO_ANSWER)
        cause = inner
    if isinstance(cause, oss.exceptions.ServiceError):
        if cause.code == "FileAlreadyExists":
            return FileExistsError(str(cause.message))
        # The answer to a HEAD has no body, and so perhaps no code. A 404 of another server than OSS
        # has no id of the request; by it, no object is absent.
        unnamed = cause.code == "BadErrorResponse" and cause.status_code == 404 and cause.request_id
        if cause.code == "NoSuchKey" or unnamed:
            return FileNotFoundError(str(cause.message))
        return OssError(cause)
    if isinstance(cause, oss.exceptions.ParamInvalidError):
        return ValueError(str(cause))
    if isinstance(cause, oss.exceptions.CredentialsBaseError):
        return PermissionError(
            f"no credentials; set OSS_ACCESS_KEY_ID and OSS_ACCESS_KEY_SECRET: {cause}"
        )
    if not answered:
        return ConnectionError(f"{type(cause).__name__}: {cause}")
    if isinstance(cause, requests.RequestException):
        return _Cut(f"{type(cause).__name__}: {cause}")
    return OSError(str(cause))
