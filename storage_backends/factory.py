"""From a URL to a store: the one place that knows all of them.

    /path, relative/path, file:///path     LocalStore
    memory://name                          MemoryStore
    objects+file:///path                   one immutable object per commit, on a local directory (for trials and tests)
    webhdfs://host:port/path, hdfs://…     HdfsStore
    s3://, gs://, abfs://, …               ObjectStore over fsspec; `?key=value` are options of its driver
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from storage_backends.errors import StorageError
from storage_backends.interface import SegmentStore
from storage_backends.local import LocalStore
from storage_backends.memory import MemoryStore


def open_store(url: str, storage_options: Mapping[str, Any] | None = None) -> SegmentStore:
    """The store at `url`. Nothing is created before the first write. Options in `storage_options` win over those of the URL, and may
    hold what does not belong into one: `open_store("s3://bucket/root", {"key": …, "secret": …})`. `StorageError` for a URL that no
    store serves, or whose driver is not installed (the text says what to install)."""
    protocol, separator, rest = url.partition("://")
    if not separator:
        return LocalStore(url)  # a plain path may hold a question mark
    rest, _, query = rest.partition("?")
    options: dict[str, Any] = {**dict(parse_qsl(query, keep_blank_values=True)), **(storage_options or {})}
    if protocol in ("file", "local", "memory", "objects+file") and options:
        raise StorageError(f"{protocol}:// takes no options, found {', '.join(sorted(options))}")
    if protocol in ("file", "local"):
        return LocalStore(_local_path(url, rest))
    if protocol == "memory":
        return MemoryStore(rest.strip("/"))
    raise StorageError(f"no store serves {protocol}://")


def _local_path(url: str, rest: str) -> str:
    if rest.startswith("localhost/"):
        rest = rest.removeprefix("localhost")
    if not rest.startswith("/"):
        raise StorageError(f"{url}: a file URL has three slashes, as in file:///var/lib/maps")
    return rest
