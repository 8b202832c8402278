"""`imap-wal import`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import click

from imap_wal.context import open_context
from imap_wal.entry import KEY_CLASS, MSGPACK, PICKLE, VALUE_CLASS
from imap_wal.errors import ImapWalError, NotSerializable
from imap_wal.layout import Identity, is_backfill
from imap_wal.names import check_map_name, decode
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.map_names import MapNames
from imap_wal.read.view import MaterializedView
from imap_wal.retention import backfill
from imap_wal.retention.backfill_rows import BackfillEntry, BackfillRows
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.row_engine import RowEngine
from imap_wal.rewrite.run import rewrite
from imap_wal.rewrite.turn import turn
from imap_wal.rules.alive import has_expired
from imap_wal.rules.valid import demand_known_class, demand_size
from imap_wal.serializer import Serializer, serializer_of
from imap_wal.settings import Settings
from imap_wal.write.context import LogContext
from imap_wal.write.opening import open_node_log
from rewrite_cli.console import output as out
from rewrite_cli.console.failures import CLEAN, FINDINGS, Failed, message, opening
from rewrite_cli.console.progress import Reached, Tell, working
from rewrite_cli.console.selection import Url, refuse_nested, url_argument
from rewrite_cli.sources.diskcache_folder import DiskcacheFolder
from rewrite_cli.sources.imported import Counts, Imported, advice, show
from rewrite_cli.sources.pickles import load_safely, load_trusted
from rewrite_cli.sources.seatunnel_folder import SeatunnelFolder
from rewrite_cli.sources.shelf import Shelf
from rewrite_cli.sources.source import Source, Stored, Unreadable
from rewrite_cli.sources.sqlitedict_file import SqlitedictFile
from storage_backends import StorageError
from storage_backends.location import Location

SHELVE, SQLITEDICT, DISKCACHE, SEATUNNEL = FORMS = (
    "shelve",
    "sqlitedict",
    "diskcache",
    "seatunnel",
)
NODE, AGENTS, PURPOSE = "embedded", "dev", "imap-wal import"
BATCH_ENTRIES, BATCH_BYTES = 1024, 4 * 1024 * 1024
MEMORY_BYTES = 64 * 1024 * 1024
"""Of the merge that follows; the rest is on scratch."""
VALUE_BYTES_MAX = Settings().max_value_bytes


@click.command()
@click.argument("form", type=click.Choice(FORMS))
@click.argument("path")
@url_argument
@click.option(
    "--map",
    "name",
    default="",
    help="Name of the map. Default: the name of the file, folder or table.",
)
@click.option(
    "--table",
    "tables",
    multiple=True,
    help="With sqlitedict, only this table; may be repeated. Each table becomes a map.",
)
@click.option("--namespace", default="default", show_default=True, help="Namespace of the cluster.")
@click.option(
    "--cluster",
    help=f"Cluster of the maps. Default: {NODE}, as for programs; with seatunnel: {AGENTS}, as for "
    "agents.",
)
@click.option(
    "--serializer",
    type=click.Choice((MSGPACK, PICKLE)),
    default=MSGPACK,
    show_default=True,
    help="Serializer of the map. With pickle, the map keeps objects of any class, and must be "
    'opened with serializer="pickle".',
)
@click.option(
    "--trust-pickle",
    is_flag=True,
    help="Also read pickles that need other classes than those of the default serializer. Then "
    "the pickles can run any code in this process.",
)
@click.option(
    "--skip-refused",
    is_flag=True,
    help="If some entries cannot be imported, import the others, and exit with 3.",
)
@click.option(
    "--add",
    is_flag=True,
    help="Add to a map that has entries; entries of the source replace those with the same key.",
)
@out.dry_run_option
@out.output_option
def command(
    form: str,
    path: str,
    url: Location,
    name: str,
    tables: tuple[str, ...],
    namespace: str,
    cluster: str | None,
    serializer: str,
    trust_pickle: bool,
    skip_refused: bool,
    add: bool,
    dry_run: bool,
    output: str,
) -> int:
    """Copy the entries of a shelve file, a sqlitedict file, a diskcache folder, or a folder of
    SeaTunnel's imap-storage-file into maps of a log: all of them, or none.

    PATH is only read, and these libraries need not be installed. No program may have the log open.
    If the command is killed, nothing was imported: run it again. Expired entries are left out; the
    others keep their time of expiry.

    With seatunnel, PATH is the folder of a cluster, or its URL. Stop the servers of that cluster
    first. Keys and values are copied as bytes.

    For the other libraries, values are pickles, and reading a pickle can run any code. So only
    None, bool, int, float, str, bytes, dates and times, Decimal, UUID, and lists, tuples, sets and
    dicts of these are read. Every other value is refused, and nothing is imported.

    \b
    Examples:
      imap-wal import shelve sessions.db /var/lib/maps --dry-run
      imap-wal import sqlitedict app.sqlite /var/lib/maps --table users
      imap-wal import diskcache /var/cache/app s3://bucket/maps --map pages
      imap-wal import seatunnel hdfs://nn/imap/c1 /var/lib/agents --cluster seatunnel
    """
    if cluster is None:
        cluster = AGENTS if form == SEATUNNEL else NODE
    Identity(namespace, cluster, "import").check()
    if tables and form != SQLITEDICT:
        raise click.UsageError(f"--table is for {SQLITEDICT}")
    if form == SEATUNNEL and (trust_pickle or serializer != MSGPACK):
        raise click.UsageError(
            f"--trust-pickle and --serializer are not for {SEATUNNEL}: its bytes are copied"
        )
    load = load_trusted if trust_pickle else load_safely
    with working("reading") as tell, ExitStack() as stack:
        if form == SEATUNNEL:
            place = Url().convert(path, None, click.get_current_context())
            source: Source = SeatunnelFolder(place, name, tell)
        else:
            place = Location(str(Path(path).resolve()))
            source = _open(form, Path(path), name, tables, load)
        stack.callback(source.close)
        refuse_nested(place, url)
        for map_name in source.maps():
            check_map_name(map_name)
        with opening(url):
            context = open_context(url)
        stack.callback(context.store.close)
        log = ClusterLog(context, namespace, cluster)
        label = "" if form == SEATUNNEL else serializer
        _demand_room(log, source.maps(), label, add=add)
        if not dry_run:
            backfill.demand_possible(log)
        read = partial(_serialised, source, serializer, log.clock.now_ms(), tell)
        result = Imported({map_name: Counts() for map_name in source.maps()})
        for _ in read("checking", result):
            pass
        published = not dry_run and (skip_refused or not result.refusals)
        if published and result.imported.total():
            _import(log, read, result, programs=form != SEATUNNEL)
        files = log.store.list(log.folder) if published else []
    size = sum(file.size for file in files) if published else None
    show(result, source, output, size, published=published, dry_run=dry_run)
    if not result.refusals:
        return CLEAN
    if skip_refused or dry_run:
        return FINDINGS
    raise Failed(
        f"nothing was imported, because {out.count(result.refusals, 'entry was', 'entries were')} "
        f"refused; --skip-refused imports the others{advice(result, trusted=trust_pickle)}"
    )


def _open(
    form: str, path: Path, name: str, tables: tuple[str, ...], load: Callable[[bytes], Any]
) -> Source:
    if form == SHELVE:
        return Shelf(path, name, load)
    if form == SQLITEDICT:
        return SqlitedictFile(path, name, load, tables)
    return DiskcacheFolder(path, name, load)


def _demand_room(log: ClusterLog, names: Collection[str], label: str, *, add: bool) -> None:
    """Raise `Failed` if a map has entries, unless they may be added to, and `InvalidSetting` if
    they have another class. `label` "": the map may have many."""
    if not log.manifests.read()[0]:
        return
    for folder in log.store.folders(f"{log.folder}/nodes"):
        if is_backfill(decode(folder)) and decode(folder) not in log.manifest().nodes:
            out.note_once(
                "another import or backfill into this log is running or has not ended; the log has "
                "none of its entries"
            )
    present = MapNames(log)
    for step in (present.in_manifests, present.in_segments):
        for _ in step():
            pass
    if not present.known & {*names}:
        return
    with closing(MaterializedView(log, Settings())) as view:
        view.catch_up()
        for name in names:
            for rows in view.rows(name):
                if not add:
                    other = ", or name another map with --map" if label else ""
                    raise Failed(
                        f"map {name!r} has entries already, perhaps of an earlier import. Add to "
                        f"this one with --add{other}"
                    )
                for row in rows if label else ():
                    demand_known_class(name, label, {row[KEY_CLASS], row[VALUE_CLASS]})


Serialised = tuple[str, BackfillEntry]
"""A map, and an entry of it."""


Read = Callable[[str, Imported], Iterator[Serialised]]
"""Reads the source from its beginning: `_serialised` for a name of the step, and a result."""


def _serialised(
    source: Source, label: str, now_ms: int, tell: Tell, step: str, result: Imported
) -> Iterator[Serialised]:
    """The entries that can be imported. All are counted in `result`."""
    serializer = serializer_of(label)
    assert serializer is not None
    keys: set[tuple[str, bytes]] = set()
    done = count = 0
    for stored in source.entries():
        done += stored.bytes
        count += 1
        if not count % BATCH_ENTRIES:
            reached = min(done, source.bytes), source.bytes
            tell(Reached(f"{step} {count:,} entries", *reached, step))
        if has_expired(stored.expires_at_ms, now_ms):
            result.maps[stored.map].expired += 1
            continue
        try:
            entry = _entry(stored, label, serializer)
            if source.equal_keys:
                key = stored.map, entry.key
                if key in keys:
                    raise Unreadable("its key equals another one: in a map, both are one key")
                keys.add(key)
        # A pickle, or a method of what was read from it, can raise anything.
        except Exception as error:  # noqa: BLE001
            result.refuse(stored, _reason(error))
            continue
        result.maps[stored.map].imported += 1
        yield stored.map, entry


def _entry(stored: Stored, label: str, serializer: Serializer[Any, Any]) -> BackfillEntry:
    key, value = stored.key(), stored.value()
    if not stored.classes:
        key, value = serializer.dump_key(key), serializer.dump(value)
    demand_size(f"map {stored.map!r}", key, value, VALUE_BYTES_MAX)
    return BackfillEntry(key, value, *(stored.classes or (label, label)), stored.expires_at_ms)


def _reason(error: Exception) -> str:
    if isinstance(error, NotSerializable):
        where = f"at {error.place}: " if error.place else ""
        return f"it cannot be stored: {where}{error.problem.partition('; ')[0]}"
    if isinstance(error, Unreadable | ImapWalError):
        return str(error)
    return f"it cannot be read: {type(error).__name__}: {error}"


def _import(log: ClusterLog, read: Read, proved: Imported, *, programs: bool) -> None:
    """Publish the entries. `proved`: the result of a former reading."""
    result = Imported({name: Counts() for name in proved.maps})
    with tempfile.TemporaryDirectory(prefix="imap-wal-import-") as folder:
        started = backfill.begin(log)
        try:
            with BackfillRows(log, started, Path(folder)) as rows:
                for name, batch in _batches(read("importing", result)):
                    rows.add(name, batch)
                if result.imported != proved.imported:
                    raise Failed(
                        "the source changed while it was read; nothing was imported: stop the "
                        "program that writes it, and repeat the import"
                    )
                archives = rows.end()
            backfill.publish(log, started, archives)
        except BaseException:
            backfill.abandon(log, started)
            raise
    _compact(log, started.node, {archive.map for archive in archives}, programs=programs)


def _batches(entries: Iterator[Serialised]) -> Iterator[tuple[str, list[BackfillEntry]]]:
    batch: list[BackfillEntry] = []
    size, former = 0, ""
    for name, entry in entries:
        full = len(batch) >= BATCH_ENTRIES or size >= BATCH_BYTES
        if batch and (full or name != former):
            yield former, batch
            batch, size = [], 0
        batch.append(entry)
        size += len(entry.key) + len(entry.value)
        former = name
    if batch:
        yield former, batch


def _compact(log: ClusterLog, node: str, names: Collection[str], *, programs: bool) -> None:
    """Turn the Parquet files of the import into snapshots that a program without pyarrow can open,
    and remove them. The import has ended before: a failure is a note. `programs`: they will open
    the log, and not agents."""
    try:
        with turn(log, PURPOSE, lambda holder: out.note(f"waiting for {holder}")):
            rewrite(log, RowEngine(Settings(restore_memory_bytes=MEMORY_BYTES)), maps=names)
            if programs and log.manifest().nodes.keys() == {node}:
                # A log has a node: that of the first program that opens it.
                who = Identity(log.namespace, log.cluster, NODE)
                first = LogContext(log.context, who, Settings())
                open_node_log(first, holder=PURPOSE, embedded=True, maps=True).close()
            prune(log, nodes=(node,))
    except (ImapWalError, StorageError, OSError) as error:
        out.note(
            f"the entries were imported, but not compacted: {message(error)}. A program needs "
            "pyarrow to open the log, until `imap-wal rewrite` and `imap-wal prune` have run"
        )
