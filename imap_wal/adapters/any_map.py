"""Calls the maps of `open` and `connect`, whose methods block, in the same way as those of
`aopen`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from inspect import isawaitable
from typing import Any, TypeAlias

from imap_wal.embedded.asyncio_map import AsyncMap
from imap_wal.embedded.durable_map import DurableMap
from imap_wal.errors import InvalidSetting

AnyMap: TypeAlias = "DurableMap[Any, Any] | AsyncMap[Any, Any]"
MapSource: TypeAlias = "AnyMap | Callable[[], AnyMap]"
"""A map, or a function that returns it, if its store is opened later."""


def map_of(source: MapSource) -> AnyMap:
    """The map. Raises `InvalidSetting` if this is something else."""
    target = source() if callable(source) else source
    if not isinstance(target, DurableMap | AsyncMap):
        raise InvalidSetting(
            f"{source!r} {'does not return' if callable(source) else 'is not'} a map of "
            "imap_wal.open, imap_wal.aopen or imap_wal.connect; pass store.map(name), or a "
            "function that returns it if the store is opened later"
        )
    return target


async def call(target: AnyMap, method: Callable[[Any], Any]) -> Any:
    """The answer of `method`, which gets the map. That of a `DurableMap` runs in another thread:
    its changes wait for the disk."""
    if isinstance(target, DurableMap):
        return await asyncio.to_thread(method, target)
    answer = method(target)
    return await answer if isawaitable(answer) else answer
