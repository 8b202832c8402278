"""Opens the store for a URL: `storage_backends.registry` has the kinds of URLs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from storage_backends.errors import StorageError
from storage_backends.extras import MissingExtra, needs
from storage_backends.interface import SegmentStore
from storage_backends.lease import system_clock_ms
from storage_backends.location import Location, Place, located
from storage_backends.registry import Opening, backend_of, open_backend
from storage_backends.veil import Veil


def open_store(
    url: Place,
    storage_options: Mapping[str, Any] | None = None,
    *,
    clock_ms: Callable[[], int] = system_clock_ms,
) -> SegmentStore:
    """The store at `url`. It reads and creates nothing.

    `storage_options` override the options of the URL, and may have what does not belong in one:
    `open_store("s3://bucket/root", {"key": …, "secret": …})`. `clock_ms` gives Unix milliseconds
    for leases. Raises `StorageError` for a URL that no store serves, and for a driver that is not
    installed (the text says what to install)."""
    place = at_home(located(url, storage_options))
    if not place.url:
        raise StorageError(
            'the URL is empty; pass a folder or a URL, as in "/var/lib/maps" or "s3://bucket/maps"'
        )
    backend = backend_of(place.url)
    if place.options and not backend.takes_options:
        raise StorageError(
            f"{place.scheme}:// takes no options, found {', '.join(sorted(place.options))}"
        )
    try:
        # Imported here: not every install has fsspec and its drivers, and they load slowly.
        with needs(backend.extra) if backend.extra else nullcontext():
            return open_backend(Opening(place.url, place.options, clock_ms, place.file_mode))
    except MissingExtra as error:
        raise StorageError(f"{place.scheme}:// cannot be opened: {error}") from error
    except StorageError:
        raise
    except Exception as error:  # noqa: BLE001  # drivers raise anything, for example for an unknown option
        veil = Veil(place.options)
        names = f" with the options {', '.join(sorted(place.options))}" if place.options else ""
        raise veil.over(
            StorageError(
                f"{place.scheme}:// cannot be opened{names}: {type(error).__name__}: {error}"
            )
        ) from veil.cause(error)


def at_home(place: Location) -> Location:
    """Replaces a leading `~` by the home folder. It must happen before a root records `wal_dir`:
    another user has another home folder."""
    protocol, separator, path = place.url.rpartition("://")
    if not path.startswith("~") or not backend_of(place.url).is_folder:
        return place
    folder = os.path.expanduser(path)
    if folder == path:
        raise StorageError(
            f"there is no such home folder; write ./{path} for a folder of that name"
        )
    return replace(place, url=f"{protocol}{separator}{folder}")
