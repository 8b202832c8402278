"""`imap-wal publish`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from imap_wal.errors import ImapWalError
from imap_wal.read.cluster import ClusterLog
from rewrite_cli.console import output as out
from rewrite_cli.console.audit import audit
from rewrite_cli.console.failures import Failed, message
from rewrite_cli.console.selection import Selection, selection_options
from rewrite_cli.console.times import Duration, iso
from rewrite_cli.console.written import closed_within
from storage_backends import StorageError

if TYPE_CHECKING:  # they need pyarrow
    from imap_wal.publish.publication import PublishedTable
    from imap_wal.rewrite.following import TableFollower


@click.command()
@selection_options(nodes=False)
@click.option("--delta", is_flag=True, help="As a Delta table, beside the files of the snapshot.")
@click.option(
    "--iceberg",
    metavar="CATALOG",
    help="As an Iceberg table of this catalog, which is configured as for pyiceberg.",
)
@click.option(
    "--table",
    metavar="NAMESPACE.NAME",
    help="The name of the Iceberg table. Default: the names of cluster and map, percent-encoded.",
)
@click.option(
    "--keep",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="How many published snapshots keep their files, for queries that are under way.",
)
@click.option(
    "--each-rewrite/--by-hand",
    default=None,
    help="Whether each later rewrite of the map also publishes this table. --by-hand publishes "
    "nothing now.",
)
@click.option(
    "-f",
    "--follow",
    is_flag=True,
    help="Rewrite the map and publish it again after each --interval with changes.",
)
@click.option(
    "--interval",
    type=Duration(),
    default="1m",
    show_default=True,
    help="With --follow: the pause between two rounds.",
)
@out.dry_run_option
@out.output_option
def command(
    selection: Selection,
    delta: bool,
    iceberg: str | None,
    table: str | None,
    keep: int,
    each_rewrite: bool | None,
    follow: bool,
    interval: float,
    dry_run: bool,
    output: str,
) -> None:
    """Publish the snapshot of a map as a table for other programs: a commit names its files. Needs
    --map, and --delta or --iceberg. Run it after each rewrite, or once with --each-rewrite: then
    rewrites of all kinds publish, also those of a service that compacts, and those on Spark.
    Without options, it shows the tables that rewrites publish.

    The table has the state of the last rewrite: one row for each live entry. Spark, Polars, DuckDB
    and others read it without imap-wal. They must not change it. A file with tombstones is copied
    without them. Expired entries may still be rows: the condition that is printed leaves them out.
    An encrypted log cannot be published.

    With --follow, the table follows the map until Ctrl-C or SIGTERM. Each round rewrites the map,
    publishes it, and removes former snapshot files that no reader needs. In JSON, each version is
    one line. A kill at any point leaves the former version or the new one; the next start
    continues. An error in the first round ends the command; a later one is printed, and the next
    round tries again. The files of a version are removed when there are --keep newer ones, so
    with the default of 3, a query may take two intervals.

    \b
    Other programs must not delete files of the log:
      Delta     no VACUUM with a retention shorter than that of the table
      Iceberg   no DROP with PURGE, and no removal of files of expired snapshots:
                the table's `gc.enabled` is false

    \b
    Examples:
      imap-wal publish /var/lib/maps --map orders --delta
      imap-wal publish s3://bucket/maps --cluster eu --map orders --delta --keep 10
      imap-wal publish s3://bucket/maps --map orders --iceberg lake --table shop.orders
      imap-wal publish /var/lib/maps --map orders --delta --each-rewrite
      imap-wal publish /var/lib/maps --map orders --delta --follow --interval 5m
    """
    if not (selection.maps or delta or iceberg or table or follow or each_rewrite is not None):
        _show_recorded(selection, output)
        return
    if not selection.maps:
        raise click.UsageError("name what to publish: --map")
    if delta and iceberg:
        raise click.UsageError("--delta and --iceberg exclude each other: run it for each")
    if not delta and not iceberg:
        raise click.UsageError("name the kind of the table: --delta or --iceberg")
    if table is not None and (not table or delta or len(selection.maps) > 1):
        raise click.UsageError("--table needs a name, --iceberg and one --map")
    if follow:
        if dry_run or each_rewrite is not None:
            raise click.UsageError("--follow excludes --dry-run, --each-rewrite and --by-hand")
        _follow(selection, iceberg, table or "", keep, interval, output)
        return
    from imap_wal.publish.publication import publish
    from imap_wal.publish.recorded import record, table_of, text_of

    published: list[tuple[str, PublishedTable]] = []
    ended: list[dict[str, str]] = []
    try:
        with selection.open(upkeep=True) as (context, clusters):
            for view in clusters:
                log = ClusterLog.of(context, view)
                there = log.manifest().snapshots
                for name in selection.maps:
                    text = text_of(log, name, iceberg, table or "")
                    if each_rewrite is False:
                        if not dry_run:
                            record(log, name, text, 0)
                            audit("published by hand", log=str(view), map=name, table=text)
                        ended.append({"cluster": str(view), "map": name, "table": text})
                    elif name in there:
                        target = table_of(log, name, text)
                        done = publish(log, name, target, keep=keep, dry_run=dry_run)
                        published.append((str(view), done))
                        if each_rewrite and not dry_run:
                            record(log, name, text, keep)
                            audit("published by rewrites", log=str(view), map=name, table=text)
    finally:  # also those before an error
        if published:
            _show(published, dry_run, output)
    if each_rewrite is False:
        _show_ended(ended, dry_run, output)
        return
    with_snapshot = {done.map for _, done in published}
    if left := [name for name in selection.maps if name not in with_snapshot]:
        raise Failed(
            f"{selection.url}: map {', '.join(map(repr, left))} has no snapshot to publish: run "
            "`imap-wal rewrite` first"
        )


def _follow(
    selection: Selection, iceberg: str | None, table: str, keep: int, interval: float, output: str
) -> None:
    from imap_wal.publish.recorded import text_of
    from imap_wal.rewrite.following import TableFollower
    from imap_wal.rewrite.local_engine import LocalEngine

    with selection.open(upkeep=True) as (context, clusters):
        followers: list[tuple[str, TableFollower]] = []
        for view in clusters:
            log = ClusterLog.of(context, view)
            tables = {name: text_of(log, name, iceberg, table) for name in selection.maps}
            follower = TableFollower(
                log, tables, LocalEngine, keep, lambda holder: out.note(f"waiting for {holder}")
            )
            followers.append((str(view), follower))
        try:
            for cluster, follower in followers:
                _round(cluster, follower, output)
            while not closed_within(interval):
                for cluster, follower in followers:
                    try:
                        _round(cluster, follower, output)
                    except (ImapWalError, StorageError) as error:
                        _show_error(cluster, message(error), output)
        except KeyboardInterrupt:
            return


def _round(cluster: str, follower: TableFollower, output: str) -> None:
    """Print the new versions."""
    for table in follower.round():
        if output == out.JSON and table.is_new:
            out.print_line(_json(cluster, table))
        elif table.is_new:
            out.echo(
                f"{iso(table.until_ms)} {cluster} {table.map}: version {table.version}, "
                f"{table.rows:,} rows, {table.added} files added, {table.removed} removed"
            )


def _show_error(cluster: str, error: str, output: str) -> None:
    if output == out.JSON:
        out.print_line({"cluster": cluster, "error": error})
    out.note(f"{cluster}: {error}; the next round tries again")


def _show_recorded(selection: Selection, output: str) -> None:
    """The tables that rewrites publish."""
    rows = []
    with selection.open(upkeep=True) as (context, clusters):
        for view in clusters:
            for name, tables in sorted(ClusterLog.of(context, view).manifest().tables.items()):
                rows += [(str(view), name, text, keep) for text, keep in sorted(tables.items())]
    if output == out.JSON:
        names = ("cluster", "map", "table", "keep")
        out.print_json({"each_rewrite": [dict(zip(names, row, strict=True)) for row in rows]})
    elif rows:
        out.print_table(("cluster", "map", "published by each rewrite", "keep"), rows)
    else:
        out.note("rewrites publish no table; --map, and --delta or --iceberg, publish one")


def _show_ended(ended: list[dict[str, str]], dry_run: bool, output: str) -> None:
    if output == out.JSON:
        out.print_json({"dry_run": dry_run, "by_hand": ended})
        return
    if dry_run:
        out.note("dry run: nothing was changed")
    for line in ended:
        out.note("{cluster}: rewrites of map {map!r} no longer publish {table}".format(**line))


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
        if "%" in table.place and "/" in table.place:
            out.note(
                "delta-rs, Polars and DuckDB cannot read a Delta table whose path has a `%`: "
                "publish it with --iceberg"
            )
        if not table.is_new and table.until_ms:
            out.note(
                f"map {table.map!r}: the snapshot is of {iso(table.until_ms)}; newer changes need "
                "`imap-wal rewrite`"
            )
    for program, condition in published[0][1].live.items():
        out.prose(f"live entries, in SQL of {program}: {condition}")


def _json(cluster: str, table: PublishedTable) -> dict[str, Any]:
    return {"cluster": cluster, **asdict(table)}
