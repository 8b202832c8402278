"""Opens the store for a URL: `storage_backends.registry` has the kinds of URLs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

from storage_backends.errors import StorageError
from storage_backends.extras import MissingExtra, needs
from storage_backends.interface import SegmentStore
from storage_backends.lease import system_clock_ms
from storage_backends.location import Location, located, of_wal_dir, why_not_followed
from storage_backends.own_disk import OwnDiskStore, Tails, Unasked
from storage_backends.registry import Opening, backend_of, open_backend
from storage_backends.split import RECORD, SegmentsPlace, SplitStore, record, recorded
from storage_backends.veil import Veil


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
    if not path.startswith("~") or not backend_of(url).is_folder:
        return url
    found = os.path.expanduser(path)
    if found == path:
        raise StorageError(
            f"there is no such home folder; write ./{path} for a folder of that name"
        )
    return url.moved(f"{protocol}{separator}{found}")


def _open(url: Location, clock_ms: Callable[[], int]) -> SegmentStore:
    backend = backend_of(url)
    if url.options and not backend.takes_options:
        raise StorageError(
            f"{url.scheme}:// takes no options, found {', '.join(sorted(url.options))}"
        )
    try:
        # Imported here: not every install has fsspec and its drivers, and they load slowly.
        with needs(backend.extra) if backend.extra else nullcontext():
            return open_backend(Opening(url, url.options, clock_ms, url.file_mode))
    except MissingExtra as error:
        raise StorageError(f"{url.scheme}:// cannot be opened: {error}") from error
    except StorageError:
        raise
    except Exception as error:  # noqa: BLE001  # drivers raise anything, for example for an unknown option
        veil = Veil(url.options)
        names = f" with the options {', '.join(sorted(url.options))}" if url.options else ""
        raise veil.over(
            StorageError(
                f"{url.scheme}:// cannot be opened{names}: {type(error).__name__}: {error}"
            )
        ) from veil.cause(error)
