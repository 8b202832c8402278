"""`imap-wal stat`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from imap_wal.agent.access.keys import KeyPair, read_secret
from imap_wal.clock import SystemClock
from imap_wal.context import Context
from imap_wal.entry import DELETED, EXPIRES_AT_MS, KEY, MAP, VALUE, Row
from imap_wal.inspect.own_disks import OwnDisk, nodes_with_tails, own_disk
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.newest.index import NewestIndex
from imap_wal.read.newest.rivals import ADVICE
from imap_wal.read.state import ClusterState, NodeState
from imap_wal.rewrite import conflicts
from imap_wal.rules.alive import has_expired
from imap_wal.settings import RecoveryPolicy, Settings
from rewrite_cli.console import output as out
from rewrite_cli.console.agent_keys import key_file_option
from rewrite_cli.console.failures import FINDINGS
from rewrite_cli.console.progress import working
from rewrite_cli.console.selection import Selection, selection_options
from rewrite_cli.entries.live import load_parquet
from rewrite_cli.entries.own_disks import tail_of

MEMBER_S_PER_ENTRY = 4.2e-6
"""Measured time of a Hazelcast member to load an entry through a map loader (a million entries of
100 bytes in 3.6 to 4.8 s)."""


@dataclass(slots=True)
class Count:
    """Records of one map that one node wrote, and the number of live ones. Bytes are of keys
    and values."""

    namespace: str
    cluster: str
    map: str
    node: str
    records: int = 0
    bytes: int = 0
    live: int = 0
    live_bytes: int = 0
    tombstones: int = 0
    expired: int = 0

    @property
    def dead(self) -> int:
        return self.records - self.live

    @property
    def dead_bytes(self) -> int:
        return self.bytes - self.live_bytes


@dataclass(frozen=True, slots=True)
class Waiting(OwnDisk):
    """Segments that are not uploaded yet. `bytes` and `waiting_seconds`: as in `DiskTail`; None:
    the node's agent did not answer at `address`."""

    address: str
    bytes: int | None
    waiting_seconds: float | None


@dataclass(frozen=True, slots=True)
class Forecast:
    """The time of a restart of the cluster: the merge is measured, the rest is computed from known
    rates."""

    namespace: str
    cluster: str
    entries: int
    records: int
    merge_seconds: float
    member_seconds: float
    missing: tuple[str, ...]
    conflicts: tuple[str, ...] = ()
    """The first keys that two nodes claim."""
    conflict_keys: int = 0
    """How many there are."""
    own_disks: tuple[Waiting, ...] = ()
    """Nodes with segments on their own disks alone, whose entries are not counted. A restart reads
    them from the agents."""


def count_cluster(
    context: Context,
    view: ClusterState,
    settings: Settings,
    maps: tuple[str, ...],
    tell: Callable[[str], None],
    key: KeyPair | None,
) -> tuple[list[Count], Forecast]:
    """Read what a restore would read, and count. Memory is limited as in a restore. `key`: with
    which agents say what is on their own disks."""
    load_parquet()
    clock = SystemClock()
    index = NewestIndex(settings.restore_memory_bytes, settings.scratch)
    counts: dict[tuple[str, str], Count] = {}
    start = clock.monotonic()
    records = in_conflict = 0
    log = ClusterLog.of(context, view)
    try:
        for changes in log.changes(maps=maps or None, policy=RecoveryPolicy.PARTIAL):
            index.add(changes.node, changes.rows, clears=changes.clears)
            for row in changes.rows:
                count = _of(counts, view, row[MAP], changes.node)
                count.records += 1
                count.bytes += _size(row)
            records += len(changes.rows)
            tell(f"{view}: {records:,} records")
        merged = clock.monotonic() - start
        now = clock.now_ms()
        for name in index.maps():
            for rows, nodes, rivals in index.batches_with_rivals(name):
                in_conflict += len(rivals)
                for row, node in zip(rows, nodes, strict=True):
                    count = _of(counts, view, name, node)
                    if row[DELETED]:
                        count.tombstones += 1
                    elif has_expired(row[EXPIRES_AT_MS], now):
                        count.expired += 1
                    else:
                        count.live += 1
                        count.live_bytes += _size(row)
    finally:
        index.close()
    live = sum(count.live for count in counts.values())
    texts = conflicts.found(log, maps=maps or None) if in_conflict else []
    member_seconds = live * MEMBER_S_PER_ENTRY
    disks = tuple(_waiting(context, node, key, now) for node in nodes_with_tails(view))
    elsewhere = {disk.node for disk in disks}
    missing = tuple(node for node in view.unreadable_nodes if node not in elsewhere)
    forecast = Forecast(
        view.namespace,
        view.cluster,
        live,
        records,
        merged,
        member_seconds,
        missing,
        tuple(texts),
        in_conflict,
        disks,
    )
    return [counts[key] for key in sorted(counts)], forecast


def _waiting(context: Context, node: NodeState, key: KeyPair | None, now_ms: int) -> Waiting:
    disk, tail = own_disk(node, now_ms), tail_of(context.store, node, key, now_ms)
    return Waiting(
        *(disk.node, disk.first, disk.last, disk.seconds, node.manifest.address),
        bytes=None if tail is None else tail.bytes,
        waiting_seconds=None if tail is None else tail.seconds,
    )


def _of(counts: dict[tuple[str, str], Count], view: ClusterState, name: str, node: str) -> Count:
    count = counts.get((name, node))
    if count is None:
        count = counts[name, node] = Count(view.namespace, view.cluster, name, node)
    return count


def _size(row: Row) -> int:
    return len(row[KEY] or b"") + len(row[VALUE] or b"")


@click.command()
@selection_options()
@key_file_option("for agents with local disks that require keys.")
@out.output_option
def command(selection: Selection, key_file: Path | None, output: str) -> int:
    """Count live and dead records and bytes per map and node, and forecast how long a restart would
    take. Reads the whole log. Exit code 3 if a node's log is missing (a restart would fail), or if
    two nodes claim the same change of a key.

    With local disks, the agents are asked how many bytes are not uploaded yet, and for how long.

    \b
    Examples:
      imap-wal stat /var/lib/maps
      imap-wal stat /var/lib/maps --cluster eu --map orders -o json
    """
    counts: list[Count] = []
    forecasts: list[Forecast] = []
    storage: list[dict[str, Any]] = []
    key = read_secret(key_file) if key_file else None
    with working("reading") as tell, selection.open() as (context, clusters):
        for view in clusters:
            of_cluster, forecast = count_cluster(
                context,
                view,
                Settings(),
                selection.maps,
                tell,
                key,
            )
            counts += [count for count in of_cluster if selection.wants_node(count.node)]
            forecasts.append(forecast)
            storage.append(
                {
                    "namespace": view.namespace,
                    "cluster": view.cluster,
                    "log_bytes": sum(node.wal_bytes for node in view.all_nodes),
                    "archive_bytes": sum(node.archive_bytes for node in view.all_nodes),
                    "snapshot_bytes": view.snapshot_bytes,
                }
            )
    selection.note_empty(count.map for count in counts)
    if output == out.JSON:
        _print_json(counts, storage, forecasts)
    else:
        _print_counts(counts)
        for forecast in forecasts:
            _print_forecast(forecast)
    return FINDINGS if any(forecast.conflicts or forecast.missing for forecast in forecasts) else 0


def _print_json(
    counts: list[Count], storage: list[dict[str, Any]], forecasts: list[Forecast]
) -> None:
    maps = [
        {**asdict(count), "dead": count.dead, "dead_bytes": count.dead_bytes} for count in counts
    ]
    out.print_json(
        {
            "maps": maps,
            "storage": storage,
            "forecast": [asdict(forecast) for forecast in forecasts],
        }
    )


def _print_counts(counts: list[Count]) -> None:
    out.print_table(
        (
            "cluster",
            "map",
            "node",
            "records",
            "live",
            "dead",
            "tombstones",
            "expired",
            "live bytes",
            "dead bytes",
        ),
        [
            (
                f"{c.namespace}/{c.cluster}",
                c.map,
                c.node,
                c.records,
                c.live,
                c.dead,
                c.tombstones,
                c.expired,
                c.live_bytes,
                c.dead_bytes,
            )
            for c in counts
        ],
    )


def _print_forecast(forecast: Forecast) -> None:
    dead = 1 - forecast.entries / forecast.records if forecast.records else 0
    percent = int(100 * dead)  # rounded down: 100% means that nothing lives
    out.prose(
        f"{forecast.namespace}/{forecast.cluster}: a restart reads "
        f"{out.count(forecast.records, 'record')} ({percent}% dead), merges them in "
        f"{out.duration(forecast.merge_seconds)}"
        f" and loads {out.count(forecast.entries, 'entry', 'entries')} in about "
        f"{out.duration(forecast.member_seconds)}"
    )
    if dead > 0.5 and forecast.records > 10_000:
        out.prose(
            f"  `imap-wal rewrite` would leave {out.count(forecast.entries, 'record')} to read"
        )
    for node in forecast.missing:
        out.prose(
            out.styled(f"  node {node!r} is missing", fg="red")
            + ": a restart refuses to continue without it (recovery_policy = full)"
        )
    for disk in forecast.own_disks:
        out.prose(
            out.styled(f"  node {disk.node!r}", fg="yellow")
            + f": segments {disk.first} to {disk.last} are on its own disk alone and not counted "
            f"here; {_not_uploaded(disk)}"
        )
    for text in forecast.conflicts:
        out.prose(out.styled("  conflict of order", fg="red") + f": {text}")
    if forecast.conflict_keys:
        out.prose(
            f"  {out.count(forecast.conflict_keys, 'key')} in conflict, which does not "
            f"stop a restart; {ADVICE}"
        )


def _not_uploaded(disk: Waiting) -> str:
    if disk.bytes is not None and disk.waiting_seconds is not None:
        age = out.duration(disk.waiting_seconds)
        return f"at most {out.size(disk.bytes)} are not uploaded, for {age} at most"
    age = "" if disk.seconds is None else f"; its last upload was {out.duration(disk.seconds)} ago"
    return (
        f"its agent does not answer at {disk.address} (if agents have keys, give --key-file){age}"
    )
