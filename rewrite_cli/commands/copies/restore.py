"""`imap-wal restore`."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
import msgpack

from imap_wal.backup.unfinished import UnfinishedStore
from imap_wal.context import Context, open_context
from imap_wal.entry import KEY, ORDER, VALUE, pack
from imap_wal.format import ENTRIES, METADATA
from imap_wal.layout import Identity
from imap_wal.schemas import sound_schemas
from imap_wal.settings import Settings
from imap_wal.write.context import LogContext
from imap_wal.write.node_log import NodeLog
from imap_wal.write.opening import open_node_log
from rewrite_cli.commands.reading.export import FORMATS, records, write
from rewrite_cli.commands.reading.stat import MEMBER_S_PER_ENTRY
from rewrite_cli.console import output as out
from rewrite_cli.console.failures import opening
from rewrite_cli.console.progress import working
from rewrite_cli.console.selection import (
    Selection,
    Url,
    open_empty,
    refuse_nested,
    selection_options,
)
from rewrite_cli.console.times import Moment
from rewrite_cli.entries.live import LiveCluster, Reading, merge_all, partial_option
from rewrite_cli.entries.losses import Losses
from storage_backends.location import Location

NODE = "restored"
FRAME_BYTES = 4 * 1024 * 1024


@click.command()
@selection_options(nodes=False)
@click.option(
    "--to",
    "target",
    type=Url(),
    help="The place for a clean copy: an empty URL for a log that agents or imap_wal.open can "
    "start from, or FILE.jsonl, .csv, .parquet.",
)
@click.option("--as-of", type=Moment(past=True), help="The maps as of this time.")
@partial_option
@out.output_option
def command(
    selection: Selection, target: Location | None, as_of: int | None, partial: bool, output: str
) -> None:
    """Merge all nodes' logs as a restart would, and report what it would load; with --to, write it
    as a clean copy.

    The log itself is only read. A service restores automatically when it starts. Use this command
    to see the result in advance, to move a log to another storage, or to go back in time.

    \b
    Examples:
      imap-wal restore /var/lib/maps
      imap-wal restore /var/lib/maps --to s3://bucket/maps
      imap-wal restore /var/lib/maps --to file:///tmp/yesterday --as-of 24h
    """
    suffix = Path(target.url).suffix[1:] if target and "://" not in target.url else ""
    if target is not None and suffix not in FORMATS:
        open_empty(target)
        refuse_nested(selection.url, target)
    rows: list[dict[str, Any]] = []
    losses = Losses()
    with working("reading") as tell, ExitStack() as stack:
        context, clusters = stack.enter_context(selection.open())
        merged = merge_all(context, clusters, selection, stack, tell, Reading(partial, as_of))
        selection.note_empty(name for cluster in merged for name in cluster.maps)
        if target is not None and suffix in FORMATS:
            written = write(suffix, Path(target.url), records(merged, losses))
            losses.end()
            out.note(f"{out.count(written, 'entry', 'entries')} in {target}")
        copied = _open_target(target) if target is not None and suffix not in FORMATS else None
        try:
            for cluster in merged:
                counts = _copy(cluster, copied[0]) if copied is not None else _count(cluster)
                rows += [_row(cluster, name, *counts[name]) for name in cluster.maps]
            if copied is not None:
                copied[1].finish()
        finally:
            if copied is not None:
                copied[1].close()
        forecasts = [_forecast(cluster, rows) for cluster in merged]
    if output == out.JSON:
        out.print_json({"maps": rows, "clusters": forecasts, "to": target and target.url})
        return
    out.print_table(
        ("namespace", "cluster", "map", "entries", "key and value bytes"),
        [tuple(row.values()) for row in rows],
    )
    for forecast in forecasts:
        out.prose(
            f"{forecast['namespace']}/{forecast['cluster']}: "
            f"{out.count(forecast['records'], 'record')} "
            f"merged in {out.duration(forecast['merge_seconds'])}; "
            f"a member would load {out.count(forecast['entries'], 'entry', 'entries')} in about "
            f"{out.duration(forecast['member_seconds'])}"
        )
    if copied is not None:
        out.note(f"copied to {target}, as node {NODE!r}")


def _row(cluster: LiveCluster, name: str, entries: int, size: int) -> dict[str, Any]:
    return {
        "namespace": cluster.view.namespace,
        "cluster": cluster.view.cluster,
        "map": name,
        "entries": entries,
        "bytes": size,
    }


def _forecast(cluster: LiveCluster, rows: list[dict[str, Any]]) -> dict[str, Any]:
    view = cluster.view
    entries = sum(
        row["entries"]
        for row in rows
        if (row["namespace"], row["cluster"]) == (view.namespace, view.cluster)
    )
    return {
        "namespace": view.namespace,
        "cluster": view.cluster,
        "entries": entries,
        "records": cluster.records,
        "merge_seconds": cluster.seconds,
        "member_seconds": entries * MEMBER_S_PER_ENTRY,
        "missing": dict(cluster.missing),
    }


def _count(cluster: LiveCluster) -> dict[str, tuple[int, int]]:
    counts = {}
    for name in cluster.maps:
        entries = size = 0
        for rows in cluster.rows(name):
            entries += len(rows)
            size += sum(len(row[KEY]) + len(row[VALUE] or b"") for row in rows)
        counts[name] = entries, size
    return counts


def _open_target(url: Location) -> tuple[Context, UnfinishedStore]:
    with opening(url):
        context = open_context(url)
    target = UnfinishedStore(context.store)
    return context.on(target), target


def _copy(cluster: LiveCluster, context: Context) -> dict[str, tuple[int, int]]:
    """Write a log of one node, with the same entries and orders, and the schemas that they need.
    Returns the entries and their bytes for each map."""
    view = cluster.view
    log = open_node_log(
        LogContext(
            context,
            Identity(view.namespace, view.cluster, NODE),
            Settings(),
        ),
        holder="imap-wal restore",
    )
    counts: dict[str, tuple[int, int]] = {}
    clean = False
    incarnation = 0
    try:
        sound, bad = sound_schemas(cluster.metadata)
        for error in bad:
            out.note(
                f"a schema of the log is not copied, so values that need it cannot be read: {error}"
            )
        schemas = [
            msgpack.packb(("schema", schema_id, schema.to_bytes()))
            for schema_id, schema in sound.items()
        ]
        if schemas:
            log.write(METADATA, len(schemas), schemas)
        for name in cluster.maps:
            entries = size = 0
            for rows in cluster.rows(name):
                _append(log, [pack(row) for row in rows])
                entries += len(rows)
                size += sum(len(row[KEY]) + len(row[VALUE] or b"") for row in rows)
                incarnation = max(incarnation, *(row[ORDER][0] for row in rows))
            counts[name] = entries, size
        log.sync()
        # Later changes must be newer than all of this.
        log.clusters.update(lambda manifest: _raised(manifest, incarnation))
        clean = True
    finally:
        log.close(clean)
    return counts


def _raised(manifest: Any, incarnation: int) -> Any:
    from dataclasses import replace

    return replace(manifest, incarnation=max(manifest.incarnation, incarnation))


def _append(log: NodeLog, packed: list[bytes]) -> None:
    """Write frames of a bounded size, and begin a new segment whenever one is full."""
    frame: list[bytes] = []
    size = 0
    for entry in packed:
        frame.append(entry)
        size += len(entry)
        if size >= FRAME_BYTES:
            log.write(ENTRIES, len(frame), frame)
            frame, size = [], 0
    if frame:
        log.write(ENTRIES, len(frame), frame)
    if log.full:
        log.rotate()
