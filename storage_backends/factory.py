"""Opens the store for a URL.

    /path, relative/path, file:///path     LocalStore
    ~/path, file://~/path                  LocalStore below the home folder
    memory://name                          MemoryStore
    objects+file:///path                   one immutable object per commit, in a local directory
                                           (for trials and tests)
    webhdfs://host:port/path, hdfs://…     HdfsStore
    s3://, gs://, abfs://, …               ObjectStore over fsspec

`?key=value` are options of the driver.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from storage_backends.errors import StorageError
from storage_backends.extras import MissingExtra, extra_of, needs
from storage_backends.interface import SegmentStore
from storage_backends.lease import system_clock_ms
from storage_backends.local import LocalStore
from storage_backends.location import Location, located, of_wal_dir, why_not_followed
from storage_backends.memory import MemoryStore
from storage_backends.own_disk import OwnDiskStore, Tails, Unasked
from storage_backends.split import RECORD, SegmentsPlace, SplitStore, record, recorded


def open_store(
    url: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    *,
    wal_dir: str | os.PathLike[str] = "",
    clock_ms: Callable[[], int] = system_clock_ms,
    tails: Callable[[SegmentStore], Tails] = Unasked,
) -> SegmentStore:
    """The store at `url`. Its segments are at another URL if `wal_dir` names one, or if the root
    recorded one at an earlier open. Only that record is written before the first write of data.

    `storage_options` override the options of the URL, and may have what does not belong in one:
    `open_store("s3://bucket/root", {"key": …, "secret": …})`. `clock_ms` gives Unix milliseconds
    for leases. `tails`: from the root, how to read the disks of other nodes, if each node has its
    segments on its own disk (`storage_backends.own_disk`).

    A place for the segments that only the root names must have the root's scheme and server. It
    gets no options except those of a file of credentials (`Location.known`). Raises `StorageError`
    for any other place, for a URL that no store serves, and for a driver that is not installed (the
    text says what to install)."""
    place = _at_home(located(os.fspath(url), storage_options))
    if not place:
        raise StorageError(
            'the URL is empty; pass a folder or a URL, as in "/var/lib/maps" or "s3://bucket/maps"'
        )
    segments = _at_home(located(os.fspath(wal_dir) or place.wal_dir)).knowing(place.known)
    root = _open(place, clock_ms)
    try:
        if segments:
            own_disk = bool(segments.disk_of)
            record(root, SegmentsPlace("" if own_disk else segments, own_disk))
        else:
            found = recorded(root) or SegmentsPlace()
            if found.own_disks:
                return OwnDiskStore(root, None, "", tails(root))
            segments = located(found.url).knowing(place.known)
            why = why_not_followed(place, found.url) if found.url else ""
            if why:
                named = repr(str(segments))
                raise StorageError(
                    f"the root says that its segments are at {named}. That place is not used "
                    f"unless you name it: {why}. If you trust it, pass --wal-dir {named} (in "
                    "Python and in an agent's configuration: wal_dir)",
                    RECORD,
                )
        if not segments:
            return root
        segments = of_wal_dir(place, segments)
        wal = _open(segments, clock_ms)
        if segments.disk_of:
            return OwnDiskStore(root, wal, segments.disk_of, tails(root))
        return SplitStore(root, wal, segments)
    except BaseException:
        root.close()
        raise


def check_url(url: str | os.PathLike[str]) -> None:
    """Raises `StorageError` if no store can be made for the URL: unknown scheme, driver that is not
    installed, wrong options. It reads no file of the storage, and creates nothing."""
    _open(_at_home(located(os.fspath(url))), system_clock_ms).close()


def _at_home(url: Location) -> Location:
    """Replaces a leading `~` by the home folder. It must happen before the root records `wal_dir`:
    another user has another home folder."""
    protocol, separator, path = url.rpartition("://")
    if not path.startswith("~") or protocol not in ("", "file", "local", "objects+file"):
        return url
    found = os.path.expanduser(path)
    if found == path:
        raise StorageError(
            f"there is no such home folder; write ./{path} for a folder of that name"
        )
    return url.moved(f"{protocol}{separator}{found}")


def _open(url: Location, clock_ms: Callable[[], int]) -> SegmentStore:
    protocol, separator, rest = url.partition("://")
    options = url.options
    if options and url.scheme in ("file", "memory", "objects+file"):
        raise StorageError(
            f"{protocol if separator else 'file'}:// takes no options, found "
            f"{', '.join(sorted(options))}"
        )
    if not separator:
        return _local(url, url.file_mode)  # a plain path may have a question mark in it
    if protocol in ("file", "local"):
        return _local(_local_path(url, rest), url.file_mode)
    if protocol == "memory":
        return MemoryStore(rest.strip("/"))
    # Imported late: not every install has fsspec and its drivers, and they load slowly.
    try:
        with needs(extra_of(protocol)):
            if protocol == "objects+file":
                from storage_backends.objects import LocalObjects

                return LocalObjects(
                    _local_path(url, rest), clock_ms=clock_ms, file_mode=url.file_mode
                )
            if protocol in ("webhdfs", "swebhdfs", "hdfs"):
                from storage_backends.hdfs import HdfsStore

                return HdfsStore(str(url), options, clock_ms=clock_ms)
            from storage_backends.objects import ObjectStore

            return ObjectStore(str(url), options, clock_ms=clock_ms)
    except MissingExtra as error:
        raise StorageError(f"{protocol}:// cannot be opened: {error}") from error


def _local(path: str, file_mode: int) -> LocalStore:
    """A store in a folder that exists or can be created. Raises `StorageError` if the path, or the
    part of it that exists, is not a folder."""
    store = LocalStore(path, file_mode)
    above = store.root
    while not os.path.lexists(above):
        above = os.path.dirname(above)
    if not os.path.isdir(above):
        raise StorageError(f"{above} is not a folder; pass a folder or a new path")
    return store


def _local_path(url: str, rest: str) -> str:
    if rest.startswith("localhost/"):
        rest = rest.removeprefix("localhost")
    if not rest.startswith("/"):
        raise StorageError("a file URL has three slashes, as in file:///var/lib/maps")
    return rest
