"""`imap-wal publish`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from imap_wal.read.cluster import ClusterLog
from rewrite_cli.console import output as out
from rewrite_cli.console.failures import Failed
from rewrite_cli.console.selection import Selection, selection_options

if TYPE_CHECKING:  # it needs pyarrow
    from imap_wal.publish.delta import PublishedTable


@click.command()
@selection_options(nodes=False)
@click.option("--delta", is_flag=True, help="As a Delta table, beside the files of the snapshot.")
@click.option(
    "--keep",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="How many published snapshots keep their files, for queries that are under way.",
)
@out.dry_run_option
@out.output_option
def command(selection: Selection, delta: bool, keep: int, dry_run: bool, output: str) -> None:
    """Publish the snapshot of a map as a table of other programs, without a copy of its files: a
    commit that names them. Run it after each rewrite. Needs --map and --delta.

    The table has the state of the last rewrite: one row for each live entry. Spark, Polars, DuckDB
    and others read it without imap-wal, and none of them can change it. A file with tombstones is
    copied without them. Entries that expire later are still rows: the view that is printed leaves
    them out. VACUUM of other programs must not be run with a retention shorter than that of the
    table: it could delete files of the log. An encrypted log cannot be published.

    \b
    Examples:
      imap-wal publish /var/lib/maps --map orders --delta
      imap-wal publish s3://bucket/maps --cluster eu --map orders --delta --keep 10
    """
    if not selection.maps:
        raise click.UsageError("name what to publish: --map")
    if not delta:
        raise click.UsageError("name the kind of the table: --delta")
    from imap_wal.publish.delta import publish

    published: list[tuple[str, PublishedTable]] = []
    with selection.open(upkeep=True) as (context, clusters):
        for view in clusters:
            log = ClusterLog.of(context, view)
            there = log.manifest().snapshots
            maps = [name for name in selection.maps if name in there]
            published += [
                (str(view), publish(log, name, keep=keep, dry_run=dry_run)) for name in maps
            ]
    if not published:
        raise Failed(
            f"{selection.url}: map {', '.join(map(repr, selection.maps))} has no snapshot to "
            "publish: run `imap-wal rewrite` first"
        )
    if output == out.JSON:
        out.print_json(
            {"dry_run": dry_run, "tables": [_json(cluster, each) for cluster, each in published]}
        )
        return
    if dry_run:
        out.note("dry run: nothing was published")
    out.print_table(
        ("cluster", "map", "version", "rows", "bytes", "added", "removed", "kept", "copied"),
        [
            (
                cluster,
                table.map + ("" if table.is_new else " (unchanged)"),
                table.version,
                table.rows,
                table.bytes,
                table.added,
                table.removed,
                table.kept,
                table.copied,
            )
            for cluster, table in published
        ],
    )
    for _, table in published:
        out.prose(f"table: {table.url}")
    out.prose(f"live entries: {published[0][1].view}")


def _json(cluster: str, table: PublishedTable) -> dict[str, Any]:
    return {"cluster": cluster, **asdict(table)}
