"""The rules of `imap_wal.valid` for columns: the rows of a backfill."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from imap_wal.entry import MSGPACK
from imap_wal.errors import InvalidSetting
from imap_wal.valid import demand_class, demand_form, demand_known_class, too_large, written
from storage_backends.extras import needs

with needs("archive"):
    import pyarrow as pa
    import pyarrow.compute as pc


def demand_valid_rows(name: str, rows: Any, bytes_max: int, classes: Collection[str]) -> None:
    """Raise `InvalidSetting` or `TooLarge` unless `demand_valid` accepts every row of a map.

    Args:
        name: of the map, which is valid.
        rows: a batch with the columns `key`, `value` (NULL: a deletion), `key_class`,
            `value_class` and `expires_at_ms`.
        bytes_max: of key and value together.
        classes: as for `imap_wal.valid.demand_known_class`.
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
        raise too_large(name, largest, bytes_max)
    of_values = pc.if_else(pc.is_valid(values), rows["value_class"], pa.scalar(None, pa.string()))
    pairs = pa.table([labels, of_values], ["key", "value"]).group_by(["key", "value"]).aggregate([])
    for each in pairs.to_pylist():
        demand_class(name, each["key"], each["value"])
        demand_known_class(name, each["key"], classes)
    if len(pc.unique(labels)) > 1:
        raise InvalidSetting(
            f"map {name!r}: rows have the classes {written(pc.unique(labels).to_pylist())}; a map "
            "has one class"
        )
    packed = pc.equal(labels, MSGPACK)
    for key, value in zip(keys.filter(packed), values.filter(packed), strict=True):
        try:
            demand_form(MSGPACK, key.as_py(), MSGPACK, value.as_py())
        except ValueError as error:
            raise InvalidSetting(
                f"map {name!r}: a row of class 'msgpack' is not what a map would write: {error}"
            ) from error
