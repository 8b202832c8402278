"""`imap-wal drop`."""

from __future__ import annotations

from dataclasses import dataclass

import click

from imap_wal.context import Context
from imap_wal.errors import LogError
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.state import ClusterState
from imap_wal.rewrite.drop import drop_map
from rewrite_cli.console import output as out
from rewrite_cli.console.audit import audit
from rewrite_cli.console.failures import Failed
from rewrite_cli.console.selection import Selection, selection_options


@dataclass(frozen=True, slots=True)
class _Found:
    """A map of a cluster. `damaged`: if no entry can be read, the files that may have some."""

    view: ClusterState
    name: str
    damaged: tuple[str, ...]

    def __str__(self) -> str:
        text = f"{self.name!r} of {self.view}"
        if not self.damaged:
            return text
        these = "file is" if len(self.damaged) == 1 else "files are"
        return (
            f"{text} with an unknown number of entries ({len(self.damaged)} {these} damaged: "
            f"{', '.join(self.damaged)})"
        )


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
    until the next view or start of the cluster: a copy of a change may still arrive. A map whose
    files are damaged can be dropped: if no entry can be read, the question names these files.

    \b
    Examples:
      imap-wal drop /var/lib/maps --map orders --dry-run
      imap-wal drop /var/lib/maps --cluster eu --map orders --yes
    """
    if not selection.maps:
        raise click.UsageError("name what to forget: --map")
    with selection.open() as (context, clusters):
        selected = [
            selected_map
            for view in clusters
            for name in selection.maps
            if (selected_map := _find(context, view, name)) is not None
        ]
        if not selected:
            raise Failed(
                f"{selection.url}: no entries of map {', '.join(map(repr, selection.maps))}"
            )
        for selected_map in selected:
            away = selected_map.view.unreadable_nodes
            if away:
                raise Failed(
                    f"{selected_map.view}: the log of {', '.join(map(repr, away))} is "
                    f"missing and may have map {selected_map.name!r}: bring it back first"
                )
        names = ", ".join(map(str, selected))
        if not dry_run:
            out.agree(f"Forget {names}?", yes)
        for selected_map in selected:
            log = ClusterLog.of(context, selected_map.view)
            drop_map(log, selected_map.name, dry_run=dry_run)
            if not dry_run:
                audit(
                    "map dropped",
                    log=str(selected_map.view),
                    map=selected_map.name,
                    url=selection.url,
                )
    if output == out.JSON:
        out.print_json(
            {
                "dry_run": dry_run,
                "dropped": [
                    {
                        "namespace": selected_map.view.namespace,
                        "cluster": selected_map.view.cluster,
                        "map": selected_map.name,
                        "damaged": selected_map.damaged,
                    }
                    for selected_map in selected
                ],
            }
        )
    else:
        out.echo(f"{'would forget' if dry_run else 'forgot'} {names}")


def _find(context: Context, view: ClusterState, name: str) -> _Found | None:
    """None: the cluster has no entries of the map. A damaged file may have some."""
    damaged: list[LogError] = []
    changes = ClusterLog.of(context, view).changes((name,), damaged=damaged)
    if any(change.rows for change in changes):
        return _Found(view, name, ())
    return _Found(view, name, tuple(error.file for error in damaged)) if damaged else None
