"""`imap-wal publish`."""

from __future__ import annotations

from collections.abc import Sequence
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
    copied without them. Entries that expire later are still rows: the condition that is printed
    leaves them out. VACUUM of other programs must not be run with a retention shorter than that of
    the table: it could delete files of the log. An encrypted log cannot be published.

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
    try:
        with selection.open(upkeep=True) as (context, clusters):
            for view in clusters:
                log = ClusterLog.of(context, view)
                there = log.manifest().snapshots
                for name in selection.maps:
                    if name in there:
                        table = publish(log, name, keep=keep, dry_run=dry_run)
                        published.append((str(view), table))
    finally:  # also of those before an error
        if published:
            _show(published, dry_run, output)
    done = {table.map for _, table in published}
    if left := [name for name in selection.maps if name not in done]:
        raise Failed(
            f"{selection.url}: map {', '.join(map(repr, left))} has no snapshot to publish: run "
            "`imap-wal rewrite` first"
        )


def _show(published: Sequence[tuple[str, PublishedTable]], dry_run: bool, output: str) -> None:
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
        out.prose(f"table: {table.place}")
        if "%" in table.place:
            out.note("some programs cannot read a table whose path has a `%`: see docs/limits.md")
    for program, condition in published[0][1].live.items():
        out.prose(f"live entries, in SQL of {program}: {condition}")


def _json(cluster: str, table: PublishedTable) -> dict[str, Any]:
    return {"cluster": cluster, **asdict(table)}
