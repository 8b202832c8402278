"""`imap-wal import`."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
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
from imap_wal.retention.backfill_rows import BackfillRows
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.row_engine import RowEngine
from imap_wal.rewrite.run import rewrite
from imap_wal.rewrite.turn import turn
from imap_wal.rules.alive import has_expired
from imap_wal.rules.valid import demand_known_class, demand_size
from imap_wal.serializer import Serializer, serializer_of, shown
from imap_wal.settings import Settings
from imap_wal.write.context import LogContext
from imap_wal.write.opening import open_node_log
from rewrite_cli.console import output as out
from rewrite_cli.console.failures import CLEAN, FINDINGS, Failed, message
from rewrite_cli.console.progress import Reached, Tell, working
from rewrite_cli.console.selection import refuse_nested, url_argument
from rewrite_cli.sources.diskcache_folder import DiskcacheFolder
from rewrite_cli.sources.pickles import load_safely, load_trusted
from rewrite_cli.sources.shelf import Shelf
from rewrite_cli.sources.source import Source, Stored, Unreadable
from rewrite_cli.sources.sqlitedict_file import SqlitedictFile
from storage_backends import StorageError, with_url
from storage_backends.location import Location

SHELVE, SQLITEDICT, DISKCACHE = FORMS = ("shelve", "sqlitedict", "diskcache")
NODE, PURPOSE = "embedded", "imap-wal import"
BATCH_ENTRIES, BATCH_BYTES = 1024, 4 * 1024 * 1024
MEMORY_BYTES = 64 * 1024 * 1024
"""Of the merge that follows; the rest is on scratch."""
SHOWN_MAX = 100
"""At most this many refused entries are shown; all are counted."""


@dataclass
class _Counts:
    imported: int = 0
    expired: int = 0
    refused: int = 0


@dataclass
class _Result:
    """What became of the entries of each map. `refused`: the first ones, with the reason."""

    maps: dict[str, _Counts]
    refused: list[dict[str, str]] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)

    def refuse(self, stored: Stored, reason: str) -> None:
        self.maps[stored.map].refused += 1
        self.reasons[reason] += 1
        if len(self.refused) < SHOWN_MAX:
            self.refused.append({"map": stored.map, "key": shown(stored.name), "reason": reason})

    @property
    def refusals(self) -> int:
        return sum(counts.refused for counts in self.maps.values())


@click.command()
@click.argument("form", type=click.Choice(FORMS))
@click.argument("path", type=click.Path(path_type=Path))
@url_argument
@click.option(
    "--map",
    "name",
    default="",
    help="Name of the map; otherwise that of the file, the folder or the table.",
)
@click.option(
    "--table",
    "tables",
    multiple=True,
    help="With sqlitedict, only this table; may be repeated. Each table becomes a map.",
)
@click.option("--namespace", default="default", show_default=True, help="Namespace of the cluster.")
@click.option("--cluster", default="embedded", show_default=True, help="Cluster of the maps.")
@click.option(
    "--serializer",
    type=click.Choice((MSGPACK, PICKLE)),
    default=MSGPACK,
    show_default=True,
    help="Of the map: pickle keeps objects of any class, and the map "
    'must be opened with serializer="pickle".',
)
@click.option(
    "--trust-pickle",
    is_flag=True,
    help="Read pickles that need other classes than those "
    "of the default serializer. Whoever can write the source can then run any code here.",
)
@click.option(
    "--skip-refused",
    is_flag=True,
    help="Import the other entries if some cannot be imported; exit code 3 then.",
)
@click.option(
    "--add",
    is_flag=True,
    help="Add to a map that has entries; those of the source replace others with the same key.",
)
@out.dry_run_option
@out.output_option
def command(
    form: str,
    path: Path,
    url: Location,
    name: str,
    tables: tuple[str, ...],
    namespace: str,
    cluster: str,
    serializer: str,
    trust_pickle: bool,
    skip_refused: bool,
    add: bool,
    dry_run: bool,
    output: str,
) -> int:
    """Bring the entries of a shelf of shelve, a file of sqlitedict or a folder of diskcache into
    maps of a log, all at once or not at all.

    PATH is only read; these libraries need not be installed. No program may have the log open. If
    the command is stopped, the log has nothing of it: run it again. Expired entries are left out,
    and the others expire when they would have.

    The values are pickles, and reading a pickle can run any code. So only None, bool, int, float,
    str, bytes, dates and times, Decimal, UUID, and lists, tuples, sets and dicts of these are read.
    Every other value is refused, and nothing is imported.

    \b
    Examples:
      imap-wal import shelve sessions.db /var/lib/maps --dry-run
      imap-wal import sqlitedict app.sqlite /var/lib/maps --table users
      imap-wal import diskcache /var/cache/app s3://bucket/maps --map pages
    """
    Identity(namespace, cluster, "import").check()
    load = load_trusted if trust_pickle else load_safely
    result = _Result({})
    with working("reading") as tell, ExitStack() as stack:
        source = _open(form, path, name, tables, load)
        stack.callback(source.close)
        refuse_nested(Location(str(path.resolve())), url)
        try:
            context = open_context(url)
        except (StorageError, ImportError) as error:
            raise Failed(with_url(url, error)) from error
        stack.callback(context.store.close)
        log = ClusterLog(context, namespace, cluster)
        _demand_room(log, source.maps(), serializer, add=add)
        result.maps.update({map_name: _Counts() for map_name in source.maps()})
        entries = _serialised(source, serializer, result, log.clock.now_ms(), tell)
        if dry_run:
            for _ in entries:
                pass
        else:
            _import(log, entries, serializer, result, skip_refused=skip_refused)
    published = not dry_run and (skip_refused or not result.refusals)
    _show(result, source, output, published=published, dry_run=dry_run)
    if not result.refusals:
        return CLEAN
    if skip_refused or dry_run:
        return FINDINGS
    raise Failed(
        f"nothing was imported, because {out.count(result.refusals, 'entry was', 'entries were')} "
        f"refused; --skip-refused imports the others{_advice(result, trusted=trust_pickle)}"
    )


def _open(
    form: str, path: Path, name: str, tables: tuple[str, ...], load: Callable[[bytes], Any]
) -> Source:
    if tables and form != SQLITEDICT:
        raise click.UsageError(f"--table is for {SQLITEDICT}")
    source: Source
    if form == SHELVE:
        source = Shelf(path, name, load)
    elif form == SQLITEDICT:
        source = SqlitedictFile(path, name, load, tables)
    else:
        source = DiskcacheFolder(path, name, load)
    for map_name in source.maps():
        check_map_name(map_name)
    return source


def _demand_room(log: ClusterLog, names: Collection[str], label: str, *, add: bool) -> None:
    """Raise `Failed` if a map has entries, unless they may be added to, and `InvalidSetting` if
    they have another class."""
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
                    raise Failed(
                        f"map {name!r} has entries already, perhaps of an earlier import. Name "
                        "another map with --map, or add to this one with --add"
                    )
                for row in rows:
                    demand_known_class(name, label, {row[KEY_CLASS], row[VALUE_CLASS]})


Serialised = tuple[str, bytes, bytes, int]
"""Map, key, value, and when it expires."""


def _serialised(
    source: Source, label: str, result: _Result, now_ms: int, tell: Tell
) -> Iterator[Serialised]:
    """The entries that can be imported; the others are counted in `result`."""
    serializer = serializer_of(label)
    assert serializer is not None
    keys: set[tuple[str, bytes]] = set()
    done = count = 0
    for stored in source.entries():
        done += stored.bytes
        count += 1
        if not count % BATCH_ENTRIES:
            tell(Reached(f"reading {count:,} entries", min(done, source.bytes), source.bytes))
        if has_expired(stored.expires_at_ms, now_ms):
            result.maps[stored.map].expired += 1
            continue
        try:
            entry = _entry(stored, serializer)
            if source.equal_keys:
                if entry[:2] in keys:
                    raise Unreadable("its key equals another one: in a map, both are one key")
                keys.add(entry[:2])
        # A pickle, or a method of what was read from it, can raise anything.
        except Exception as error:  # noqa: BLE001
            result.refuse(stored, _reason(error))
            continue
        result.maps[stored.map].imported += 1
        yield entry


def _entry(stored: Stored, serializer: Serializer[Any, Any]) -> Serialised:
    key, value = serializer.dump_key(stored.key()), serializer.dump(stored.value())
    demand_size(f"map {stored.map!r}", key, value, Settings().max_value_bytes)
    return stored.map, key, value, stored.expires_at_ms


def _reason(error: Exception) -> str:
    if isinstance(error, NotSerializable):
        where = f"at {error.place}: " if error.place else ""
        return f"it cannot be stored: {where}{error.problem.partition('; ')[0]}"
    if isinstance(error, Unreadable | ImapWalError):
        return str(error)
    return f"it cannot be read: {type(error).__name__}: {error}"


def _import(
    log: ClusterLog,
    entries: Iterator[Serialised],
    label: str,
    result: _Result,
    *,
    skip_refused: bool,
) -> None:
    """Publish the entries, unless some were refused; then all are read, to count them."""
    with tempfile.TemporaryDirectory(prefix="imap-wal-import-") as folder:
        started = backfill.begin(log)
        try:
            with BackfillRows(log, started, Path(folder)) as rows:
                for name, batch in _batches(entries):
                    if skip_refused or not result.refusals:
                        rows.add(name, label, batch)
                published = skip_refused or not result.refusals
                archives = rows.end() if published else []
            backfill.publish(log, started, archives)
        except BaseException:
            backfill.abandon(log, started)
            raise
    if archives:
        _compact(log, started.node, {archive.map for archive in archives})
    else:
        backfill.abandon(log, started)


def _batches(entries: Iterator[Serialised]) -> Iterator[tuple[str, list[tuple[bytes, bytes, int]]]]:
    batch: list[tuple[bytes, bytes, int]] = []
    size, former = 0, ""
    for name, key, value, expires_at_ms in entries:
        full = len(batch) >= BATCH_ENTRIES or size >= BATCH_BYTES
        if batch and (full or name != former):
            yield former, batch
            batch, size = [], 0
        batch.append((key, value, expires_at_ms))
        size += len(key) + len(value)
        former = name
    if batch:
        yield former, batch


def _compact(log: ClusterLog, node: str, names: Collection[str]) -> None:
    """Turn the Parquet files of the import into snapshots that a program without pyarrow can open,
    and remove them. The import has ended before: a failure is a note."""
    try:
        with turn(log, PURPOSE, lambda holder: out.note(f"waiting for {holder}")):
            rewrite(log, RowEngine(Settings(restore_memory_bytes=MEMORY_BYTES)), maps=names)
            if log.manifest().nodes.keys() == {node}:
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


def _show(result: _Result, source: Source, output: str, *, published: bool, dry_run: bool) -> None:
    rows = [
        {
            "map": name,
            "imported": counts.imported if published or dry_run else 0,
            "expired": counts.expired,
            "refused": counts.refused,
        }
        for name, counts in result.maps.items()
    ]
    if output == out.JSON:
        out.print_json(
            {
                "dry_run": dry_run,
                "published": published,
                "maps": rows,
                "refused": result.refused,
                "lost": dict(source.lost),
            }
        )
    else:
        out.print_table(
            ("map", "would import" if dry_run else "imported", "expired", "refused"),
            [tuple(row.values()) for row in rows],
        )
    for refused in result.refused[: SHOWN_MAX if output != out.JSON else 0]:
        out.note(f"refused: {refused['map']}[{refused['key']}]: {refused['reason']}")
    if output != out.JSON and result.refusals > len(result.refused):
        out.note(f"and {out.count(result.refusals - len(result.refused), 'more')}")
    for what, number in source.lost.items():
        out.note(f"{what} are not imported: {out.count(number, 'entry has', 'entries have')} some")


def _advice(result: _Result, *, trusted: bool) -> str:
    classes = [reason for reason in result.reasons if "needs the class" in reason]
    if trusted or not classes:
        return ""
    return (
        "; --trust-pickle reads all classes, if only you could write this source; with "
        "--serializer pickle, the map keeps them"
    )
