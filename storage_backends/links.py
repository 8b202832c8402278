"""Symbolic links below the root of a local log. Reads and writes follow them; nothing that is
reached through them is discarded (`SegmentStore.discard`)."""

from __future__ import annotations

import os
from collections.abc import Iterable

from storage_backends.registry import backend_of


def links(url: str, paths: Iterable[str]) -> dict[str, str]:
    """The paths that are a link, or are reached through one, with the first link on the way (its
    full path). `paths` are relative to the root. {} if `url` is not a local folder."""
    root = local_folder(url)
    seen: dict[str, bool] = {}
    first_links: dict[str, str] = {}
    for path in paths:
        full = root
        for name in path.split("/") if root else ():
            full = f"{full}/{name}"
            if full not in seen:
                seen[full] = os.path.islink(full)
            if seen[full]:
                first_links[path] = full
                break
    return first_links


def local_folder(url: str) -> str:
    """The local folder at a URL without options; "" for other storages."""
    if not backend_of(url).is_folder:
        return ""
    path = url.partition("://")[2].removeprefix("localhost") if "://" in url else url
    return os.path.abspath(os.path.expanduser(path)).rstrip("/")
