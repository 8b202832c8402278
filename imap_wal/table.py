"""A map of a log as a table of Arrow: `scan`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from imap_wal.arrow_library import loading
from imap_wal.checks import location
from imap_wal.clock import MOMENTS, SystemClock, demand_past, moment_ms, unix_ms, utc
from imap_wal.context import Context, open_context
from imap_wal.decoder import Decoder
from imap_wal.errors import InvalidSetting, NoSuchLog, StorageUnavailable
from imap_wal.inspect.inventory import take_inventory
from imap_wal.manifest.roots import why_no_root
from imap_wal.read.cluster import ATTEMPTS, ClusterLog
from imap_wal.read.log_reader import storage_errors
from imap_wal.read.map_names import began_after, some_names, why_no_map
from imap_wal.read.scan_list import cluster_scans
from imap_wal.read.schemas import schemas_of
from imap_wal.read.state import ClusterState
from imap_wal.retention.history import at_time
from imap_wal.settings import RecoveryPolicy, Settings
from storage_backends import NotFound
from storage_backends.location import Location, Place

BATCH_ROWS = 10_000
_MEMORY_BYTES = 256 * 1024 * 1024


def scan(
    url: Place,
    *,
    map: str,
    schema: str = "",
    columns: Sequence[str] | None = None,
    misfits: str = "rescue",
    as_of: datetime | str | int | None = None,
    batch_rows: int = BATCH_ROWS,
    memory_bytes: int = _MEMORY_BYTES,
    partial: bool = False,
    namespace: str = "",
    cluster: str = "",
    wal_dir: Place = "",
    storage_options: Mapping[str, Any] | None = None,
    encryption_keys: str = "",
) -> MapTable:
    """Read a map from its log as a table of Arrow: the live entries, as a restart would load them,
    in the order of the bytes of their keys. No store has to be open, and one may write meanwhile.
    Needs the extra `archive`.

    Args:
        url: the root of the logs: a folder or any fsspec URL.
        map: the name of the map.
        schema: columns for the fields of the values, as in `"id bigint, amount double"`
            (docs/how-to/table.md). The last column is `_rescued`, with the JSON of values that do
            not fit.
        columns: the other columns: `key_text`, `value_json`, and the columns of the log, such as
            `key`, `value` or `timestamp_ms`. Default: `key_text`, and without a schema
            `value_json`. A column of the schema hides one of the log with its name.
        misfits: `fail` raises `NotReadable` for a value that does not fit the schema.
        as_of: the map as of this moment: a datetime or ISO 8601 text, without a zone in UTC, or
            Unix milliseconds.
        batch_rows: the most rows in a batch.
        memory_bytes: about how much memory keys and rows may take while the log is merged; the
            rest is in files in the temporary folder.
        partial: continue without the logs of missing nodes.
        namespace: of the cluster; needed if the logs of several are under the URL.
        cluster: the same.
        wal_dir: as for `imap_wal.open`.
        storage_options: as for `imap_wal.open`.
        encryption_keys: the source of the keys of an encrypted log.

    Raises:
        MissingLibrary: pyarrow is not installed.
        NoSuchLog: there is no log.
        InvalidSetting: an argument is not valid, the log has no such map, or no longer has its
            state as of that moment.
        LogError: the log is damaged.
        MissingNode: the log of a node is missing.
        EncryptionError: the keys do not fit the log.
        StorageUnavailable: the storage failed.
    """
    if type(batch_rows) is not int or batch_rows < 1:
        raise InvalidSetting(f"batch_rows is {batch_rows!r}; it takes a number, 1 or more")
    if columns is None:
        columns = ("key_text",) if schema else ("key_text", "value_json")
    table = MapTable(
        _Asked(
            place=replace(location(url, options=storage_options), encryption_keys=encryption_keys),
            wal_dir=location(wal_dir, "wal_dir"),
            namespace=namespace,
            cluster=cluster,
            map=map,
            schema=schema,
            columns=tuple(columns),
            misfits=misfits,
            as_of_ms=_moment(as_of),
            batch_rows=batch_rows,
            settings=Settings(
                restore_memory_bytes=memory_bytes,
                recovery_policy=RecoveryPolicy.PARTIAL if partial else RecoveryPolicy.FULL,
            ),
        )
    )
    with table._opened() as (context, log):
        why = why_no_map([log], [map])
        if why:
            raise InvalidSetting(f"{table}: {why}")
        table._state(log, context.clock.now_ms())
    return table


def _moment(as_of: datetime | str | int | None) -> int | None:
    if as_of is None or type(as_of) is int:
        return as_of
    if isinstance(as_of, datetime):
        return unix_ms(as_of)
    try:
        return moment_ms(str(as_of), SystemClock().now_ms())
    except ValueError as error:
        raise InvalidSetting(
            f"as_of is {as_of!r}; it takes a datetime, or {MOMENTS} ({error})"
        ) from error


@dataclass(frozen=True, kw_only=True, slots=True)
class _Asked:
    """The arguments of `scan`."""

    place: Location
    wal_dir: Location
    namespace: str
    cluster: str
    map: str
    schema: str
    columns: tuple[str, ...]
    misfits: str
    as_of_ms: int | None
    batch_rows: int
    settings: Settings


class MapTable:
    """The live entries of a map, for whatever reads Arrow's C streams: `pyarrow.table(table)`,
    `pandas.DataFrame.from_arrow(table)`, `polars.DataFrame(table)`, and DuckDB by the name of the
    variable. Each of them starts a read of its own. Memory: about `memory_bytes` of `scan`, and a
    batch."""

    def __init__(self, asked: _Asked) -> None:
        self._asked = asked
        self._shape()  # it checks the columns

    def __str__(self) -> str:
        return str(self._asked.place)

    @property
    def schema(self) -> Any:
        """The `pyarrow.Schema`."""
        return self._shape().schema

    def reader(self) -> Any:
        """A `pyarrow.RecordBatchReader` that reads the log once. If a rewrite and a prune remove
        files meanwhile, it raises `StorageUnavailable`: read again."""
        return self._shape().reader(self._batches())

    def __arrow_c_schema__(self) -> Any:
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.reader().__arrow_c_stream__(requested_schema)

    def _shape(self, decoder: Decoder | None = None) -> Any:
        with loading("imap_wal.scan returns tables of Arrow"):
            from imap_wal.sql.shape import Shape

        asked = self._asked
        return Shape(asked.schema, asked.columns, asked.misfits, decoder)

    @contextmanager
    def _opened(self) -> Iterator[tuple[Context, ClusterLog]]:
        asked = self._asked
        with storage_errors(str(asked.place)):
            context = open_context(asked.place, wal_dir=asked.wal_dir)
            with closing(context.store):
                yield context, self._log(context)

    def _log(self, context: Context) -> ClusterLog:
        place, namespace, cluster = self._asked.place, self._asked.namespace, self._asked.cluster
        states = take_inventory(
            context, (namespace,) if namespace else (), (cluster,) if cluster else ()
        )
        if len(states) == 1:
            return ClusterLog.of(context, states[0])
        if states:
            raise InvalidSetting(
                f"{place} has several logs: {some_names([*map(str, states)])}; choose one with "
                "namespace and cluster"
            )
        why = why_no_root(context.store)
        there = some_names([*map(str, take_inventory(context))])
        raise NoSuchLog(f"{place} {why or f'has no such log; found: {there}'}")

    def _state(self, log: ClusterLog, now_ms: int) -> ClusterState:
        """What is to be read."""
        name, time_ms = self._asked.map, self._asked.as_of_ms
        state = log.state().demand(self._asked.settings.recovery_policy)
        if time_ms is None:
            return state
        demand_past(time_ms, now_ms)
        past = at_time(log, state, time_ms, (name,))
        if past.unknown:
            until_ms = state.manifest.snapshots[name].until_ms
            raise InvalidSetting(
                f"the state of map {name!r} at {utc(time_ms)} is no longer known: a rewrite kept "
                f"only the newest entry of every key at {utc(until_ms)}; ask for a later as_of"
            )
        first = began_after(log, past.state, (name,), time_ms)
        if first is not None:
            raise InvalidSetting(
                f"map {name!r} has no entry of {utc(time_ms)} or before; the first one is of "
                f"{utc(first)}; ask for a later as_of"
            )
        return past.state

    def _batches(self) -> Iterator[Any]:
        with self._opened() as (context, log):
            for attempt in range(ATTEMPTS):
                begun = False
                try:
                    for batch in self._read(context, log):
                        begun = True
                        yield batch
                    return
                except NotFound as error:
                    if begun or attempt == ATTEMPTS - 1:
                        raise StorageUnavailable(
                            f"{error}: it was removed while it was read; read the table again"
                        ) from error

    def _read(self, context: Context, log: ClusterLog) -> Iterator[Any]:
        from imap_wal.rewrite.columns.live_entries import live_entries

        asked, now_ms = self._asked, context.clock.now_ms()
        state = self._state(log, now_ms)
        shape = self._shape(Decoder(lambda: schemas_of(log, state)))
        for batch in live_entries(
            log,
            cluster_scans(state, maps=(asked.map,)),
            now_ms if asked.as_of_ms is None else asked.as_of_ms,
            asked.settings,
            maps=(asked.map,),
            newest_ms=asked.as_of_ms,
        ):
            for start in range(0, len(batch), asked.batch_rows):
                yield shape.of_batch(batch.slice(start, asked.batch_rows))
