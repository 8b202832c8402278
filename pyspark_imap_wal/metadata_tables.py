"""The tables `files`, `snapshots`, `nodes` and `readers`: what a log consists of, and who reads it,
from listings, manifests and the ends of segments."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from imap_wal import layout
from imap_wal.context import Context
from imap_wal.format import START, Position
from imap_wal.inspect.inventory import take_inventory
from imap_wal.inspect.lags import lags
from imap_wal.manifest import epochs
from imap_wal.manifest.reader_manifest import ReaderManifest
from imap_wal.manifest.readers import readers_of
from imap_wal.manifest.snapshots import Snapshot
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.file_scan import ARCHIVE, SEGMENT, SNAPSHOT
from imap_wal.read.scan_list import snapshot_scans
from imap_wal.read.state import ClusterState, NodeState
from imap_wal.rewrite.ranges import borders_of
from pyspark_imap_wal.batch import demand_known, logs_of
from pyspark_imap_wal.options import Options, opened
from storage_backends.location import Location

_ARROW = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "bigint": pa.int64(),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}
Line = dict[str, Any]


@dataclass
class ManifestPartition(InputPartition):
    """The one task of a query. `place`: the root with the options that the driver has."""

    place: Location


class MetadataReader(DataSourceReader):
    """Reads one of the tables in one task. `kinds`: column → type of Spark."""

    def __init__(self, options: Options, kinds: Mapping[str, str]) -> None:
        self._options, self._kinds = options, dict(kinds)

    def partitions(self) -> list[InputPartition]:
        """One task: a log has few manifests. Raises `InvalidSetting` if the options name a log, map
        or node that does not exist."""
        with opened(self._options.path) as context:
            demand_known(self._options, logs_of(context, self._options))
        return [ManifestPartition(self._options.path)]

    def read(self, partition: Any) -> Iterator[Any]:
        """The lines of the table, as one record batch."""
        options = self._options
        with opened(partition.place) as context:
            lines = [
                {"namespace": view.namespace, "cluster": view.cluster, **line}
                for view in take_inventory(context, options.namespaces, options.clusters)
                for line in TABLES[options.table](context, view)
                if _wanted(line.get("map"), options.maps)
                and _wanted(line.get("node"), options.nodes)
            ]
        yield pa.RecordBatch.from_pylist(
            lines,
            pa.schema([(name, _ARROW[kind]) for name, kind in self._kinds.items()]),
        )


def _wanted(name: str | None, names: Collection[str]) -> bool:
    return not names or name in names


def _files(context: Context, view: ClusterState) -> Iterator[Line]:
    for node in view.all_nodes:
        yield from _segments(node)
        yield from _archives(view, node)
    for name, snapshot in sorted(view.manifest.snapshots.items()):
        lowers = borders_of(snapshot, context.keys)
        for number, scan in enumerate(snapshot_scans(name, snapshot)):
            yield {
                "kind": SNAPSHOT,
                "path": scan.path,
                "map": name,
                "state": "current",
                "rows": scan.records,
                "bytes": scan.bytes,
                "checksum": scan.checksum or None,
                "generation": snapshot.generation,
                "first_key": lowers[number] if lowers else None,
            }


def _segments(node: NodeState) -> Iterator[Line]:
    marked = _marking(node)
    wal = node.wal
    states = {
        "current": wal.segments,
        "archived": wal.archived,
        "replaced": wal.copied,
        "void": wal.void,
    }
    for state, segments in states.items():
        for segment in segments:
            yield {
                "kind": SEGMENT,
                "path": segment.path,
                "node": node.name,
                "state": state,
                "bytes": segment.bytes,
                "first_position": marked(Position(segment.epoch, segment.number, 0, 0)),
            }


def _marking(node: NodeState) -> Callable[[Position], str]:
    return lambda position: str(epochs.marked(node.manifest.epochs, position))


def _archives(view: ClusterState, node: NodeState) -> Iterator[Line]:
    marked = _marking(node)
    marks = view.manifest.marks(node.name, node.manifest)
    for archive in node.manifest.archives:
        covered = archive.last <= marks.get(archive.map, START)
        yield {
            "kind": ARCHIVE,
            "path": archive.path,
            "node": node.name,
            "map": archive.map,
            "state": "covered" if covered else "current",
            "rows": archive.records,
            "bytes": archive.bytes,
            "checksum": archive.checksum or None,
            "first_position": marked(archive.first),
            "last_position": marked(archive.last),
        }


def _snapshots(context: Context, view: ClusterState) -> Iterator[Line]:
    current = view.manifest.snapshots
    snapshots: dict[tuple[str, int], tuple[Snapshot, str | None]] = {}
    for reader, state in sorted(readers_of(context.store, view.folder).items()):
        for name, snapshot in state.kept_snapshots(view.manifest):
            snapshots.setdefault((name, snapshot.generation), (snapshot, reader))
    # A rewrite that changed nothing has raised the marks of the current one.
    snapshots |= {
        (name, snapshot.generation): (snapshot, None) for name, snapshot in current.items()
    }
    for (name, _), (snapshot, kept_for) in sorted(snapshots.items(), key=lambda item: item[0]):
        yield {
            "map": name,
            "kept_for": kept_for,
            "generation": snapshot.generation,
            "files": len(snapshot.files),
            "live": snapshot.live,
            "tombstones": snapshot.tombstones,
            "bytes": snapshot.bytes,
            "created_ms": snapshot.created_ms,
            "until_ms": snapshot.until_ms,
            "dropped": snapshot.dropped or None,
            "marks": {node: str(mark.position) for node, mark in snapshot.marks.items()},
        }


def _nodes(context: Context, view: ClusterState) -> Iterator[Line]:
    readers = readers_of(context.store, view.folder)
    signs = {
        sign: {layout.parse_sign_path(file.path) for file in context.store.list(folder)}
        for sign, folder in (
            ("alive", layout.alive_folder(view.folder)),
            ("present", layout.present_folder(view.folder)),
        )
    }
    folders = {node.name: node for node in (*view.all_nodes, *view.forgotten)}
    for name in sorted({*folders, *view.missing_nodes}):
        yield {
            "node": name,
            "state": view.state_of(name),
            "sign": next((sign for sign, names in signs.items() if name in names), None),
            "readers": _readers(readers, name),
            **(_log(folders[name]) if name in folders else {}),
        }


def _log(node: NodeState) -> Line:
    """What a node's folder has."""
    manifest = node.manifest
    return {
        "directory": manifest.directory or None,
        "incarnation": manifest.cluster.incarnation,
        "epoch": manifest.epoch,
        "segments": len(node.all_segments),
        "segment_bytes": node.wal_bytes,
        "archives": len(manifest.archives),
        "archive_rows": sum(archive.records for archive in manifest.archives),
        "archive_bytes": node.archive_bytes,
        "removed_position": None if manifest.removed == START else str(manifest.removed),
    }


def _readers(readers: Mapping[str, ReaderManifest], node: str) -> dict[str, str]:
    return {name: str(reader.positions.get(node, START)) for name, reader in readers.items()}


def _lags(context: Context, view: ClusterState) -> Iterator[Line]:
    for lag in lags(ClusterLog.of(context, view), view):
        yield {
            "reader": lag.reader,
            "kind": lag.kind,
            "node": lag.node,
            "position": str(lag.position),
            "end_position": str(lag.end),
            "unread_bytes": lag.unread_bytes,
            "updated_ms": lag.updated_ms,
        }


TABLES: dict[str, Callable[[Context, ClusterState], Iterator[Line]]] = {
    "files": _files,
    "snapshots": _snapshots,
    "nodes": _nodes,
    "readers": _lags,
}
"""Name of a table → its lines for one cluster."""
