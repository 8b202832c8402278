"""The maps of a log as tables of a `Database`: `latest` has the live entries, as a restore would
load them, and `raw` every change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from imap_wal.context import Context
from imap_wal.decoder import Decoder
from imap_wal.entry import KEY, MAP, ORDER_FIELDS, TIMESTAMP_MS, VALUE
from imap_wal.format import Position
from imap_wal.read.cluster import ATTEMPTS, ClusterLog
from imap_wal.read.file_scan import Scope, from_manifest
from imap_wal.settings import RecoveryPolicy
from rewrite_cli.console.output import note
from rewrite_cli.console.progress import Tell
from rewrite_cli.console.selection import Selection
from rewrite_cli.entries.database import SCHEMAS, Database, Query, fold
from rewrite_cli.entries.live import MEMORY_BYTES, LiveCluster, Reading, merge_all
from rewrite_cli.entries.losses import Losses
from rewrite_cli.entries.sql_columns import (
    LATEST,
    RAW,
    Column,
    FoundEntry,
    batch,
    with_schema,
)
from storage_backends import NotFound

if TYPE_CHECKING:  # it needs pyarrow
    from imap_wal.sql.types import Schema

_BATCH_ROWS = 10_000
_BATCH_BYTES = 16 * 1024 * 1024
_ONE_CHANGE = ("namespace", "cluster", "node", "key", "partition", *ORDER_FIELDS)
"""Columns that together identify a change."""


@dataclass(frozen=True)
class ReadOptions:
    """Which logs are read, and how: the options of the command. `memory_bytes`: as in
    `Reading`."""

    selection: Selection
    partial: bool = False
    as_of_ms: int | None = None
    memory_bytes: int = MEMORY_BYTES
    losses: Losses = field(default_factory=Losses)
    schema: Schema = field(default_factory=dict)
    """The typed columns of the values."""

    @property
    def columns(self) -> Mapping[str, Sequence[Column]]:
        """Of the two kinds of tables."""
        both = (with_schema(columns, self.schema) for columns in (LATEST, RAW))
        return dict(zip(SCHEMAS, both, strict=True))


class _Buffer:
    """Changes that are inserted together. Its memory does not depend on the number of tables."""

    def __init__(self, put: Callable[[str, Sequence[FoundEntry]], None]) -> None:
        self._put = put
        self._changes: dict[str, list[FoundEntry]] = {}
        self._rows = self._size = 0

    def add(self, change: FoundEntry) -> None:
        self._changes.setdefault(change.row[MAP], []).append(change)
        self._rows += 1
        self._size += len(change.row[KEY] or b"") + len(change.row[VALUE] or b"")
        if self._rows >= _BATCH_ROWS or self._size >= _BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        for name, changes in self._changes.items():
            self._put(name, changes)
        self._changes, self._rows, self._size = {}, 0, 0


def prepare(database: Database, query: Query, columns: Mapping[str, Sequence[Column]]) -> None:
    """Check a query before anything is read. All tables have the same columns, so this needs no
    rows.

    Raises:
        click.UsageError: DuckDB refuses the query.
    """
    for schema, table in query.tables or ():
        database.create(schema, table, columns[schema])
    database.check(query)
    for schema, table in query.tables or ():
        database.drop(schema, table)


def load(database: Database, query: Query | None, options: ReadOptions, tell: Tell) -> list[str]:
    """Read the log, and create the tables that the query needs.

    Args:
        database: Where the tables are created.
        query: The query that follows; None: there is none.
        options: Which logs are read, and how.
        tell: Gets a text about the progress.

    Returns:
        The names of all maps of the selection.

    Raises:
        click.UsageError: The query is ambiguous about which of two maps it means.
        ImapWalError, StorageError: The log cannot be read, or is damaged.
    """
    selection = options.selection
    with ExitStack() as stack:
        context, views = stack.enter_context(selection.open())
        reading = Reading(options.partial, options.as_of_ms, memory_bytes=options.memory_bytes)
        merged = merge_all(context, views, selection, stack, tell, reading)
        selection.note_empty(name for cluster in merged for name in cluster.names)
        names = sorted({name for cluster in merged for name in cluster.names})
        queried = {} if query is None else _wanted(query, names)
        for name in queried.get("latest", ()):
            tell(f"loading {name}")
            _load_latest(database, name, merged, options)
        if queried.get("raw"):
            _demand_apart(options.columns["raw"])
            for cluster in merged:
                _load_raw(database, queried["raw"], context, cluster, options, tell)
    return names


def _demand_apart(columns: Iterable[Column]) -> None:
    """Raises click.UsageError if a schema hides what tells two changes apart."""
    for column in columns:
        if column.of is None and column.name.lower() in _ONE_CHANGE:
            raise click.UsageError(
                f"the views of raw have a column {column.name} of their own: query the live "
                "entries, or query without a schema and read value_json"
            )


def _load_latest(
    database: Database, name: str, merged: Iterable[LiveCluster], options: ReadOptions
) -> None:
    columns = options.columns["latest"]
    database.create("latest", name, columns)
    for rows in batches_of(name, merged, columns, options):
        database.insert("latest", name, rows)


def batches_of(
    name: str, merged: Iterable[LiveCluster], columns: Sequence[Column], options: ReadOptions
) -> Iterator[Any]:
    """The live entries of a map, as `batch`."""
    for live_cluster in merged:
        view, decoder = live_cluster.view, live_cluster.decoder
        if name not in live_cluster.names:
            continue
        for rows in live_cluster.rows(name):
            found = [
                FoundEntry(row, decoder, view.namespace, view.cluster, losses=options.losses)
                for row in rows
            ]
            yield batch(columns, found, options.schema)


def _load_raw(
    database: Database,
    names: Iterable[str],
    context: Context,
    merged: LiveCluster,
    options: ReadOptions,
    tell: Tell,
) -> None:
    """Every change of one cluster, once: with its position if a file of a node still has it."""
    policy = RecoveryPolicy.PARTIAL if options.partial else RecoveryPolicy.FULL
    view = merged.view
    log = ClusterLog.of(context, view)
    decoder = Decoder(
        (from_manifest(item) for node in view.all_nodes for item in node.manifest.metadata), note
    )
    decoder.add_metadata(merged.metadata)
    mine = [name for name in names if name in merged.names]
    for name in mine:
        database.create("raw", name, options.columns["raw"])
    for attempt in range(ATTEMPTS):
        try:
            _read_raw(database, mine, log, decoder, policy, options, tell)
            return
        # Files were removed while they were read: begin again.
        except NotFound:
            if attempt == ATTEMPTS - 1:
                raise
            for name in mine:
                database.forget("raw", name, view.namespace, view.cluster)


def _read_raw(
    database: Database,
    names: Sequence[str],
    log: ClusterLog,
    decoder: Decoder,
    policy: RecoveryPolicy,
    options: ReadOptions,
    tell: Tell,
) -> None:
    as_of_ms, losses, schema = options.as_of_ms, options.losses, options.schema
    raw = options.columns["raw"]
    of_logs = _Buffer(lambda name, rows: database.insert("raw", name, batch(raw, rows, schema)))
    of_snapshots = _Buffer(lambda name, rows: database.stage(name, raw, batch(raw, rows, schema)))
    count = 0
    for changes in log.changes(names, Scope(covered=True), policy=policy, positions=True):
        decoder.add_metadata(changes.metadata)
        buffer = of_snapshots if changes.positions is None else of_logs
        places: Iterable[Position | None] = changes.positions or [None] * len(changes.rows)
        for row, place in zip(changes.rows, places, strict=True):
            if as_of_ms is None or row[TIMESTAMP_MS] <= as_of_ms:
                buffer.add(
                    FoundEntry(
                        row,
                        decoder,
                        log.namespace,
                        log.cluster,
                        changes.node,
                        place,
                        losses,
                    )
                )
        count += len(changes.rows)
        tell(f"{log.namespace}/{log.cluster}: {count:,} changes")
    of_logs.flush()
    of_snapshots.flush()
    for name in names:
        database.absorb("raw", name, raw, _ONE_CHANGE)


def _wanted(query: Query, names: Sequence[str]) -> Mapping[str, list[str]]:
    """The maps that a query reads, for each schema. Other names are left out: they may be names
    that the query itself defines."""
    if query.tables is None:
        whole = _apart(names)
        return dict.fromkeys(SCHEMAS, whole)
    tables_by_schema: dict[str, dict[str, str]] = {schema: {} for schema in SCHEMAS}
    for schema, table in sorted(query.tables):
        near = [name for name in names if fold(name) == fold(table)]
        match = [name for name in near if name == table] or near
        if not match:
            continue
        same_table = tables_by_schema[schema].setdefault(fold(table), match[0])
        if len(match) > 1 or same_table != match[0]:
            raise click.UsageError(
                f"SQL cannot distinguish the maps {', '.join(map(repr, near))}: write the name of "
                "one exactly, and use one query for each"
            )
    return {schema: sorted(tables.values()) for schema, tables in tables_by_schema.items()}


def _apart(names: Sequence[str]) -> list[str]:
    """The names that a table can have."""
    by_folded_name: dict[str, str] = {}
    for name in names:
        other = by_folded_name.setdefault(fold(name), name)
        if "\0" in name:
            del by_folded_name[fold(name)]
        if "\0" in name or other != name:
            why = "name it" if "\0" in name else f"distinguish it from map {other!r}"
            note(f"map {name!r} is left out: SQL cannot {why}")
    return sorted(by_folded_name.values())
