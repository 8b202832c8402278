"""An Iceberg table of a catalog that pyiceberg reaches. Its commits name the Parquet files of a
map's snapshot; metadata and manifests are where the catalog keeps those of its tables.

The files have no field ids, so the table has a name mapping. Programs that delete files of expired
snapshots, or of a dropped table, must not delete those of the log: `gc.enabled` is false, as in
tables that Iceberg itself makes of files that belong to others.
Source: iceberg.apache.org/spec and iceberg.apache.org/docs/latest/configuration.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from imap_wal.errors import ImapWalError, InvalidSetting, StorageUnavailable
from imap_wal.parquet.writer import WITHOUT_STATISTICS
from imap_wal.publish.lake_table import COLUMNS, DataFile, NextVersion, TableState, folder_of
from imap_wal.read.cluster import ClusterLog
from storage_backends import AlreadyExists, NotFound, StorageError
from storage_backends.extras import needs
from storage_backends.location import without_secrets

with needs("iceberg"):
    from pyiceberg import exceptions
    from pyiceberg.catalog import Catalog, delete_files, load_catalog
    from pyiceberg.io.pyarrow import parquet_file_to_data_file
    from pyiceberg.manifest import DataFile as IcebergFile
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Operation, Snapshot
    from pyiceberg.table.update import AssertTableUUID

    # It is what `Transaction.update_snapshot().overwrite()` makes; only a subclass can leave out
    # manifests.
    from pyiceberg.table.update.snapshot import _OverwriteFiles
    from pyiceberg.types import BinaryType, BooleanType, LongType, NestedField, StringType

_log = logging.getLogger("imap_wal")

OURS = "imap-wal."
"""Prefix of our properties of tables and snapshots."""
NONE = TableState(version=0)
"""Before the first version of a table, which is 1."""
FORMAT = 2
TIMEOUT_S = 60.0
"""The longest silence of a REST catalog."""
SCHEMES = {"file", "s3", "gs", "abfs", "abfss", "oss"}
"""Those of our storages that programs of Iceberg have too."""
_SAME = {"objects+file": "file", "gcs": "gs"}
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
# pyiceberg 0.12 cannot shorten some texts (an upper bound may end in a lone surrogate).
_COUNTED = {name for name, kind in COLUMNS.items() if kind == "string"} - WITHOUT_STATISTICS
_PROPERTIES = {
    "gc.enabled": "false",
    "schema.name-mapping.default": _SCHEMA.name_mapping.model_dump_json(),
    "write.metadata.delete-after-commit.enabled": "true",
    **{f"write.metadata.metrics.column.{name}": "none" for name in sorted(WITHOUT_STATISTICS)},
    **{f"write.metadata.metrics.column.{name}": "counts" for name in sorted(_COUNTED)},
}
_OF_THE_USER = (
    ValueError,
    exceptions.BadRequestError,
    exceptions.ForbiddenError,
    exceptions.NoSuchTableError,
    exceptions.UnauthorizedError,
    exceptions.ValidationError,
)


class _ReplacedFiles(_OverwriteFiles):
    """A snapshot without the manifests that have only files which former snapshots removed."""

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        return [
            manifest
            for manifest in manifests
            if manifest.has_added_files()
            or manifest.has_existing_files()
            or manifest.added_snapshot_id == self.snapshot_id
        ]


class IcebergTable:
    """The Iceberg table of a map. See `imap_wal.publish.lake_table.LakeTable`."""

    kind = "iceberg"

    def __init__(self, log: ClusterLog, name: str, catalog: str, table: str) -> None:
        """`catalog`: its name in the configuration of pyiceberg. `table`: NAMESPACE.NAME. Raises
        `InvalidSetting` for a catalog that cannot be opened, and for a storage that Iceberg cannot
        read."""
        names = table.split(".")
        if len(names) < 2 or not all(names):
            raise InvalidSetting(
                f"the Iceberg table {table!r} has no namespace: write NAMESPACE.NAME, such as "
                "shop.orders"
            )
        self._names = tuple(names)
        self.name = self.place = f"{catalog}.{table}"
        self._folder = f"{_location(log.store.url)}/{folder_of(log, name)}/"
        self._catalog = _opened(catalog)
        self._map, self._log = name, log
        self._table: Table | None = None
        self._files: dict[str, IcebergFile] = {}
        """What the last `read` has found, by path."""

    @property
    def id(self) -> str:
        """A name may be that of another table later, or in the configuration of another machine."""
        return self._table.metadata.table_uuid.hex[:8] if self._table else ""

    @property
    def is_missing(self) -> bool:
        return self._table is None

    def make(self) -> None:
        with self._reaching():
            self._create()

    def read(self) -> TableState:
        with self._reaching():
            return self._state()

    def _load(self) -> Table | None:
        try:
            self._table = self._catalog.load_table(self._names)
        except exceptions.NoSuchIcebergTableError:
            raise self._refused("it is no Iceberg table", is_ours=False) from None
        except exceptions.NoSuchTableError:
            self._table = None
        return self._table

    def _state(self) -> TableState:
        self._files = {}
        table = self._load()
        if table is None:
            return NONE
        self._demand_ours(table)
        snapshot = table.current_snapshot()
        if snapshot is None:  # its first publication ended early
            return NONE
        said = _said(snapshot)
        if f"{OURS}generation" not in said:
            raise self._refused("another program has changed it")
        for manifest in snapshot.manifests(table.io):
            for entry in manifest.fetch_manifest_entry(table.io):
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
            return self._committed(former, following)

    def _committed(self, former: TableState, following: NextVersion) -> TableState:
        table = self._table
        assert table is not None, "it was made"
        unique = {f"{OURS}publication": self._log.randomness.name()}
        said = {f"{OURS}{name}": value for name, value in following.parameters.items()} | unique
        transaction = table.transaction()
        if changed := {
            name: value
            for name, value in _PROPERTIES.items()
            if table.properties.get(name) != value
        }:
            transaction.set_properties(changed)
        has_snapshot = table.current_snapshot() is not None
        with _ReplacedFiles(
            operation=Operation.OVERWRITE if has_snapshot else Operation.APPEND,
            transaction=transaction,
            io=table.io,
            snapshot_properties=said,
        ) as change:
            for path in following.gone:
                change.delete_data_file(self._files[path])
            for file in following.added:
                change.append_data_file(self._added(table, file))
        # Not by `commit_transaction`: it would commit after another program's version, or delete
        # the manifests of a commit that a catalog has made and refuses when it is sent again.
        requirements = (
            *transaction._requirements,
            AssertTableUUID(uuid=table.metadata.table_uuid),
        )
        try:
            answer = self._catalog.commit_table(table, requirements, transaction._updates)
        except Exception as error:
            after = self._state()
            made = self._table.snapshots() if self._table else ()
            if not any(unique.items() <= _said(snapshot).items() for snapshot in made):
                if isinstance(error, exceptions.CommitFailedException):
                    why = f"another process published: {error}"
                    raise AlreadyExists(why, self.place) from error
                raise
            return after
        with self._leaving_files():  # as `commit_transaction` does
            self._catalog._delete_old_metadata(table.io, table.metadata, answer.metadata)
        return following.after(former)

    def _added(self, table: Table, file: DataFile) -> IcebergFile:
        location = f"{self._folder}{file.path}"
        try:
            return parquet_file_to_data_file(
                io=table.io, table_metadata=table.metadata, file_path=location
            )
        except FileNotFoundError as error:
            path = f"{folder_of(self._log, self._map)}/{file.path}"
            if self._log.store.exists(path):
                raise InvalidSetting(
                    f"programs that use the catalog do not find {location}: its storage "
                    "settings differ from those of the log"
                ) from error
            raise NotFound(f"a file of the snapshot is missing: {error}", path) from error

    def _create(self) -> None:
        properties = {
            **_PROPERTIES,
            "format-version": str(FORMAT),
            f"{OURS}map": self._map,
            f"{OURS}log": self._folder,
        }
        create = partial(self._catalog.create_table, self._names, _SCHEMA, properties=properties)
        try:
            try:
                create()
            except exceptions.NoSuchNamespaceError:
                self._create_namespace()
                create()
        except exceptions.TableAlreadyExistsError:
            return  # another process has made it

    def _create_namespace(self) -> None:
        try:
            self._catalog.create_namespace(self._names[:-1])
        except Exception:  # each catalog has its own error for one that another process makes now
            if not self._catalog.namespace_exists(self._names[:-1]):
                raise

    def expire(self, keep: int) -> None:
        """Forget the snapshots whose files are not kept any more. What another process forgets at
        the same time, or a catalog that fails, is left to the next publication."""
        try:
            with self._reaching():
                self._forget_snapshots(keep)
        except (ImapWalError, StorageError) as error:
            _log.warning("old snapshots stay until the next publication: %s", error)

    def _forget_snapshots(self, keep: int) -> None:
        table = self._catalog.load_table(self._names)
        named = {reference.snapshot_id for reference in table.refs().values()}
        by_age = sorted(table.snapshots(), key=lambda snapshot: snapshot.sequence_number or 0)
        expiry = table.maintenance.expire_snapshots()
        old = [one.snapshot_id for one in by_age[:-keep] if one.snapshot_id not in named]
        for snapshot_id in old:
            expiry = expiry.by_id(snapshot_id)
        if not old:
            return
        expiry.commit()
        with self._leaving_files():
            # `table` is as after this commit. Any snapshot may share manifests with any other one.
            kept = _metadata(table, table.snapshots())
            gone = _metadata(table, [one for one in by_age if one.snapshot_id in old])
            delete_files(table.io, gone - kept, "manifest")

    @contextmanager
    def _leaving_files(self) -> Iterator[None]:
        """While files of metadata that nothing names any more are deleted. Those of an error stay,
        and the version is published."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  of the driver of the storage
            why = without_secrets(" ".join(str(error).split()))
            _log.warning("old metadata files of %s stay: %s", self.place, why)

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        """Turns errors of the catalog's driver or storage into ours."""
        try:
            yield
        except (ImapWalError, StorageError):
            raise
        except Exception as error:
            why = (
                f"the Iceberg table {self.place} cannot be read or written: "
                f"{type(error).__name__}: {' '.join(without_secrets(str(error)).split())}"
            )
            if "No default path" in why:
                catalog = self.place.partition(".")[0].upper()
                why = f"{why}: set PYICEBERG_CATALOG__{catalog}__WAREHOUSE"
            if isinstance(error, _OF_THE_USER):
                raise InvalidSetting(why) from error
            raise StorageUnavailable(f"{why}. Publish again: that begins from the start") from error

    def _demand_ours(self, table: Table) -> None:
        of, log = (table.properties.get(f"{OURS}{name}") for name in ("map", "log"))
        if of is None:
            raise self._refused("it was not made by imap-wal", is_ours=False)
        if of != self._map:
            raise self._refused(f"it is of map {of!r}", is_ours=False)
        if log != self._folder:
            raise self._refused(
                f"it is of the log in {log}, and this one is in {self._folder}", is_ours=False
            )
        if table.format_version != FORMAT:
            raise self._refused(f"its format has version {table.format_version}, not {FORMAT}")
        columns = {column.name: str(column.field_type) for column in table.schema().fields}
        if columns != {column.name: str(column.field_type) for column in _SCHEMA.fields}:
            raise self._refused("another program has changed its columns")

    def _refused(self, why: str, *, is_ours: bool = True) -> InvalidSetting:
        advice = "Choose another table with --table"
        if is_ours:
            advice += ", or drop it without its files (not by `purge_table`)"
        return InvalidSetting(
            f"the Iceberg table {self.place} cannot be published to: {why}. {advice}"
        )


def _metadata(table: Table, snapshots: Iterable[Snapshot]) -> set[str]:
    """The manifest lists of snapshots, and the manifests in them."""
    return {
        path
        for snapshot in snapshots
        for path in (
            snapshot.manifest_list,
            *(manifest.manifest_path for manifest in snapshot.manifests(table.io)),
        )
    }


def _said(snapshot: Snapshot) -> Mapping[str, str]:
    return snapshot.summary.additional_properties if snapshot.summary else {}


def _opened(name: str) -> Catalog:
    try:
        catalog = load_catalog(name)
    except Exception as error:  # of the driver of the catalog
        variable = f"PYICEBERG_CATALOG__{name.upper()}__URI"
        if variable in str(error):
            raise InvalidSetting(
                f"no Iceberg catalog {name!r} is configured: set {variable}, or add it to "
                "~/.pyiceberg.yaml"
            ) from error
        why = " ".join(without_secrets(str(error)).split())
        raise InvalidSetting(f"the Iceberg catalog {name!r} cannot be opened: {why}") from error
    session = getattr(catalog, "_session", None)
    if session is not None:  # REST: without a limit, a rewrite could wait without end
        session.request = partial(session.request, timeout=TIMEOUT_S)
    return catalog


def _location(url: str) -> str:
    """The URL of a store as programs of Iceberg write it."""
    scheme, _, rest = url.partition("://")
    scheme = _SAME.get(scheme, scheme)
    if scheme not in SCHEMES or {"?", "#"} & {*rest}:
        reason = "has a ? or # in its path" if scheme in SCHEMES else "is in such a storage"
        raise InvalidSetting(
            f"programs of Iceberg cannot read a log that {reason}: {without_secrets(url)}"
        )
    return f"{scheme}://{rest.rstrip('/')}"
