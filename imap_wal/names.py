"""Names that users choose: which are allowed, and each as one path component.

A name is percent-encoded, so a map may be called "../a b". A long name of a map is shortened and
has a hash.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from hashlib import sha256
from urllib.parse import quote, unquote

from imap_wal.errors import InvalidSetting, not_text

NAME_BYTES_MAX = 255
"""The longest path component that file systems allow."""

MAP_NAME_BYTES_MAX = 1024
MAP_COMPONENT_BYTES_MAX = 200
_PREFIX_BYTES = 120


@lru_cache(10_000)
def encode(name: str) -> str:
    """A name as one path component: everything except letters, digits, `_` and `-` is
    percent-encoded, including dots. Raises `InvalidSetting` for an empty name and for a lone
    surrogate."""
    if not name:
        raise InvalidSetting("a namespace, cluster, node or map name must not be empty")
    try:
        quoted = quote(name, safe="")
    except UnicodeEncodeError as error:
        raise InvalidSetting(
            f"the name of a namespace, cluster, node or map: {not_text(error)}"
        ) from error
    return quoted.replace(".", "%2E").replace("~", "%7E")


@lru_cache(10_000)
def decode(component: str) -> str:
    """The name that a path component encodes."""
    return unquote(component)


def check_name(name: str, noun: str) -> None:
    """Raises `InvalidSetting` if the name of a namespace, cluster or node cannot be a folder name
    on every storage. It is called where a user gives a name; a longer name of an existing log is
    still read."""
    if type(name) is not str:
        raise InvalidSetting(f"the name of a {noun} is {name!r}; it takes text")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InvalidSetting(f"the name of a {noun}: {not_text(error)}") from error
    size = len(encode(name))
    if size > NAME_BYTES_MAX:
        raise InvalidSetting(
            f"the name of a {noun} takes {size} bytes as a folder name, at most {NAME_BYTES_MAX} "
            "are possible; shorten it: letters, digits, _ and - take 1 byte, every other character "
            f"3 or more: {name[:40]!r}…"
        )


def check_map_name(name: str) -> None:
    """`check_name` for a map. Its name may be longer, because its folder name is shortened. Raises
    `InvalidSetting` if it is not text, is empty, has a lone surrogate, or takes more than
    `MAP_NAME_BYTES_MAX` bytes of UTF-8."""
    if type(name) is not str:
        raise InvalidSetting(f"the name of a map is {name!r:.100}; it takes text")
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise InvalidSetting(f"the name of a map: {not_text(error)}") from error
    if not name:
        raise InvalidSetting("the name of a map is empty; give it one character or more")
    if size > MAP_NAME_BYTES_MAX:
        raise InvalidSetting(
            f"the name of a map takes {size} bytes of UTF-8; at most {MAP_NAME_BYTES_MAX} "
            f"are possible; shorten it: {name[:40]!r}…"
        )


@lru_cache(10_000)
def map_component(name: str) -> str:
    """A map's name as one path component. If the encoded name takes more than 200 bytes, it is cut
    off, followed by `~` and a SHA-256; only manifests and files then have the full name, see
    `map_of`. Raises the error of `encode`."""
    encoded = encode(name)
    if len(encoded) <= MAP_COMPONENT_BYTES_MAX:
        return encoded
    return f"{encoded[:_PREFIX_BYTES]}~{sha256(name.encode()).hexdigest()}"


def is_hashed(component: str) -> bool:
    """Whether a path component has a hash instead of the full name of its map."""
    return "~" in component


def map_of(component: str, map_names: Iterable[str]) -> str:
    """The map name of a path component. For a component with a hash, the name in `map_names` with
    this component, or "" if there is none."""
    if not is_hashed(component):
        return decode(component)
    return next(
        (
            name
            for name in map_names
            if len(encode(name)) > MAP_COMPONENT_BYTES_MAX and map_component(name) == component
        ),
        "",
    )


STREAM_MAPS = "transactions", "locks", "requests"
PARTITIONS_MAX = 1024
"""Of a stream."""
_PARTITION = re.compile("(0|[1-9][0-9]{0,3})-of-([1-9][0-9]{0,3})")


def partition_node(number: int, count: int) -> str:
    """The node of one of the partitions of a stream."""
    return f"{number}-of-{count}"


def partition_count(node: str) -> int:
    """How many partitions the stream of a node has; 0: it is not a node of a stream."""
    match = _PARTITION.fullmatch(node)
    number, count = (int(match[1]), int(match[2])) if match else (0, 0)
    return count if number < count <= PARTITIONS_MAX else 0
