"""`imap-wal drop`."""

from __future__ import annotations

import click

from imap_wal.inspect.inventory import ClusterView
from imap_wal.read.cluster import ClusterLog
from imap_wal.rewrite.drop import drop_map
from rewrite_cli.console import output as out
from rewrite_cli.console.audit import audit
from rewrite_cli.console.failures import Failed
from rewrite_cli.console.selection import Selection, selection_options
from storage_backends import SegmentStore


@click.command()
@selection_options(nodes=False)
@out.yes_option
@out.dry_run_option
@out.output_option
def command(selection: Selection, yes: bool, dry_run: bool, output: str) -> None:
    """Forget maps: their present entries in the log become void, and a restart finds the maps
    empty. Needs --map.

    For maps that no cluster has in memory: in a running cluster, use Hazelcast's destroy(). Later
    changes of the map count again. `prune` then frees the space. A map with `copies` is refused
    until the next view or start of the cluster: a copy of a change may still arrive.

    \b
    Examples:
      imap-wal drop /var/lib/maps --map orders --dry-run
      imap-wal drop /var/lib/maps --cluster eu --map orders --yes
    """
    if not selection.maps:
        raise click.UsageError("name what to forget: --map")
    with selection.open() as (store, clusters):
        found = [
            (view, name)
            for view in clusters
            for name in selection.maps
            if _entries(store, view, name)
        ]
        if not found:
            raise Failed(
                f"{selection.url}: no entries of map {', '.join(map(repr, selection.maps))}"
            )
        for view, name in found:
            if view.unreadable_nodes:
                raise Failed(
                    f"{view}: the log of {', '.join(map(repr, view.unreadable_nodes))} is "
                    f"missing and may have map {name!r}: bring it back first"
                )
        names = ", ".join(f"{name!r} of {view}" for view, name in found)
        if not dry_run:
            out.agree(f"Forget {names}?", yes)
        for view, name in found:
            drop_map(ClusterLog(store, view.namespace, view.cluster), name, dry_run=dry_run)
            if not dry_run:
                audit(
                    "map dropped",
                    log=f"{view.namespace}/{view.cluster}",
                    map=name,
                    url=selection.url,
                )
    if output == out.JSON:
        out.print_json(
            {
                "dry_run": dry_run,
                "dropped": [
                    {"namespace": view.namespace, "cluster": view.cluster, "map": name}
                    for view, name in found
                ],
            }
        )
    else:
        out.echo(f"{'would forget' if dry_run else 'forgot'} {names}")


def _entries(store: SegmentStore, view: ClusterView, name: str) -> bool:
    """Whether the map has entries. Its files may be damaged: then it can be dropped, too."""
    if name in view.snapshots and view.snapshots[name].live:
        return True
    return any(
        changes.rows
        for changes in ClusterLog(store, view.namespace, view.cluster).changes(maps=(name,))
    )
