"""`imap-wal dump`."""

from __future__ import annotations

import heapq
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import click
import msgpack

from imap_wal.context import Context
from imap_wal.decoder import Decoder
from imap_wal.entry import (
    DELETED,
    KEY,
    MAP,
    TIMESTAMP_MS,
    VALUE,
    is_clear,
)
from imap_wal.errors import LogError, OtherHistory
from imap_wal.format import START, Position
from imap_wal.manifest import epochs
from imap_wal.read.cluster import ATTEMPTS, ClusterLog, demand_same_log
from imap_wal.read.file_scan import Scope
from imap_wal.read.state import ClusterState
from imap_wal.settings import RecoveryPolicy
from rewrite_cli.console import output as out
from rewrite_cli.console.failures import CLEAN, FINDINGS, message
from rewrite_cli.console.param_type import ParamType
from rewrite_cli.console.selection import Selection, selection_options
from rewrite_cli.console.times import Moment
from rewrite_cli.entries.keys import KeyType, matcher
from rewrite_cli.entries.left_out import note_left_out, unread
from rewrite_cli.entries.lines import Line, show
from rewrite_cli.entries.losses import Losses, strict_option
from storage_backends import NotFound

SORT_BYTES = 64 * 1024 * 1024
"""Lines of a snapshot that are sorted in memory."""
SORT_FILES_MAX = 16
LINE_BYTES = 700
"""Approximate memory of a line, without its key and value."""


class PositionType(ParamType[Position]):
    name = "position"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Position:
        try:
            return value if isinstance(value, Position) else Position.parse(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command()
@selection_options()
@click.option(
    "--key",
    "keys",
    multiple=True,
    type=KeyType(),
    help="Only this key, as dump prints it, or its bytes as hex:..., and the clears of the map; "
    "may be repeated.",
)
@click.option(
    "--since",
    type=Moment(),
    help="Only entries from this time on: 2026-11-21T10:00 (UTC), or 15m for the last 15 minutes.",
)
@click.option("--until", type=Moment(), help="Only entries before this time.")
@click.option(
    "--from",
    "start",
    type=PositionType(),
    help="Only entries at or above this position (within each node); entries of snapshots have "
    "none.",
)
@click.option("--to", "stop", type=PositionType(), help="Only entries at or below this position.")
@click.option("--deleted", is_flag=True, help="Only tombstones.")
@click.option("--tail", type=click.IntRange(min=1), help="Only the last N.")
@strict_option
@out.output_option
def command(
    selection: Selection,
    keys: tuple[str | bytes, ...],
    since: int | None,
    until: int | None,
    start: Position | None,
    stop: Position | None,
    deleted: bool,
    tail: int | None,
    strict: bool,
    output: str,
) -> int:
    """Print the raw entries of the log, newest last, from snapshots, archives and segments. In
    JSON, each is one line.

    All entries in the files are shown, also those that a snapshot covers, until their files are
    removed. An entry that is also in a snapshot is shown a second time, without a position. Entries
    that a later lifetime of the cluster made void are left out.

    The rest of a damaged file, and a cluster whose manifests are damaged, are left out and
    reported. The exit code is then 3, also if the log of a node is missing. What is on the own disk
    of a node alone is left out and reported, too, but it is no finding.

    \b
    Examples:
      imap-wal dump /var/lib/maps --map orders --key 42
      imap-wal dump /var/lib/maps --map orders --key hex:a3343231
      imap-wal dump /var/lib/maps --since 15m -o json | jq .value
      imap-wal dump /var/lib/maps --tail 20
    """
    left_out: list[tuple[str, LogError]] = []
    matches, losses = matcher(keys), Losses(strict)
    missing = False

    def wanted(line: Line) -> bool:
        row = line.row
        return bool(
            (since is None or row[TIMESTAMP_MS] >= since)
            and (until is None or row[TIMESTAMP_MS] < until)
            and (start is None or (line.position is not None and line.position >= start))
            and (stop is None or (line.position is not None and line.position <= stop))
            and (row[DELETED] or not deleted)
            and (not keys or is_clear(row) or matches(row, line.decoder))
        )

    with selection.open(left_out) as (context, clusters):
        for place in (start, stop):
            _demand_known(place, clusters)
        for view in clusters:
            missing |= _note_unread(view, selection)
        snapshots = start is None and stop is None
        streams = [
            stream
            for view in clusters
            for stream in _streams(context, view, selection, stop, left_out, snapshots=snapshots)
        ]
        lines: Iterable[Line] = filter(wanted, heapq.merge(*streams, key=_time_of))
        if tail is not None:
            lines = deque(lines, tail)
        for line in lines:
            show(line, output, losses)
    for name, error in left_out:
        out.note(f"left out: {name}: {message(error)}")
    matches.note_unreadable()
    return losses.end() or (FINDINGS if left_out or missing else CLEAN)


def by_time(lines: Iterable[Line]) -> Iterator[Line]:
    """Lines of a snapshot sorted by their time. Lines over SORT_BYTES are sorted in temporary
    files."""
    runs: list[Iterable[Line]] = []
    held: list[Line] = []
    size = 0
    for line in lines:
        held.append(line)
        size += LINE_BYTES + len(line.row[KEY] or b"") + len(line.row[VALUE] or b"")
        if size >= SORT_BYTES:
            held.sort(key=_time_of)
            runs.append(_spilled(held))
            held, size = [], 0
            if len(runs) >= SORT_FILES_MAX:
                runs = [_spilled(heapq.merge(*runs, key=_time_of))]
    held.sort(key=_time_of)
    return heapq.merge(*runs, held, key=_time_of)


def _demand_known(place: Position | None, clusters: Iterable[ClusterState]) -> None:
    """Raises `OtherHistory` if the position has an id, and no log has it."""
    refused: OtherHistory | None = None
    for view in clusters:
        for node in view.all_nodes:
            try:
                log = node.manifest
                epochs.demand(log.epochs, place or START, f"node {node.name!r}", log.removed)
                return
            except OtherHistory as error:
                refused = refused or error
    if refused is not None:
        raise refused


def _time_of(line: Line) -> int:
    return line.timestamp_ms


def _spilled(lines: Iterable[Line]) -> Iterator[Line]:
    file = tempfile.TemporaryFile()  # it is deleted with the iterator
    pack = msgpack.Packer(use_bin_type=True).pack
    shared: tuple[str, Decoder] | None = None
    for line in lines:
        shared = line.cluster, line.decoder
        file.write(pack((line.node, line.row)))
    file.seek(0)

    def read() -> Iterator[Line]:
        with file:
            for node, row in msgpack.Unpacker(file, use_list=False, max_buffer_size=0):
                cluster, decoder = shared or ("", Decoder((), out.note))
                yield Line(row[TIMESTAMP_MS], cluster, node, None, row, decoder)

    return read()


def _streams(
    context: Context,
    view: ClusterState,
    selection: Selection,
    stop: Position | None,
    left_out: list[tuple[str, LogError]],
    *,
    snapshots: bool,
) -> Iterator[Iterator[Line]]:
    log = ClusterLog.of(context, view)
    decoder = Decoder(
        (item for node in view.all_nodes for item in _schemas(node.manifest.metadata)), out.note
    )
    maps = selection.maps or None
    nodes = [node.name for node in view.all_nodes if selection.wants_node(node.name)]

    def lines(scope: Scope, node: str = "") -> Iterator[Line]:
        damaged: list[LogError] = []
        try:
            state = log.state()
            registered = (look.manifest.nodes.get(node, "") for look in (view, state))
            demand_same_log(node, *registered)
            for changes in log.changes(
                maps,
                scope,
                policy=RecoveryPolicy.PARTIAL,
                positions=True,
                state=state,
                damaged=damaged,
            ):
                decoder.add_metadata(changes.metadata)
                places: Iterable[Position | None] = changes.positions or [None] * len(changes.rows)
                for row, place in zip(changes.rows, places, strict=True):
                    yield Line(row[TIMESTAMP_MS], str(view), changes.node, place, row, decoder)
        except LogError as error:  # of a manifest or a listing: nothing else can be read
            damaged.append(error)
        reported = {str(error) for _, error in left_out}
        left_out.extend((str(view), error) for error in damaged if str(error) not in reported)

    def lines_of_node(node: str) -> Iterator[Line]:
        shown: dict[str, Position] = {}
        until = None if stop is None else {node: stop}
        for attempt in range(ATTEMPTS):
            try:
                # Positions exclude whole files here; the caller filters the entries.
                scope = Scope((node,), until=until, snapshots=False, covered=True)
                for line in lines(scope, node):
                    if line.position is not None and line.position > shown.get(
                        line.row[MAP], START
                    ):
                        shown[line.row[MAP]] = line.position
                        yield line
                return
            # Covered files may be pruned while they are read: list the files again.
            except NotFound:
                if attempt == ATTEMPTS - 1:
                    raise

    if snapshots:
        # Also entries of nodes that are no longer in the log: of a backfill, or forgotten.
        of_snapshots = nodes if selection.nodes else None
        yield by_time(lines(Scope(of_snapshots, until={}, covered=True)))
    yield from map(lines_of_node, nodes)


def _note_unread(view: ClusterState, selection: Selection) -> bool:
    """Name the nodes whose log is not read to its end. True if the log of one is missing."""
    absent = unread(view, selection.nodes)
    note_left_out(absent)
    named = {left_out.node for left_out in absent}
    for node in view.all_nodes:
        why = node.misplaced if selection.wants_node(node.name) else ""
        if why and node.name not in named:
            out.note(f"{view}, node {node.name!r}: {why}; these are not shown")
    return bool(named - view.parts.keys())


def _schemas(metadata: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    from imap_wal.read.file_scan import from_manifest

    return map(from_manifest, metadata)
