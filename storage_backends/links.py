"""Symbolic links below the root of a local log. Reads and writes follow them; nothing that is
reached through them is discarded (`SegmentStore.discard`)."""

from __future__ import annotations

import os
from collections.abc import Iterable

from storage_backends.location import Location, located
from storage_backends.paths import is_wal
from storage_backends.registry import backend_of


def links(url: str, paths: Iterable[str]) -> dict[str, str]:
    """The paths that are a link, or are reached through one, with the first link on the way (its
    full path). `paths` are relative to the root. {} if `url` is not a local folder. Raises the
    error of `located`."""
    place = located(url)
    roots = {
        True: local_folder(Location(place.wal_dir) if place.wal_dir else place),
        False: local_folder(place),
    }
    seen: dict[str, bool] = {}
    found: dict[str, str] = {}
    for path in paths:
        full = roots[is_wal(path)]
        for name in path.split("/") if full else ():
            full = f"{full}/{name}"
            if full not in seen:
                seen[full] = os.path.islink(full)
            if seen[full]:
                found[path] = full
                break
    return found


def local_folder(place: Location) -> str:
    """The local folder at a place; "" for other storages."""
    if not backend_of(place).is_folder:
        return ""
    path = place.partition("://")[2].removeprefix("localhost") if "://" in place else str(place)
    return os.path.abspath(os.path.expanduser(path)).rstrip("/")
