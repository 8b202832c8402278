"""The log as a Spark data source.

spark.read.format("imap_wal").load(url)      raw: every entry that counts
…option("mode", "latest")                    the live view: a task per bucket of keys
spark.readStream.format("imap_wal")          the changes, as they are appended
"""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from imap_wal.errors import InvalidSetting
from imap_wal.sql.types import RESCUED, written
from pyspark_imap_wal.batch import ImapWalReader
from pyspark_imap_wal.changes.batch import ImagesReader
from pyspark_imap_wal.changes.history import HistoryReader
from pyspark_imap_wal.latest import TASK_MEMORY_BYTES
from pyspark_imap_wal.metadata_tables import MetadataReader
from pyspark_imap_wal.options import (
    IMAGES,
    LATEST,
    LOG_FIELDS,
    RAW,
    Options,
    clusters_of,
    known,
)
from pyspark_imap_wal.plain_errors import plain_errors
from pyspark_imap_wal.tables import catalog
from pyspark_imap_wal.tables.schemas import (
    DECODED_COLUMNS,
    ENTRIES,
    HISTORY,
    METADATA_TABLES,
)


class ImapWalDataSource(DataSource):
    """`spark.read.format("imap_wal")`; options as in `Options`. Methods raise `InvalidSetting` for
    an option that is not valid or not for this use."""

    @classmethod
    def name(cls) -> str:
        return "imap_wal"

    def _chosen(self, columns: StructType | None = None) -> Options:
        """`columns`: of a read. Those of a table of a catalog have the table's options; those of a
        user may be fields of values."""
        if columns is None:
            return Options.parse(self.options)
        return with_fields(Options.parse({**catalog.recorded(columns), **self.options}), columns)

    @plain_errors()
    def schema(self) -> StructType:
        if not catalog.is_new_table(self.options, self.name()):
            return _columns(self._chosen())
        options = catalog.options_of_table(self.options)
        return catalog.with_options(_columns(Options.parse(options)), options)

    @plain_errors()
    def reader(self, schema: StructType) -> DataSourceReader:
        chosen = self._chosen(schema)
        of_streams = set(Options.OF_STREAMS) & set(self.options)
        if chosen.changes == IMAGES:
            of_streams.discard("starting")
        if of_streams:
            raise InvalidSetting(f"the option {min(of_streams)} is for spark.readStream")
        kinds = wanted(chosen, schema)
        if chosen.table == HISTORY:
            return HistoryReader(chosen, kinds)
        if chosen.changes == IMAGES:
            return ImagesReader(chosen, kinds)
        if chosen.table in METADATA_TABLES:
            return MetadataReader(chosen, kinds)
        return ImapWalReader(chosen, kinds)

    @plain_errors()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from pyspark_imap_wal.stream import ImapWalStreamReader

        chosen = self._chosen(schema)
        return ImapWalStreamReader(chosen, wanted(chosen, schema))

    @plain_errors()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from pyspark_imap_wal.backfill_writer import ImapWalWriter, Target

        if "path" not in self.options:
            raise InvalidSetting(
                "a table of a catalog takes no rows; add entries to a log with "
                'df.write.format("imap_wal").mode("append").option("map", …).save(url)'
            )
        unknown = sorted({*self.options} - {*OF_WRITES})
        if unknown:
            raise InvalidSetting(
                f"a backfill takes no option {', '.join(unknown)}; it takes {', '.join(OF_WRITES)}"
            )
        chosen = self._chosen()
        names = chosen.namespaces or ("default",), chosen.clusters or ("embedded",)
        if any(len(name) > 1 for name in (*names, chosen.maps)):
            raise InvalidSetting("a backfill writes into one cluster and, by option, one map")
        return ImapWalWriter(
            Target(chosen.path, names[0][0], names[1][0], "".join(chosen.maps)),
            {field.name: field.dataType.simpleString() for field in schema.fields},
            overwrite=overwrite,
        )


def _columns(options: Options) -> StructType:
    return catalog.columns_of(options.kinds(), options.types())


OF_WRITES = ("path", "map", "namespace", "cluster", "encryption_keys")
"""The options of a backfill."""


def with_fields(options: Options, schema: StructType) -> Options:
    """The options for a schema of the user (`spark.read.schema`). Names that are no columns of the
    log are fields of the values, if one map is named: as with the option `schema`."""
    if options.schema or options.table not in (ENTRIES, HISTORY) or len(options.maps) != 1:
        return options
    kinds = options.kinds()
    others = {field.name: field.dataType for field in schema.fields if field.name not in kinds}
    fields = {
        name: kind.simpleString()
        for name, kind in others.items()
        if name not in (RESCUED, *DECODED_COLUMNS)
    }
    if not fields or any(name.lower() in kinds for name in fields):  # misspelt columns of the log
        return options
    return replace(
        options, schema=written(fields), columns=tuple(field.name for field in schema.fields)
    )


def wanted(options: Options, schema: StructType) -> dict[str, str]:
    """Column → type of a schema, which may be the user's. Raises `InvalidSetting` for a column that
    does not exist, and for another type."""
    kinds = options.kinds()
    asked_kinds = {field.name: field.dataType.simpleString() for field in schema.fields}
    for name, kind in asked_kinds.items():
        if kinds.get(name) != kind:
            there = ", ".join(f"{column} {of}" for column, of in kinds.items())
            raise InvalidSetting(
                f"imap_wal has no column {name} {kind} here; it has {there}. Fields of values are "
                "columns too, if the option map names one map"
            )
    return asked_kinds


__all__ = [
    "LATEST",
    "LOG_FIELDS",
    "RAW",
    "TASK_MEMORY_BYTES",
    "ImapWalDataSource",
    "ImapWalReader",
    "Options",
    "clusters_of",
    "known",
]
