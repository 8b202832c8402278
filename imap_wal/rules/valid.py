"""What a valid entry of a map is. Every writer checks entries here: `imap_wal.log`, the agent,
embedded maps (`demand_columns`) and a backfill (`demand_valid_rows`).

    fields    types, ranges, tombstones and clears are those of `imap_wal.entry.check`
    name      1 to 1024 bytes of UTF-8
    size      key and value together have at most `max_value_bytes`; a deletion has no limit,
              because every key that exists must be deletable
    classes   a map that programs write has one class, of all keys and values
    form      a key of class msgpack, also with types, has the bytes that the default serializer
              writes for it, and its value is msgpack. The form of a member's entry is not checked:
              only members know

A store can read every valid entry. So an entry that is not valid is refused when it is written.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from imap_wal.entry import (
    KEY,
    KEY_CLASS,
    MAP,
    MSGPACK,
    PICKLE,
    RAW,
    VALUE,
    VALUE_CLASS,
    DataEntry,
    Row,
    check,
    is_clear,
    is_msgpack,
)
from imap_wal.errors import InvalidSetting, NotSerializable, TooLarge, not_text
from imap_wal.names import check_map_name
from imap_wal.rules.arrow import pa, pc
from imap_wal.serializer import MsgpackSerializer

_msgpack = MsgpackSerializer()


def demand_valid(
    row: Row | DataEntry, bytes_max: int, classes: Collection[str] | None = None
) -> None:
    """Raise ValueError unless a program may write this entry; `InvalidSetting` and `TooLarge` are
    ValueErrors. `classes`: see `demand_class`; None: any, as in a log without maps."""
    check_map_name(row[MAP])
    check(tuple(row))
    if is_clear(row):
        return
    demand_size(f"map {row[MAP]!r}", row[KEY], row[VALUE], bytes_max)
    if classes is not None:
        demand_class(row[MAP], row[KEY_CLASS], None if row[VALUE] is None else row[VALUE_CLASS])
        demand_known_class(row[MAP], row[KEY_CLASS], classes)
    for label in (row[KEY_CLASS], row[VALUE_CLASS]):
        demand_text(label)
    demand_form(row[KEY_CLASS], row[KEY], row[VALUE_CLASS], row[VALUE])


def demand_text(label: str) -> None:
    """Raise ValueError for a class that UTF-8 cannot encode."""
    try:
        label.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"of its class, {not_text(error)}") from error


def demand_size(place: str, key: bytes, value: bytes | None, bytes_max: int) -> None:
    """Raise `TooLarge` if an upsert is larger than `max_value_bytes`."""
    if value is not None and len(key) + len(value) > bytes_max:
        raise too_large(place, len(key) + len(value), bytes_max)


def too_large(place: str, size: int, bytes_max: int) -> TooLarge:
    """`place`: the map, and the key if it is known."""
    return TooLarge(
        f"{place}: key and value take {size} bytes, more than max_value_bytes, {bytes_max}; "
        "store less, or raise the setting"
    )


def demand_class(name: str, key_class: str, value_class: str | None) -> None:
    """Raise `InvalidSetting` unless key and value have one class, as in every map of a program.
    `value_class` None: a deletion."""
    if value_class is not None and key_class != value_class:
        raise InvalidSetting(
            f"map {name!r}: an entry has key_class {key_class!r} and value_class "
            f"{value_class!r}; a map has one class for both"
        )
    if not key_class:
        raise InvalidSetting(f"map {name!r}: an entry has an empty class")


def demand_known_class(name: str, label: str, classes: Collection[str]) -> None:
    """Raise `InvalidSetting` unless the entry has the class of the map. `classes`: those of the
    map's live entries; none: the map is empty, so any class will do."""
    if classes and label not in classes:
        raise InvalidSetting(
            f"map {name!r} has class {written(classes)}, and this entry has class {label!r}; "
            f"{shows_classes(name)}"
        )


def is_of_programs(label: str) -> bool:
    """Whether only programs write this class."""
    return label in (RAW, PICKLE) or is_msgpack(label)


def demand_of_members(name: str, label: str) -> None:
    """Raise `InvalidSetting` if keys of a map have a class that only programs write: members of a
    cluster cannot read them."""
    if is_of_programs(label):
        raise InvalidSetting(
            f"map {name!r} has entries of class {label!r}, which programs wrote; members cannot "
            f"read them. Use another name for the map, or another log; {shows_classes(name)}"
        )


def written(classes: Iterable[str]) -> str:
    """Classes for an error."""
    return " and ".join(map(repr, sorted(classes)))


def shows_classes(name: str) -> str:
    """The command that shows the classes of a map, for an error."""
    table = '"' + name.replace('"', '""') + '"'
    sql = f"FROM {table} SELECT key_class, value_class, count(*) GROUP BY ALL"
    return f"to see the classes: imap-wal query URL {shlex.quote(sql)}"


def demand_form(key_class: str, key: bytes, value_class: str, value: bytes | None) -> None:
    """Raise ValueError unless a key and a value (None: there is none) of class msgpack, also with
    types, are what a map writes. Those of other classes may be any bytes."""
    if is_msgpack(key_class):
        _msgpack.demand_key(key, typed=key_class != MSGPACK)
    if is_msgpack(value_class) and value is not None:
        _msgpack.load(value)


def demand_columns(
    name: str,
    keys: Sequence[bytes],
    values: Sequence[bytes | None],
    bytes_max: int,
    shown: Callable[[bytes], str] = repr,
) -> None:
    """`demand_valid` for changes that a map has serialised, in columns: its name, its class and
    their expiry are valid already. `shown`: a key for errors. Raises `NotSerializable` and
    `TooLarge`."""
    for key, value in zip(keys, values, strict=True):
        if type(key) is not bytes or (type(value) is not bytes and value is not None):
            other = value if type(key) is bytes else key
            raise NotSerializable(
                f"map {name!r}: its serializer returned a {type(other).__name__} for a "
                f"{'value' if other is value else 'key'}; it must return bytes"
            )
        if value is not None and len(key) + len(value) > bytes_max:
            raise too_large(f"{name}[{shown(key)}]", len(key) + len(value), bytes_max)


def demand_valid_rows(name: str, rows: Any, bytes_max: int, classes: Collection[str]) -> None:
    """Raise `InvalidSetting` or `TooLarge` unless `demand_valid` accepts every row of a map.

    Args:
        name: of the map, which is valid.
        rows: a batch with the columns `key`, `value` (NULL: a deletion), `key_class`,
            `value_class` and `expires_at_ms`.
        bytes_max: of key and value together.
        classes: as for `demand_known_class`.
    """
    if not len(rows):
        return
    keys, values, labels = rows["key"], rows["value"], rows["key_class"]
    lowest = pc.min(rows["expires_at_ms"]).as_py()
    if lowest < 0:
        raise InvalidSetting(
            f"map {name!r}: a row has expires_at_ms {lowest}; it takes Unix time in milliseconds, "
            "or 0 for never"
        )
    sizes = pc.add(
        pc.binary_length(keys).cast(pa.int64()), pc.binary_length(values).cast(pa.int64())
    )
    largest = pc.max(sizes).as_py() or 0  # NULL: all are deletions
    if largest > bytes_max:
        raise too_large(f"map {name!r}", largest, bytes_max)
    of_values = pc.if_else(pc.is_valid(values), rows["value_class"], pa.scalar(None, pa.string()))
    pairs = pa.table([labels, of_values], ["key", "value"]).group_by(["key", "value"]).aggregate([])
    for pair in pairs.to_pylist():
        demand_class(name, pair["key"], pair["value"])
        demand_known_class(name, pair["key"], classes)
    if len(pc.unique(labels)) > 1:
        raise InvalidSetting(
            f"map {name!r}: rows have the classes {written(pc.unique(labels).to_pylist())}; a map "
            "has one class"
        )
    label = labels[0].as_py()
    if not is_msgpack(label):
        return
    for key, value in zip(keys, values, strict=True):
        try:
            demand_form(label, key.as_py(), label, value.as_py())
        except ValueError as error:
            raise InvalidSetting(
                f"map {name!r}: a row of class {label!r} is not what a map would write: {error}"
            ) from error
