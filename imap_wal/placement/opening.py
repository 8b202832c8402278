"""Opens the storage of a log: its root, and the place of its segments if that is another one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import storage_backends
from imap_wal.layout import is_wal
from imap_wal.placement.router import OwnDiskStore, SplitStore, Tails, Unasked
from storage_backends import AlreadyExists, NotFound, SegmentStore, StorageError
from storage_backends.factory import at_home
from storage_backends.lease import system_clock_ms
from storage_backends.location import Location, Place, located, of_wal_dir, why_not_followed
from storage_backends.paths import local_folder


@dataclass(frozen=True, slots=True)
class Placed:
    """The storage of a log. `place`: where another process opens the same. `own_disk`: the storage
    again, if each node has its segments on a disk of its own."""

    store: SegmentStore
    place: Location
    own_disk: OwnDiskStore | None = None


def open_store(
    url: Place,
    storage_options: Mapping[str, Any] | None = None,
    *,
    wal_dir: Place = "",
    clock_ms: Callable[[], int] = system_clock_ms,
) -> SegmentStore:
    """The store of `open_place`."""
    return open_place(url, storage_options, wal_dir=wal_dir, clock_ms=clock_ms).store


def open_place(
    url: Place,
    storage_options: Mapping[str, Any] | None = None,
    *,
    wal_dir: Place = "",
    clock_ms: Callable[[], int] = system_clock_ms,
    tails: Callable[[SegmentStore], Tails] = Unasked,
) -> Placed:
    """The storage at `url`. Its segments are at another URL if `wal_dir` names one, or if the root
    recorded one at an earlier open. Only that record is written before the first write of data.

    `storage_options` override the options of the URL, and may have what does not belong in one:
    `open_store("s3://bucket/root", {"key": …, "secret": …})`. `clock_ms` gives Unix milliseconds
    for leases. `tails`: from the root, how to read the disks of other nodes, if each node has its
    segments on its own disk (`imap_wal.placement.router`).

    A place for the segments that only the root names must have the root's scheme and server. It
    gets no options except those of a file of credentials (`Location.place_options`). Raises
    `StorageError` for any other place, for a URL that no store serves, and for a driver that is not
    installed (the text says what to install)."""
    place = at_home(located(url, storage_options))
    named = located(wal_dir)
    named = named if named.url else place.wal_dir or named
    segments = at_home(named).knowing(place.place_options)
    root = storage_backends.open_store(place, clock_ms=clock_ms)
    try:
        # A path that is relative is not the same in other processes.
        url = root.url if local_folder(place.url) else place.url
        place = replace(place, url=url, place_options={})
        if segments.url:
            own_disk = bool(segments.disk_of)
            record(root, SegmentsPlace("" if own_disk else segments.url, own_disk))
        else:
            recorded_place = recorded(root) or SegmentsPlace()
            if recorded_place.own_disks:
                disks = OwnDiskStore(root, None, "", tails(root))
                return Placed(disks, place, disks)
            segments = located(recorded_place.url).knowing(segments.place_options)
            why = why_not_followed(place, recorded_place.url) if recorded_place.url else ""
            if why:
                text = repr(segments.url)
                raise StorageError(
                    f"the root says that its segments are at {text}. That place is not used "
                    f"unless you name it: {why}. If you trust it, pass --wal-dir {text} (in "
                    "Python and in an agent's configuration: wal_dir)",
                    RECORD,
                )
        if not segments.url:
            return Placed(root, place)
        segments = of_wal_dir(place, segments)
        wal = storage_backends.open_store(segments, clock_ms=clock_ms)
        if not segments.disk_of:
            return Placed(SplitStore(root, wal), replace(place, wal_dir=segments))
        disks = OwnDiskStore(root, wal, segments.disk_of, tails(root))
        return Placed(disks, replace(place, wal_dir=replace(segments, url=wal.url)), disks)
    except BaseException:
        root.close()
        raise


# Where the segments of a root are, as a file in the root says: every process that opens the root
# finds them.
#
#   {root}/wal_dir.json

RECORD = "wal_dir.json"
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class SegmentsPlace:
    """Where the segments of a root are. `own_disks`: each node's on its own disk
    (`imap_wal.placement.router`); otherwise all at `url`, which has no options."""

    url: str = ""
    own_disks: bool = False

    def __str__(self) -> str:
        return "the own disk of each node" if self.own_disks else str(located(self.url))

    def encoded(self) -> bytes:
        wal_dir = None if self.own_disks else self.url
        return json.dumps({"format": _FORMAT, "wal_dir": wal_dir}).encode()


def recorded(root: SegmentStore) -> SegmentsPlace | None:
    """The content of the root's record; None: there is no record. Raises `StorageError` for an
    unreadable one."""
    try:
        data = json.loads(root.read(RECORD))
    except NotFound:
        return None
    except (ValueError, RecursionError) as error:
        raise StorageError(
            f"not JSON ({error}); this file says where the segments are: bring it back from a copy",
            RECORD,
        ) from error
    match data:
        case {"format": version, "wal_dir": str(url)} if version == _FORMAT:
            return SegmentsPlace(url)
        case {"format": version, "wal_dir": None} if version == _FORMAT:
            return SegmentsPlace(own_disks=True)
    raise StorageError(
        "not a record that this version reads; upgrade, or bring it back from a copy", RECORD
    )


def record(root: SegmentStore, place: SegmentsPlace) -> None:
    """Record in a root without segments where they are. Raises `StorageError` if the segments are
    already somewhere else."""
    former = recorded(root)
    if former is None and any(is_wal(file.path) for file in root.list("")):
        # Another node may have recorded the place meanwhile, and uploaded.
        former = recorded(root)
        if former is None:
            raise StorageError(
                f"wal_dir is {place}, but this log already has segments under its root",
                root.url,
            )
    if former is None:
        try:
            root.create(RECORD, place.encoded())
        except AlreadyExists:
            former = recorded(root)  # another writer was first
        else:
            return
    if former is None or (former.own_disks, str(former)) != (place.own_disks, str(place)):
        raise StorageError(
            f"wal_dir is {place}, but the segments of this log are in {former}", root.url
        )
