"""`imap-wal archive`."""

from __future__ import annotations

from typing import Any

import click

from imap_wal.context import Context
from imap_wal.layout import Identity
from imap_wal.read.state import ClusterState, NodeState
from imap_wal.retention.archive import archive_offline
from imap_wal.retention.archive_writer import Write
from imap_wal.retention.archiver import in_processes
from imap_wal.retention.processes import processors
from rewrite_cli.console import output as out
from rewrite_cli.console.failures import Failed
from rewrite_cli.console.progress import Reached, working
from rewrite_cli.console.selection import Selection, selection_options


@click.command()
@selection_options(maps=False)
@click.option(
    "--processes",
    type=click.IntRange(1),
    metavar="N",
    help="Use at most N processes; fewer for a small log. Default: one for each processor.",
)
@out.dry_run_option
@out.output_option
def command(selection: Selection, processes: int | None, dry_run: bool, output: str) -> None:
    """Turn sealed segments into compressed Parquet files. Each process writes one per map, and
    needs about 400 MB of memory. Only for nodes whose log no service is writing (otherwise exit
    code 4).

    A running agent or embedded store archives automatically: see archive_interval_s,
    max_total_wal_size and archive_objects in its settings.

    \b
    Examples:
      imap-wal archive /var/lib/maps --dry-run
      imap-wal archive /var/lib/maps --node n1
    """
    rows: list[dict[str, Any]] = []
    with (
        working("archiving") as tell,
        selection.open(upkeep=True) as (context, clusters),
        in_processes(context.place, processes or processors()) as write,
    ):
        total = sum(
            node.wal_bytes
            for view in clusters
            for node in view.all_nodes
            if selection.wants_node(node.name)
        )
        done = 0
        for view in clusters:
            for node in view.all_nodes:
                if selection.wants_node(node.name):
                    tell(Reached(f"{view} {node.name}", done, total))
                    rows.append(
                        _plan(view, node) if dry_run else _archive(context, view, node, write)
                    )
                    done += node.wal_bytes
                    tell(Reached(f"{view} {node.name}", done, total))
    if output == out.JSON:
        out.print_json({"dry_run": dry_run, "nodes": rows})
    else:
        if dry_run:
            out.note("dry run: nothing was changed")
        out.print_table(
            ("namespace", "cluster", "node", "segments", "records", "log bytes", "archive bytes"),
            [tuple(row.values()) for row in rows],
        )


def _demand_manifest(node: NodeState) -> None:
    if not node.manifest.directory:
        raise Failed(f"{node.folder} has no manifest, so it is unknown to which log it belongs")


def _plan(view: ClusterState, node: NodeState) -> dict[str, Any]:
    _demand_manifest(node)
    segments = node.wal.segments
    return _row(view, node, len(segments), None, sum(segment.bytes for segment in segments), None)


def _archive(context: Context, view: ClusterState, node: NodeState, write: Write) -> dict[str, Any]:
    _demand_manifest(node)
    identity = Identity(view.namespace, view.cluster, node.name)
    done = archive_offline(context, identity, node.folder, write=write)
    return _row(view, node, done.segments, done.records, done.bytes_before, done.bytes_after)


def _row(
    view: ClusterState,
    node: NodeState,
    segments: int,
    records: int | None,
    before: int,
    after: int | None,
) -> dict[str, Any]:
    return {
        "namespace": view.namespace,
        "cluster": view.cluster,
        "node": node.name,
        "segments": segments,
        "records": records,
        "log_bytes": before,
        "archive_bytes": after,
    }
