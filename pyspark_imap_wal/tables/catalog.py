"""A log as a table of Spark's catalog: `create table … using imap_wal`.

When such a table is created, Spark passes its properties: the user's options twice, once as
`option.NAME`, and `provider`, `owner`, `location` and others. When it is read, Spark passes none of
them, only the columns that were recorded. So the first column has the options as its metadata.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from imap_wal.checks import location
from imap_wal.errors import InvalidSetting
from imap_wal.sql.types import Schema

PROVIDER = "provider"
"""The property that every table has: the name after `using`."""
OPTION = "option."
"""What the name of a property begins with, if it is an option."""
HADOOP_FILE = re.compile(r"file:(/[^/].*)", re.DOTALL)
"""A folder of this machine, as Spark writes it, whatever the user wrote."""
METADATA = "imap_wal"
"""The name of the options in a column's metadata."""
_TYPES: dict[str, DataType] = {
    "string": StringType(),
    "binary": BinaryType(),
    "boolean": BooleanType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "map<string,string>": MapType(StringType(), StringType()),
}


def columns_of(kinds: Mapping[str, str], schema: Schema) -> StructType:
    """Column → type of Spark; those of `schema` have its types. Spark's own parser of types is not
    used, because it needs a session, and its workers have none."""
    return StructType(
        [
            StructField(
                name,
                from_arrow_type(schema[name].arrow, prefer_timestamp_ntz=True)
                if name in schema
                else _TYPES[kind],
            )
            for name, kind in kinds.items()
        ]
    )


def is_new_table(properties: Mapping[str, str], name: str) -> bool:
    """Whether these options are the properties of a table that is being created. `name`: of the
    data source."""
    return properties.get(PROVIDER, "").lower() == name


def options_of_table(properties: Mapping[str, str]) -> dict[str, str]:
    """The options among the properties of a new table. Raises `InvalidSetting`."""
    options = {
        name.removeprefix(OPTION): value
        for name, value in properties.items()
        if name.startswith(OPTION)
    }
    place = options.get("path") or properties.get("path")
    if not place:
        raise InvalidSetting(
            "a table needs the root of the logs: create table … using imap_wal location '/folder'"
        )
    if folder := HADOOP_FILE.fullmatch(place):
        place = folder[1]
    if location(place).options:
        raise InvalidSetting(
            "the location of a table has options after a question mark, and Spark's catalog "
            "shows them to everyone: put them into the file that IMAP_WAL_CREDENTIALS names"
        )
    return {**options, "path": place}


def with_options(columns: StructType, options: Mapping[str, str]) -> StructType:
    """The columns of a new table, with its options: for reads, and as a comment for people, because
    `show create table` has the columns only."""
    shown = ", ".join(f"{name} '{value}'" for name, value in sorted(options.items()))
    columns.fields[0].metadata = {METADATA: dict(options), "comment": f"using imap_wal: {shown}"}
    return columns


def recorded(columns: StructType) -> dict[str, str]:
    """The options in the columns of a table; empty if it is not a table of a catalog."""
    return next(
        (dict(field.metadata[METADATA]) for field in columns if METADATA in field.metadata), {}
    )
