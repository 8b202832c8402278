"""The options of the data source, its columns, and how a process opens the root."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from imap_wal.checks import location
from imap_wal.clock import MOMENTS, SystemClock, moment_ms
from imap_wal.context import Context, open_context
from imap_wal.encoder import keys_of
from imap_wal.errors import InvalidSetting
from imap_wal.format import Position
from imap_wal.manifest.readers import HISTORY as OWN_READER
from imap_wal.manifest.roots import is_cluster, why_no_root
from imap_wal.names import decode
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.map_names import some_names
from imap_wal.security.credentials import Credentials
from imap_wal.settings import RecoveryPolicy
from imap_wal.sql.columns import RESCUE, demand_misfits
from imap_wal.sql.types import RESCUED, SIMPLE, Schema, parsed
from pyspark_imap_wal.plain_errors import plain_errors
from pyspark_imap_wal.tables.schemas import (
    CHANGE_COLUMNS,
    DECODED_COLUMNS,
    ENTRIES,
    ENTRY_COLUMNS,
    HISTORY,
    METADATA_TABLES,
    POSITION_COLUMNS,
    TABLES,
    VERSION_COLUMNS,
)
from storage_backends import SegmentStore
from storage_backends.location import Location, Place

RAW, LATEST = "raw", "latest"
ENTRIES_ONLY, IMAGES = "entries", "images"
EARLIEST = "earliest"
FAIL, IGNORE = "fail", "ignore"
UNUSED, WRAPPED = "unused", "wrapped"

LOG_FIELDS = ", ".join(f"{name} {kind}" for name, kind in ENTRY_COLUMNS.items())

TASK_BYTES = 64 * 1024 * 1024
"""A task of a `raw` read has files of about this many bytes in total, or one larger file."""


@dataclass(frozen=True, slots=True)
class AsOf:
    """A former moment: Unix time in milliseconds, or the last position of every node; of a node
    that is not named, nothing."""

    time_ms: int | None = None
    positions: Mapping[str, Position] | None = None

    @classmethod
    def parse(cls, text: str) -> AsOf:
        """`text`: as for `moment_ms`, or a JSON object of node → position. Raises `InvalidSetting`
        for another text."""
        try:
            if text.lstrip().startswith("{"):
                positions = positions_of(json.loads(text))
                if not positions:
                    raise ValueError("no node is named")
                return cls(positions=positions)
            return cls(time_ms=moment_ms(text, SystemClock().now_ms()))
        except (ValueError, AttributeError, TypeError) as error:
            raise InvalidSetting(
                f"as_of is {text!r}; it takes {MOMENTS}, or the last position of every node as "
                f"JSON ({error})"
            ) from error


def positions_of(texts: Mapping[str, str]) -> dict[str, Position]:
    """Node → position, from text. Raises ValueError."""
    return {node: Position.parse(text) for node, text in texts.items()}


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the data source. `path` is the root's URL; `table` is one of `TABLES`;
    `namespace`, `cluster`, `map`, `node` limit what is read (comma-separated); `mode` is raw or
    latest; `columns` names the columns to read; `as_of` is a former moment (`AsOf`); `partial`
    continues without missing nodes; `decode` adds key_text and value_text; `buckets` is how many
    tasks share a read key by key; `task_bytes` is the size of a task of a `raw` read; `changes` is
    entries, or images: the states of a key before and after each change. Of a stream, and of a
    batch with images: `starting` is earliest, latest or positions as JSON. Of a stream:
    `rows_per_batch` or `bytes_per_batch` limits a batch; `reader` is the name under which prune
    keeps what the stream has not read; `voided` is fail or ignore; `available_now` says how a
    query on Spark before 4.2 uses that trigger: unused, or wrapped. `encryption_keys` is the
    source from which each worker reads the keys of an encrypted log (default:
    IMAP_WAL_ENCRYPTION_KEYS there); `path` has it. `schema` adds the typed columns of a map's
    values; then the only other columns are, by default, those that identify the key and the
    change. `misfits` is rescue or fail. `key` reads only entries of this key: as text, as JSON,
    or as hex: and its bytes."""

    path: Location
    namespaces: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()
    maps: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    table: str = ENTRIES
    mode: str = RAW
    columns: tuple[str, ...] = ()
    as_of: AsOf | None = None
    partial: bool = False
    decode: bool = False
    buckets: int = 1
    task_bytes: int = TASK_BYTES
    starting: str = EARLIEST
    rows_max: int = 0
    bytes_max: int = 0
    reader_name: str = ""
    voided: str = FAIL
    changes: str = ENTRIES_ONLY
    available_now: str = ""
    schema: str = ""
    misfits: str = RESCUE
    key: str | None = None

    OF_METADATA = ("path", "table", "namespace", "cluster", "map", "node", "encryption_keys")
    """The options that tables of metadata take."""
    OF_HISTORY = (
        *("path", "table", "namespace", "cluster", "map", "encryption_keys"),
        *("partial", "decode", "columns", "buckets", "schema", "misfits", "key"),
    )
    OF_STREAMS = (
        *("starting", "rows_per_batch", "bytes_per_batch", "reader", "voided", "available_now"),
    )
    KNOWN = (
        "path",
        "table",
        "namespace",
        "cluster",
        "map",
        "node",
        "mode",
        "columns",
        "as_of",
        "partial",
        "decode",
        "buckets",
        "task_bytes",
        "encryption_keys",
        "changes",
        "schema",
        "misfits",
        "key",
        *OF_STREAMS,
    )

    @classmethod
    def parse(cls, texts: Mapping[str, str]) -> Options:
        """Raises `InvalidSetting`; the text names the mistake."""
        unknown = sorted(set(texts) - set(cls.KNOWN))
        if unknown:
            raise InvalidSetting(
                f"imap_wal takes no option {', '.join(unknown)}; it takes {', '.join(cls.KNOWN)}"
            )
        if not texts.get("path"):
            raise InvalidSetting("imap_wal needs the root of the logs: .load(url)")
        table = texts.get("table", ENTRIES)
        if table not in TABLES:
            raise InvalidSetting(f"table is {table!r}; it takes {', '.join(TABLES)}")
        taken = {HISTORY: cls.OF_HISTORY, ENTRIES: cls.KNOWN}.get(table, cls.OF_METADATA)
        foreign = sorted(set(texts) - set(taken))
        if foreign:
            raise InvalidSetting(f"the table {table} takes no option {', '.join(foreign)}")
        if texts.get("reader") == OWN_READER:
            raise InvalidSetting(
                f"reader is {OWN_READER!r}, the name of the log's own history; choose another name"
            )
        mode = texts.get("mode", RAW)
        if mode not in (RAW, LATEST):
            raise InvalidSetting(f"mode is {mode!r}; it takes raw or latest")
        if mode == LATEST and texts.get("node"):
            raise InvalidSetting(
                "mode latest merges all nodes; leave out the option node, or read mode raw"
            )
        if texts.get("voided", FAIL) not in (FAIL, IGNORE):
            raise InvalidSetting(f"voided is {texts['voided']!r}; it takes fail or ignore")
        available_now = texts.get("available_now", "")
        if available_now not in ("", UNUSED, WRAPPED):
            raise InvalidSetting(
                f"available_now is {available_now!r}; it takes {UNUSED} or {WRAPPED}"
            )
        changes = texts.get("changes", ENTRIES_ONLY)
        if changes not in (ENTRIES_ONLY, IMAGES):
            raise InvalidSetting(f"changes is {changes!r}; it takes entries or images")
        if changes == IMAGES and (mode == LATEST or texts.get("node")):
            raise InvalidSetting(
                "images are of changes of all nodes: leave out the options node and mode"
            )
        made = cls(
            path=replace(location(texts["path"]), encryption_keys=texts.get("encryption_keys", "")),
            namespaces=_names(texts.get("namespace")),
            clusters=_names(texts.get("cluster")),
            maps=_names(texts.get("map")),
            nodes=_names(texts.get("node")),
            table=table,
            mode=mode,
            columns=_names(texts.get("columns")),
            as_of=AsOf.parse(texts["as_of"]) if "as_of" in texts else None,
            partial=_flag("partial", texts.get("partial")),
            decode=_flag("decode", texts.get("decode")),
            buckets=_number("buckets", texts.get("buckets"), 1),
            task_bytes=_number("task_bytes", texts.get("task_bytes"), TASK_BYTES),
            starting=texts.get("starting", EARLIEST),
            rows_max=_number("rows_per_batch", texts.get("rows_per_batch"), 0),
            bytes_max=_number("bytes_per_batch", texts.get("bytes_per_batch"), 0),
            reader_name=texts.get("reader", ""),
            voided=texts.get("voided", FAIL),
            changes=changes,
            available_now=available_now,
            schema=texts.get("schema", ""),
            misfits=texts.get("misfits", RESCUE),
            key=texts.get("key"),
        )
        if made.schema and len(made.maps) != 1:
            raise InvalidSetting("a schema is of the values of one map: name it in the option map")
        made.kinds()
        made.keys()
        made.starts()
        return made

    @property
    def recovery_policy(self) -> RecoveryPolicy:
        """What a read does if nodes are missing."""
        return RecoveryPolicy.PARTIAL if self.partial else RecoveryPolicy.FULL

    def starts(self) -> Mapping[str, Position] | None:
        """The positions after which a stream starts; None for earliest and latest. Raises
        `InvalidSetting` for another text."""
        if self.starting in (EARLIEST, LATEST):
            return None
        try:
            return positions_of(json.loads(self.starting))
        except (ValueError, AttributeError, TypeError) as error:
            raise InvalidSetting(
                f"starting is {self.starting!r}; it takes earliest, latest, or the last position "
                f"of every node that was read before as JSON ({error})"
            ) from error

    @property
    def _beside(self) -> tuple[str, ...]:
        """The columns of the log that are there by default beside those of a schema."""
        has_deletions = self.mode == RAW and self.changes != IMAGES
        return ("key", *("deleted",) * has_deletions, *CHANGE_COLUMNS, *VERSION_COLUMNS)

    def keys(self) -> frozenset[bytes] | None:
        """The bytes that the key of the option `key` may have; None: all keys are wanted. Raises
        `InvalidSetting`."""
        if self.key is None:
            return None
        if self.key.startswith("hex:"):
            try:
                return frozenset([bytes.fromhex(self.key[4:])])
            except ValueError as error:
                raise InvalidSetting(
                    f"key is {self.key!r}; after hex: it takes pairs of hexadecimal digits"
                ) from error
        return frozenset(keys_of(self.key) | keys_of(json.dumps(self.key)))

    def types(self) -> Schema:
        """The columns of the option `schema`, with `_rescued`. Raises `InvalidSetting`."""
        demand_misfits(self.misfits)
        return {**parsed(self.schema), RESCUED: SIMPLE["string"]} if self.schema else {}

    def kinds(self) -> dict[str, str]:
        """Column → type of Spark, for the columns that are read. Raises `InvalidSetting` if a
        column does not exist."""
        if self.table in METADATA_TABLES:
            return METADATA_TABLES[self.table]
        kinds = dict(ENTRY_COLUMNS)
        if self.table == HISTORY:
            kinds |= VERSION_COLUMNS
        elif self.changes == IMAGES:
            kinds |= CHANGE_COLUMNS
        elif self.mode == RAW:
            kinds |= POSITION_COLUMNS
        if self.schema:
            of_values = {name.lower() for name in self.types()}
            kinds = {
                name: kind
                for name, kind in kinds.items()
                if name not in of_values and name in (self.columns or self._beside)
            }
        if self.decode:
            kinds |= DECODED_COLUMNS
        kinds |= {name: field.name for name, field in self.types().items()}
        unknown = [name for name in self.columns if name not in kinds]
        if unknown:
            raise InvalidSetting(
                f"there is no column {unknown[0]!r} here; columns takes {', '.join(kinds)}"
            )
        return {name: kinds[name] for name in self.columns or kinds}


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip()) if text else ()


def _flag(name: str, text: str | None) -> bool:
    if (text or "false").lower() not in ("true", "false"):
        raise InvalidSetting(f"{name} is {text!r}; it takes true or false")
    return (text or "false").lower() == "true"


def _number(name: str, text: str | None, default: int) -> int:
    if text is None:
        return default
    if not text.isdecimal() or int(text) < 1:
        raise InvalidSetting(f"{name} is {text!r}; it takes a number, 1 or more")
    return int(text)


def clusters_of(
    store: SegmentStore, namespaces: Iterable[str] = (), clusters: Iterable[str] = ()
) -> list[tuple[str, str]]:
    """(namespace, cluster) of all logs under a root, or of those with the given names."""
    wanted_namespaces, wanted_clusters = set(namespaces), set(clusters)
    top = store.folders("")
    if is_cluster(store, top):
        return []
    return [
        (decode(namespace), decode(cluster))
        for namespace in top
        if not wanted_namespaces or decode(namespace) in wanted_namespaces
        for cluster in store.folders(namespace)
        if not wanted_clusters or decode(cluster) in wanted_clusters
        if "manifest" in store.folders(f"{namespace}/{cluster}")
    ]


def why_none(store: SegmentStore, options: Options) -> str:
    """Why the options select no log, as text for an error."""
    there = ["/".join(names) for names in clusters_of(store)]
    if there:
        return (
            f"the options namespace and cluster select no log under {options.path}; found: "
            f"{some_names(there)}"
        )
    why = why_no_root(store)
    return (
        f"{options.path} {why}" if why else f"there is no log under {options.path}: check the path"
    )


def known(url: Place) -> Location:
    """The root with its options, and those from the file that IMAP_WAL_CREDENTIALS names on this
    machine. Options that the driver has come with the task, and override the file of a worker. Of
    the keys of an encrypted log, Spark sends only the name of their source. Raises `InvalidSetting`
    if the URL is not valid, or if the file cannot be used."""
    file = os.environ.get("IMAP_WAL_CREDENTIALS")
    place = location(url)
    keys = place.encryption_keys or os.environ.get("IMAP_WAL_ENCRYPTION_KEYS", "")
    place = replace(place, encryption_keys=keys)
    return Credentials.read(file).given_to(place) if file else place


@contextmanager
def opened(url: Place) -> Iterator[Context]:
    """A root, opened as `known` says. Errors in the block are as in `plain_errors`."""
    with plain_errors():
        context = open_context(known(url))
        try:
            yield context
        finally:
            context.store.close()


@contextmanager
def opened_log(url: Place, namespace: str, cluster: str) -> Iterator[ClusterLog]:
    with opened(url) as context:
        yield ClusterLog(context, namespace, cluster)
