"""What every source of entries has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rewrite_cli.console.failures import Failed

Load = Callable[[], Any]
"""Returns a key or a value. It may raise anything: the entry is refused then."""


class Stored(NamedTuple):
    """One entry of a source. `name`: its key, for errors. `expires_at_ms`: Unix time in
    milliseconds; 0: never. `bytes`: its size in the source. `classes`: of key and value, which are
    the bytes of the log then; None: the map's serializer writes both."""

    map: str
    name: object
    key: Load
    value: Load
    bytes: int
    expires_at_ms: int = 0
    classes: tuple[str, str] | None = None


class Torn(NamedTuple):
    """A file whose last record was not written completely: its last `bytes`, from `position` on,
    are not read."""

    file: str
    position: int
    bytes: int


class Changes(NamedTuple):
    """Of a source with several changes of a key: how many were read, and how many keys the newest
    one deletes."""

    read: int
    deleted: int


class Source(ABC):
    """A file or folder of another library. `bytes`: its size. `equal_keys`: whether keys that are
    different in the source may be equal, as True and 1 are. `lost`: what a map does not have, and
    how many entries have it. `changes`: of each map, if the source is a log. The last three are
    known when all entries were read."""

    bytes: int
    equal_keys = False
    lost: Mapping[str, int] = {}
    changes: Mapping[str, Changes] = {}
    torn: Sequence[Torn] = ()

    @abstractmethod
    def maps(self) -> list[str]:
        """The names of the maps that it has."""

    @abstractmethod
    def entries(self) -> Iterator[Stored]:
        """All entries. Raises `Failed` if the source is damaged. Can be called again; a source may
        then leave out what cannot be read."""

    @abstractmethod
    def close(self) -> None: ...


class Unreadable(ValueError):
    """A key or value that is not imported. The text says why."""


def damaged(path: object, error: object) -> Failed:
    """The error for a source that cannot be read."""
    return Failed(
        f"{path} cannot be read: {error}; nothing was imported: check the path, repair it with "
        "its own library, or bring it back from a copy"
    )
