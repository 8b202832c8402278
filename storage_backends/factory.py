"""From a URL to a store: the one place that knows all of them.

/path, relative/path, file:///path     LocalStore; ~/path and file://~/path: below the home folder
memory://name                          MemoryStore
objects+file:///path                   one immutable object per commit, on a local directory (for trials and tests)
webhdfs://host:port/path, hdfs://…     HdfsStore
s3://, gs://, abfs://, …               ObjectStore over fsspec; `?key=value` are options of its driver
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl

from storage_backends.errors import StorageError
from storage_backends.interface import SegmentStore
from storage_backends.lease import system_clock_ms
from storage_backends.local import LocalStore
from storage_backends.memory import MemoryStore
from storage_backends.split import SplitStore, record, recorded


def open_store(
    url: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    *,
    wal_dir: str | os.PathLike[str] = "",
    clock_ms: Callable[[], int] = system_clock_ms,
) -> SegmentStore:
    """The store at `url`, with its segments at another URL where `wal_dir` (or the root itself, since an earlier open) says so. Nothing is created before the first
    write, but for the root's record of `wal_dir`. Options in `storage_options` win over those of the URL, and may
    hold what does not belong into one: `open_store("s3://bucket/root", {"key": …, "secret": …})`. `StorageError` for a URL that no
    store serves, or whose driver is not installed (the text says what to install). `clock_ms` gives Unix milliseconds for leases."""
    url, wal_dir = _at_home(os.fspath(url)), _at_home(os.fspath(wal_dir))
    if not url:
        raise StorageError('the URL is empty; pass a folder or a URL, as in "/var/lib/maps" or "s3://bucket/maps"')
    root = _open(url, storage_options, clock_ms)
    try:
        if wal_dir:
            record(root, wal_dir)
        else:
            wal_dir = recorded(root)
        return SplitStore(root, _open(wal_dir, None, clock_ms)) if wal_dir else root
    except BaseException:
        root.close()
        raise


def _at_home(url: str) -> str:
    """With `~` at the front of a local path as the home folder. The root remembers `wal_dir` so:
    another user has another home."""
    protocol, separator, path = url.rpartition("://")
    if not path.startswith("~") or protocol not in ("", "file", "local", "objects+file"):
        return url
    found = os.path.expanduser(path)
    if found == path:
        raise StorageError(f"{url}: there is no such home folder; a folder of that name is written ./{path}")
    return f"{protocol}{separator}{found}"


def _open(url: str, storage_options: Mapping[str, Any] | None, clock_ms: Callable[[], int]) -> SegmentStore:
    protocol, separator, rest = url.partition("://")
    if not separator:
        return _local(url)  # a plain path may hold a question mark
    rest, _, query = rest.partition("?")
    options = {**_query_options(query), **(storage_options or {})}
    if protocol in ("file", "local", "memory", "objects+file") and options:
        raise StorageError(f"{protocol}:// takes no options, found {', '.join(sorted(options))}")
    if protocol in ("file", "local"):
        return _local(_local_path(url, rest))
    if protocol == "memory":
        return MemoryStore(rest.strip("/"))
    # The rest is imported when it is asked for: fsspec and its drivers cost more than all of the log.
    if protocol == "objects+file":
        from storage_backends.objects import LocalObjects

        return LocalObjects(_local_path(url, rest), clock_ms=clock_ms)
    if protocol in ("webhdfs", "swebhdfs", "hdfs"):
        from storage_backends.hdfs import HdfsStore

        return HdfsStore(f"{protocol}://{rest}", options, clock_ms=clock_ms)
    from storage_backends.objects import ObjectStore

    return ObjectStore(f"{protocol}://{rest}", options, clock_ms=clock_ms)


def _local(path: str) -> LocalStore:
    """A store in a folder that exists or can be created. `StorageError` if the path, or the part of
    it that exists, is not a folder."""
    store = LocalStore(path)
    above = store.root
    while not os.path.lexists(above):
        above = os.path.dirname(above)
    if not os.path.isdir(above):
        raise StorageError(f"{above} is not a folder; pass a folder or a new path")
    return store


def _query_options(query: str) -> dict[str, Any]:
    """`a=1&anon=true&client_kwargs={"region_name": "eu"}`: text, except for true, false and JSON objects. No numbers: a secret key may
    look like one."""
    options: dict[str, Any] = {}
    for key, value in parse_qsl(query, keep_blank_values=True):
        if value in ("true", "false"):
            options[key] = value == "true"
        elif value.startswith("{"):
            try:
                options[key] = json.loads(value)
            except ValueError as error:
                raise StorageError(f"option {key} of the URL is not JSON: {error}") from error
        else:
            options[key] = value
    return options


def _local_path(url: str, rest: str) -> str:
    if rest.startswith("localhost/"):
        rest = rest.removeprefix("localhost")
    if not rest.startswith("/"):
        raise StorageError(f"{url}: a file URL has three slashes, as in file:///var/lib/maps")
    return rest
