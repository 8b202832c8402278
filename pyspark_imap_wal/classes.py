"""Which classes the entries of a map have: a backfill must not mix classes in a map."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import closing

import pyarrow as pa
import pyarrow.compute as pc

from imap_wal.entry import KEY_CLASS, VALUE_CLASS
from imap_wal.errors import InvalidSetting
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.scan import ahead
from imap_wal.read.scan_list import cluster_scans
from imap_wal.read.view import MaterializedView
from imap_wal.rules.valid import demand_known_class
from imap_wal.settings import Settings
from pyspark_imap_wal.columns import EntryQuery, read_columns

_COLUMNS = pa.schema(
    [
        ("map", pa.string()),
        ("key_class", pa.string()),
        ("value_class", pa.string()),
        ("deleted", pa.bool_()),
    ]
)


def classes_of(log: ClusterLog, names: Iterable[str]) -> dict[str, set[str]]:
    """Map → all classes that its entries in the log have or had. Reads no keys and no values of
    archives and snapshots."""
    classes: dict[str, set[str]] = {name: set() for name in names}
    if not classes:
        return classes
    query = EntryQuery(_COLUMNS, maps=tuple(classes))
    for scan, source in ahead(log.context, cluster_scans(log.state(), maps=tuple(classes))):
        for batch in read_columns(log, scan, query, source):
            rows = pa.Table.from_batches([batch.filter(pc.invert(batch["deleted"]))])
            groups = rows.group_by(["map", "key_class", "value_class"]).aggregate([])
            for group in groups.to_pylist():
                classes[group["map"]] |= {group["key_class"], group["value_class"]}
    return classes


def demand_class_of_map(
    log: ClusterLog, name: str, class_label: str, known_classes: Collection[str]
) -> None:
    """Raise `InvalidSetting` unless the live entries of a map have this class. `known_classes`:
    from `classes_of`. A map that was emptied may get another class, so its live entries are read if
    `known_classes` does not decide."""
    if {*known_classes} <= {class_label}:
        return
    with closing(MaterializedView(log, Settings())) as view:
        view.catch_up()
        live = {
            label
            for rows in view.rows(name)
            for row in rows
            for label in (row[KEY_CLASS], row[VALUE_CLASS])
        }
    try:
        demand_known_class(name, class_label, live)
        if len(live) > 1:
            demand_known_class(name, class_label, live - {class_label})
    except InvalidSetting as error:
        raise InvalidSetting(
            f"{error}; a backfill has the class raw unless it passes the columns key_class and "
            "value_class"
        ) from error
