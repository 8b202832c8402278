"""What the formats of tables have in common: `delta` and `iceberg` are a `LakeTable`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from imap_wal.names import map_component
from imap_wal.parquet.columns import DECODED_FIELDS, SNAPSHOT_SCHEMA
from imap_wal.read.cluster import ClusterLog

KEY, DELETED, EXPIRES = "key", "deleted", "expires_at_ms"
LIVE: Mapping[str, str] = {
    "Spark": f"{EXPIRES} = 0 OR {EXPIRES} > unix_millis(current_timestamp())",
    "DuckDB": f"{EXPIRES} = 0 OR {EXPIRES} > epoch_ms(now())",
}
"""The condition of rows that have not expired, in SQL of these programs."""
_TYPES = {"string": "string", "binary": "binary", "bool": "boolean", "int64": "long"}
COLUMNS: Mapping[str, str] = {
    column.name: _TYPES[str(column.type)] for column in (*SNAPSHOT_SCHEMA, *DECODED_FIELDS)
}
"""Column → its type, as Delta and Iceberg name it. Those of `DECODED_FIELDS` are NULL in files that
do not have them."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of a table. `path`: in the folder of the map's snapshots. `statistics`: of the columns
    of numbers, as Delta has them; only of a file that is added now."""

    path: str
    size: int
    rows: int
    statistics: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TableState:
    """What a table has at its newest version; 0 or -1, as the format counts: there is none yet.
    `generation`: of the snapshot that was published last. `files`: by path."""

    version: int = -1
    generation: int = 0
    files: Mapping[str, DataFile] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NextVersion:
    """What one commit changes. `parameters`: what the commit says about the log."""

    generation: int
    added: Sequence[DataFile]
    gone: Sequence[str]
    parameters: Mapping[str, str]

    def after(self, former: TableState) -> TableState:
        files = {path: file for path, file in former.files.items() if path not in self.gone}
        files |= {file.path: file for file in self.added}
        return TableState(former.version + 1, self.generation, files)


class LakeTable(Protocol):
    """A table in the format of other programs, of one map. `place`: where programs find it, a path,
    a URL or a name in a catalog. `kind` and `name` are what people call it."""

    kind: str
    name: str
    place: str

    @property
    def id(self) -> str:
        """What no other table of that name has; "" if there can be no other one."""
        ...

    @property
    def is_missing(self) -> bool:
        """Whether the last `read` found no table, and `make` has to make an empty one first, which
        has the id. Then `read` again."""
        ...

    def make(self) -> None: ...

    def read(self) -> TableState:
        """Raises `InvalidSetting` for a table that is not of this map or that another program has
        changed, and `CorruptLog`."""
        ...

    def commit(self, former: TableState, following: NextVersion, keep: int) -> TableState:
        """Publish the version after `former`, so that the last `keep` ones stay readable. A commit
        whose answer was lost is found. Raises `AlreadyExists` if another process has published."""
        ...

    def expire(self, keep: int) -> None:
        """Remove versions whose files are not kept any more from the table. Raises nothing."""
        ...


def folder_of(log: ClusterLog, name: str) -> str:
    """The folder of a map's snapshots."""
    return f"{log.folder}/snapshot/{map_component(name)}"
