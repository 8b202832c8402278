"""An Iceberg table of a catalog that pyiceberg reaches. Its commits name the Parquet files of a
map's snapshot; metadata and manifests are where the catalog keeps those of its tables.

The files have no field ids, so the table has a name mapping. Programs that delete files of expired
snapshots, or of a dropped table, must not delete those of the log: `gc.enabled` is false, as in
tables that Iceberg itself makes of files that belong to others.
Source: iceberg.apache.org/spec and iceberg.apache.org/docs/latest/configuration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from imap_wal.errors import ImapWalError, InvalidSetting, StorageUnavailable
from imap_wal.names import map_component
from imap_wal.parquet.writer import WITHOUT_STATISTICS
from imap_wal.publish.publication import COLUMNS, DataFile, NextVersion, TableState, folder_of
from imap_wal.read.cluster import ClusterLog
from storage_backends import AlreadyExists, NotFound, StorageError
from storage_backends.extras import needs

with needs("iceberg"):
    from pyiceberg.catalog import Catalog, load_catalog
    from pyiceberg.exceptions import (
        CommitFailedException,
        CommitStateUnknownException,
        NoSuchTableError,
        TableAlreadyExistsError,
        ValidationException,
    )
    from pyiceberg.io.pyarrow import parquet_file_to_data_file
    from pyiceberg.manifest import DataFile as IcebergFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.types import BinaryType, BooleanType, LongType, NestedField, StringType

OURS = "imap-wal."
"""The beginning of our properties, of a table and of its snapshots."""
NONE = TableState(version=0)
"""Before the first version of a table, which is 1."""
_TYPES: Mapping[str, Any] = {
    "string": StringType(),
    "binary": BinaryType(),
    "boolean": BooleanType(),
    "long": LongType(),
}
_SCHEMA = Schema(
    *(
        NestedField(number, name, _TYPES[kind], required=False)
        for number, (name, kind) in enumerate(COLUMNS.items(), 1)
    )
)
_PROPERTIES = {
    # A commit is made after the version that was read, or not at all.
    "commit.retry.num-retries": "0",
    "gc.enabled": "false",
    "schema.name-mapping.default": _SCHEMA.name_mapping.model_dump_json(),
    "write.metadata.delete-after-commit.enabled": "true",
    **{f"write.metadata.metrics.column.{name}": "none" for name in sorted(WITHOUT_STATISTICS)},
}


class IcebergTable:
    """The Iceberg table of a map. See `imap_wal.publish.publication.LakeTable`."""

    kind = "iceberg"

    def __init__(self, log: ClusterLog, name: str, catalog: str, table: str = "") -> None:
        """`catalog`: its name in the configuration of pyiceberg. `table`: NAMESPACE.NAME; otherwise
        the names of the cluster and of the map, percent-encoded. Raises `InvalidSetting` for a
        catalog that cannot be opened, and for a storage that Iceberg cannot read."""
        names = table.split(".") if table else [map_component(log.cluster), map_component(name)]
        if len(names) < 2 or not all(names):
            raise InvalidSetting(f"{table!r} is no table of Iceberg: write NAMESPACE.NAME")
        self._names = tuple(names)
        self.place = self.name = ".".join((catalog, *names))
        self._catalog = _opened(catalog)
        self._map = name
        self._folder = f"{_location(log.store.url)}/{folder_of(log, name)}/"
        self._unique = log.randomness.name
        self._table: Table | None = None
        self._files: dict[str, IcebergFile] = {}
        """What the last `read` has found, by path."""

    def read(self) -> TableState:
        with self._reaching():
            return self._state()

    def _state(self) -> TableState:
        self._files = {}
        try:
            self._table = self._catalog.load_table(self._names)
        except NoSuchTableError:
            self._table = None
            return NONE
        self._demand_ours(self._table.properties)
        snapshot = self._table.current_snapshot()
        if snapshot is None:  # its first publication ended early
            return NONE
        said = snapshot.summary.additional_properties if snapshot.summary else {}
        if f"{OURS}generation" not in said:
            raise self._refused("another program has changed it")
        for manifest in snapshot.manifests(self._table.io):
            for entry in manifest.fetch_manifest_entry(self._table.io):
                location = entry.data_file.file_path
                if not location.startswith(self._folder):
                    raise self._refused(f"it has {location}, which is not in {self._folder}")
                self._files[location.removeprefix(self._folder)] = entry.data_file
        files = {
            path: DataFile(path, file.file_size_in_bytes, file.record_count)
            for path, file in self._files.items()
        }
        return TableState(snapshot.sequence_number or 0, int(said[f"{OURS}generation"]), files)

    def commit(self, former: TableState, following: NextVersion, keep: int) -> TableState:
        with self._reaching():
            return self._committed(following, keep)

    def _committed(self, following: NextVersion, keep: int) -> TableState:
        table = self._table or self._created()
        unique = {f"{OURS}publication": self._unique()}
        said = {f"{OURS}{name}": value for name, value in following.parameters.items()} | unique
        try:
            with table.transaction() as transaction:  # noqa: SIM117  the inner one ends first
                with transaction.update_snapshot(snapshot_properties=said).overwrite() as change:
                    for path in following.gone:
                        change.delete_data_file(self._files[path])
                    for file in following.added:
                        change.append_data_file(self._added(table, file))
        except (CommitFailedException, ValidationException) as error:
            raise AlreadyExists(f"another process published: {error}", self.place) from error
        except CommitStateUnknownException:
            after = self._state()
            snapshot = self._table.current_snapshot() if self._table else None
            summary = snapshot.summary if snapshot else None
            if summary is None or not unique.items() <= summary.additional_properties.items():
                raise
            return after
        self._expire(keep)
        return self._state()

    def _added(self, table: Table, file: DataFile) -> IcebergFile:
        location = f"{self._folder}{file.path}"
        try:
            return parquet_file_to_data_file(
                io=table.io, table_metadata=table.metadata, file_path=location
            )
        except FileNotFoundError as error:
            raise NotFound(f"a file of the snapshot is missing: {error}", file.path) from error

    def _created(self) -> Table:
        self._catalog.create_namespace_if_not_exists(self._names[:-1])
        properties = {**_PROPERTIES, f"{OURS}map": self._map}
        try:
            return self._catalog.create_table(self._names, _SCHEMA, properties=properties)
        except TableAlreadyExistsError as error:
            raise AlreadyExists(f"another process made the table: {error}", self.place) from error

    def _expire(self, keep: int) -> None:
        """Forget the snapshots whose files are not kept any more. Another process may do so at the
        same time, and the next publication forgets what is left."""
        table = self._catalog.load_table(self._names)
        old = sorted(table.snapshots(), key=lambda each: each.sequence_number or 0)[:-keep]
        if old:
            expiry = table.maintenance.expire_snapshots()
            for snapshot in old:
                expiry = expiry.by_id(snapshot.snapshot_id)
            try:
                expiry.commit()
            except CommitFailedException:
                return

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except (ImapWalError, StorageError):
            raise
        except Exception as error:  # of the driver of the catalog, or of its storage
            raise StorageUnavailable(
                f"the Iceberg table {self.place} cannot be read or written: "
                f"{type(error).__name__}: {error}. Run the command again: a publication continues "
                "where it ended"
            ) from error

    def _demand_ours(self, properties: Mapping[str, str]) -> None:
        of = properties.get(f"{OURS}map")
        if of is None:
            raise self._refused("it was not made by imap-wal")
        if of != self._map:
            raise self._refused(f"it is of map {of!r}")

    def _refused(self, why: str) -> InvalidSetting:
        return InvalidSetting(
            f"the Iceberg table {self.place} cannot be published to: {why}. Drop it from its "
            "catalog without its files, or choose another table with --table"
        )


def _opened(name: str) -> Catalog:
    try:
        return load_catalog(name)
    except Exception as error:  # of the driver of the catalog
        raise InvalidSetting(
            f"the Iceberg catalog {name!r} cannot be opened: {error}. It is configured as for "
            "pyiceberg, in ~/.pyiceberg.yaml or in variables PYICEBERG_CATALOG__"
            f"{name.upper()}__URI and others"
        ) from error


def _location(url: str) -> str:
    """The URL of a store as programs of Iceberg write it."""
    scheme, _, rest = url.partition("://")
    if scheme == "memory":
        raise InvalidSetting("a log in memory cannot be published: no other program can read it")
    return f"{scheme.removeprefix('objects+')}://{rest.rstrip('/')}"
