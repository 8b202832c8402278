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
from pyspark_imap_wal.columns import Wanted, read_columns

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
    found: dict[str, set[str]] = {name: set() for name in names}
    if not found:
        return found
    wanted = Wanted(_COLUMNS, maps=tuple(found))
    for scan, source in ahead(log.context, cluster_scans(log.state(), maps=tuple(found))):
        for batch in read_columns(log, scan, wanted, source):
            rows = pa.Table.from_batches([batch.filter(pc.invert(batch["deleted"]))])
            groups = rows.group_by(["map", "key_class", "value_class"]).aggregate([])
            for each in groups.to_pylist():
                found[each["map"]] |= {each["key_class"], each["value_class"]}
    return found


def demand_class_of_map(log: ClusterLog, name: str, given: str, known: Collection[str]) -> None:
    """Raise `InvalidSetting` unless the live entries of a map have this class. `known`: from
    `classes_of`. A map that was emptied may get another class, so its live entries are read if
    `known` does not decide."""
    if {*known} <= {given}:
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
        demand_known_class(name, given, live)
        if len(live) > 1:
            demand_known_class(name, given, live - {given})
    except InvalidSetting as error:
        raise InvalidSetting(
            f"{error}; a backfill has the class raw unless it passes the columns key_class and "
            "value_class"
        ) from error
