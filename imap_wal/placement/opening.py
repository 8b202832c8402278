"""Opens the storage of a log: its root, and the place of its segments if that is another one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import storage_backends
from imap_wal.placement.own_disk import OwnDiskStore, Tails, Unasked
from imap_wal.placement.record import RECORD, SegmentsPlace, record, recorded
from imap_wal.placement.router import SplitStore
from storage_backends import SegmentStore, StorageError
from storage_backends.factory import at_home
from storage_backends.lease import system_clock_ms
from storage_backends.location import located, of_wal_dir, why_not_followed


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
    segments on its own disk (`imap_wal.placement.own_disk`).

    A place for the segments that only the root names must have the root's scheme and server. It
    gets no options except those of a file of credentials (`Location.place_options`). Raises
    `StorageError` for any other place, for a URL that no store serves, and for a driver that is not
    installed (the text says what to install)."""
    place = at_home(located(os.fspath(url), storage_options))
    segments = at_home(located(os.fspath(wal_dir) or place.wal_dir)).knowing(place.place_options)
    root = storage_backends.open_store(place, clock_ms=clock_ms)
    try:
        if segments:
            own_disk = bool(segments.disk_of)
            record(root, SegmentsPlace("" if own_disk else segments, own_disk))
        else:
            recorded_place = recorded(root) or SegmentsPlace()
            if recorded_place.own_disks:
                return OwnDiskStore(root, None, "", tails(root))
            segments = located(recorded_place.url).knowing(place.place_options)
            why = why_not_followed(place, recorded_place.url) if recorded_place.url else ""
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
        wal = storage_backends.open_store(segments, clock_ms=clock_ms)
        if segments.disk_of:
            return OwnDiskStore(root, wal, segments.disk_of, tails(root))
        return SplitStore(root, wal, segments)
    except BaseException:
        root.close()
        raise
