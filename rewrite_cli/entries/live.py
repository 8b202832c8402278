"""The live entries of a log, now or at an earlier time, as a restore would load them: for export
and copies."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any, Protocol

import click

from imap_wal.clock import SystemClock
from imap_wal.context import Context
from imap_wal.decoder import Decoder
from imap_wal.entry import MAP, TIMESTAMP_MS, Row
from imap_wal.errors import LogError
from imap_wal.read.cluster import ATTEMPTS, ClusterLog
from imap_wal.read.map_names import first_after
from imap_wal.read.merge import MergeProgress
from imap_wal.read.newest.index import NewestIndex
from imap_wal.read.newest.rivals import Noted
from imap_wal.read.state import ClusterState
from imap_wal.read.view import MaterializedView, live
from imap_wal.retention.history import at_time, keep_history
from imap_wal.settings import RecoveryPolicy, Settings
from rewrite_cli.console.failures import Failed
from rewrite_cli.console.output import F, note
from rewrite_cli.console.progress import Reached, Tell
from rewrite_cli.console.selection import Selection
from rewrite_cli.console.times import Duration, iso
from rewrite_cli.entries.left_out import LeftOut, left_out_of, note_left_out
from storage_backends import NotFound

MEMORY_BYTES = Settings().restore_memory_bytes


@dataclass(frozen=True)
class LiveCluster:
    """The merged entries of one cluster, within a selection."""

    view: ClusterState
    maps: list[str]
    """The maps with live entries; for the state at an earlier time, all maps."""
    names: list[str]
    """All maps of the selection, also those without live entries."""
    rows: Callable[[str], Iterator[list[Row]]]
    decoder: Decoder
    metadata: list[tuple[Any, ...]]
    seconds: float
    records: int
    missing: Mapping[str, str] = field(default_factory=dict)
    """The nodes that are left out, and why."""
    begins_ms: int | None = None
    """Time of the first entry, if the wanted moment is before it; Unix milliseconds."""

    @property
    def left_out(self) -> list[LeftOut]:
        """The same as `missing`."""
        return left_out_of(self.view, self.missing)


@dataclass(frozen=True)
class Reading:
    """How logs are read."""

    partial: bool = False
    """Without the logs of missing nodes."""
    as_of_ms: int | None = None
    """The state at this time, Unix milliseconds; None: now."""
    damaged: list[tuple[str, LogError]] | None = None
    """Gets the damaged clusters, which are left out; None: damage is an error."""
    memory_bytes: int = MEMORY_BYTES
    """What the merges of all clusters may take; the rest is in scratch files."""


def partial_option(command: F) -> F:
    """`--partial`, as `partial`."""
    return click.option(
        "--partial",
        is_flag=True,
        help="Continue without the logs of missing nodes, and the entries that only they have.",
    )(command)


def history_option(command: F) -> F:
    """`--history`, as `history_s`."""
    return click.option(
        "--history",
        "history_s",
        type=Duration(),
        help="Keep what is needed to read each moment of the last hours or days again (--as-of), "
        "as in 7d. Without it, what is kept already stays, until `prune --forget-reader history`.",
    )(command)


def keep(log: ClusterLog, history_s: float | None, skew_ms_max: int) -> None:
    """Begin or advance the history of a log, before it is rewritten or pruned; None: change
    nothing."""
    warning = keep_history(log, ceil(history_s or 0), skew_ms_max)
    if warning:
        note(warning)


def load_parquet() -> None:
    """Import the Parquet library before a merge is timed. Otherwise the first Parquet file would
    add the import, about a second, to the forecast of a restart."""
    from imap_wal.read.parquet_scan import prepare

    prepare()


def merge_all(
    context: Context,
    views: Iterable[ClusterState],
    selection: Selection,
    stack: ExitStack,
    tell: Tell,
    reading: Reading,
) -> list[LiveCluster]:
    """Merge every cluster once. A note names each node that is left out.

    Args:
        context: The storage of the logs, and their keys.
        views: The clusters.
        selection: Which of their maps are wanted.
        stack: Frees memory and scratch files when it closes.
        tell: Gets a text about the progress.
        reading: How they are read.

    Returns:
        The merged clusters; without the damaged ones, if `reading.damaged` is a list.

    Raises:
        Failed: The logs do not have, or no longer have, the state at the wanted time; or all of
            them are damaged.
        MissingNode: A node's log is missing, without `partial`.
        LogError: A log is damaged.
    """
    merged = []
    views = list(views)  # all are in memory at the same time
    reading = replace(reading, memory_bytes=max(1, reading.memory_bytes // max(1, len(views))))
    for view in views:
        try:
            merged.append(_merge(context, view, selection, stack, tell, reading))
            note_left_out(merged[-1].left_out)
        except LogError as error:
            if reading.damaged is None:
                raise
            reading.damaged.append((str(view), error))
    if reading.damaged and not merged:
        raise reading.damaged[0][1]
    demand_begun(merged, reading.as_of_ms)
    return merged


class _Past(Protocol):
    """What was read of a cluster. `begins_ms`: as in `LiveCluster`."""

    @property
    def view(self) -> ClusterState: ...

    @property
    def begins_ms(self) -> int | None: ...


def demand_begun(read: Collection[_Past], as_of_ms: int | None) -> None:
    """`Failed` if no cluster had an entry at the wanted time; a note for some that had none."""
    early = [past for past in read if past.begins_ms is not None]
    texts = [
        f"{past.view}: there is no entry of {iso(as_of_ms or 0)} or before; the first one is of "
        f"{iso(past.begins_ms or 0)}"
        for past in early
    ]
    if texts and len(early) == len(read):
        raise Failed(f"{'; '.join(texts)}; ask for a later time")
    for text in texts:
        note(text)


def _merge(
    context: Context,
    view: ClusterState,
    selection: Selection,
    stack: ExitStack,
    tell: Tell,
    reading: Reading,
) -> LiveCluster:
    settings = Settings(
        recovery_policy=RecoveryPolicy.PARTIAL if reading.partial else RecoveryPolicy.FULL,
        restore_memory_bytes=reading.memory_bytes,
    )
    load_parquet()
    log = ClusterLog.of(context, view)
    return (
        _as_of(log, view, selection, stack, tell, settings, reading.as_of_ms)
        if reading.as_of_ms is not None
        else _now(log, view, selection, stack, tell, settings)
    )


def _now(
    log: ClusterLog,
    view: ClusterState,
    selection: Selection,
    stack: ExitStack,
    tell: Tell,
    settings: Settings,
) -> LiveCluster:
    def progress(done: MergeProgress) -> None:
        tell(Reached(f"{view}: {done}", done.bytes, done.bytes_total))

    newest = stack.enter_context(closing(MaterializedView(log, settings, progress)))
    newest.catch_up()
    metadata = newest.metadata()
    statistics = newest.statistics
    maps = [name for name in newest.maps() if selection.wants_map(name)]
    return LiveCluster(
        view,
        maps,
        _names(newest.names(), view, selection),
        newest.rows,
        Decoder(metadata, note),
        metadata,
        statistics.seconds,
        statistics.records,
        dict(statistics.missing),
    )


def state_at(
    log: ClusterLog, maps: Collection[str], as_of_ms: int, policy: RecoveryPolicy
) -> ClusterState:
    """What to read for the state of the maps (none: all) at a time.

    Raises:
        Failed: A rewrite has dropped what one of the maps was at that time.
    """
    state = log.state().demand(policy)
    past = at_time(log, state, as_of_ms, maps or None)
    if past.unknown:
        snapshots = state.manifest.snapshots
        name = max(past.unknown, key=lambda name: (snapshots[name].until_ms, name))
        raise Failed(
            f"{log.namespace}/{log.cluster}: the state of map {name!r} at {iso(as_of_ms)} is no "
            f"longer known: a rewrite kept only the newest of every key at "
            f"{iso(snapshots[name].until_ms)}; ask for a later time"
        )
    return past.state


def _as_of(
    log: ClusterLog,
    view: ClusterState,
    selection: Selection,
    stack: ExitStack,
    tell: Tell,
    settings: Settings,
    as_of_ms: int,
) -> LiveCluster:
    for attempt in range(ATTEMPTS):
        with ExitStack() as reading:
            try:
                cluster = _read_as_of(log, view, selection, reading, tell, settings, as_of_ms)
            except NotFound:  # files were removed while they were read: begin again
                if attempt == ATTEMPTS - 1:
                    raise
                continue
            stack.enter_context(reading.pop_all())
            return cluster
    raise AssertionError


def _read_as_of(
    log: ClusterLog,
    view: ClusterState,
    selection: Selection,
    stack: ExitStack,
    tell: Tell,
    settings: Settings,
    as_of_ms: int,
) -> LiveCluster:
    clock = SystemClock()
    start = clock.monotonic()
    policy = settings.recovery_policy
    state = state_at(log, selection.maps, as_of_ms, policy)
    index = stack.enter_context(
        closing(NewestIndex(settings.restore_memory_bytes, settings.scratch))
    )
    metadata: dict[tuple[Any, ...], None] = {}
    seen: set[str] = set()
    oldest: int | None = None
    records = 0
    for changes in log.all_changes(state, selection.maps or None):
        rows_then = [row for row in changes.rows if row[TIMESTAMP_MS] <= as_of_ms]
        index.add(changes.node, rows_then, clears=changes.clears)
        if changes.rows and (oldest is None or oldest > as_of_ms):
            first = min(row[TIMESTAMP_MS] for row in changes.rows)
            oldest = first if oldest is None else min(oldest, first)
        seen.update(row[MAP] for row in changes.rows)
        metadata.update(dict.fromkeys(changes.metadata))
        records += len(changes.rows)
        tell(f"{view}: {records:,} records")

    noted = Noted()

    def rows(name: str) -> Iterator[list[Row]]:
        for batch in index.batches(name):
            noted.note(index.conflicts())
            alive = live(batch, as_of_ms)
            if alive:
                yield alive

    maps = [name for name in index.maps() if selection.wants_map(name)]
    return LiveCluster(
        view,
        maps,
        _names(seen, view, selection),
        rows,
        Decoder(metadata, note),
        list(metadata),
        clock.monotonic() - start,
        records,
        state.lacking,
        begins_ms=first_after(
            oldest, filter(selection.wants_map, state.manifest.snapshots), as_of_ms
        ),
    )


def _names(merged: Iterable[str], view: ClusterState, selection: Selection) -> list[str]:
    """The merged maps, and those of which a snapshot has dropped all entries."""
    return sorted(name for name in {*merged, *view.manifest.snapshots} if selection.wants_map(name))
