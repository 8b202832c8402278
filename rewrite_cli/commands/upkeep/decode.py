"""`imap-wal decode`."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from fnmatch import fnmatchcase
from itertools import chain

import click

from imap_wal.errors import EncryptionError
from imap_wal.manifest.cluster import set_decoded
from imap_wal.manifest.older import current_cluster
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.map_names import MapNames
from rewrite_cli.console import output as out
from rewrite_cli.console.audit import audit
from rewrite_cli.console.selection import Selection, selection_options


@click.command()
@selection_options(maps=False, nodes=False)
@click.option(
    "--map",
    "maps",
    multiple=True,
    metavar="NAME",
    help="Name of a map; * and ? match several. May be repeated. Replaces the former list.",
)
@click.option("--none", "nothing", is_flag=True, help="Add the columns to no map.")
@out.dry_run_option
@out.output_option
def command(
    selection: Selection, maps: tuple[str, ...], nothing: bool, dry_run: bool, output: str
) -> None:
    """Show or set the maps whose Parquet files have keys and values in readable form, in the
    columns key_text and value_json beside the bytes. DuckDB, pandas and Spark can then read
    archives and snapshots without imap-wal, which does not read these columns itself.

    It applies to files that are written from then on; other files get the columns when they are
    merged. Safe while a service runs. Archive runs and rewrites of these maps take 3 to 4 times the
    processor time. NULL: a tombstone, a Java class, or a key or value above 1 MiB. A note names
    maps that have no entries yet.

    \b
    Examples:
      imap-wal decode /var/lib/maps
      imap-wal decode /var/lib/maps --map orders --map 'session*'
    """
    if maps and nothing:
        raise click.UsageError("--map and --none exclude each other")
    rows = []
    absent = set(maps)
    with selection.open() as (context, clusters):
        for view in clusters:
            log = ClusterLog.of(context, view)
            manifests = log.manifests
            decoded = manifests.read()[1].decoded
            if (maps or nothing) and not dry_run:
                current_cluster(log.context, log.folder, manifests)
                decoded = set_decoded(manifests, maps)
                audit("decoded maps set", log=str(view), maps=list(decoded), url=selection.url)
            elif maps or nothing:
                decoded = tuple(sorted(set(maps)))
            absent = _without_entries(log, absent)
            rows.append((view.namespace, view.cluster, decoded))
    if absent:
        out.note(
            f"{selection.url}: no entries of map {', '.join(map(repr, sorted(absent)))} yet; the "
            "columns are added if it is written later"
        )
    if output == out.JSON:
        names = ("namespace", "cluster", "maps")
        clusters_ = [dict(zip(names, row, strict=True)) for row in rows]
        out.print_json({"dry_run": dry_run, "clusters": clusters_})
        return
    if dry_run:
        out.note("dry run: nothing was changed")
    out.print_table(
        ("namespace", "cluster", "maps with readable columns"),
        [
            (namespace, cluster, ", ".join(decoded) or "none")
            for namespace, cluster, decoded in rows
        ],
    )


def _without_entries(log: ClusterLog, maps: Collection[str]) -> set[str]:
    """Those of the names and patterns that no map of the log has; none if a file that cannot be
    read, also without its key, may have one."""
    left, map_names = set(maps), MapNames(log)
    if not left:
        return left
    with suppress(EncryptionError):
        for names in chain(map_names.in_manifests(), map_names.in_segments()):
            left = {
                pattern for pattern in left if not any(fnmatchcase(name, pattern) for name in names)
            }
            if not left:
                break
        return left if map_names.complete else set()
    return set()
