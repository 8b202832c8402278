"""`imap-wal claim`."""

from __future__ import annotations

from dataclasses import asdict

import click

from imap_wal.restore import ClusterLog
from rewrite_cli import output as out
from rewrite_cli.claim import ClaimReport, take_log
from rewrite_cli.scope import Scope, scope_options


@click.command()
@scope_options(nodes=False, maps=False)
@click.option("--force", is_flag=True, help="Claim. Without it, only show which cluster has the log.")
@out.yes_option
@out.output_option
def command(scope: Scope, force: bool, yes: bool, output: str) -> None:
    """Show which Hazelcast cluster has the log; with --force take the log from it.

    Use it when a new cluster waits for a former one that you want to give up, or for nodes that are missing (start_policy). From then on no change by a member of the
    former cluster is acknowledged; for changes in flight, its clients do not learn the outcome. Its members refuse changes, and answer reads from memory, until they are
    restarted. Acknowledged changes stay in the log. The next cluster that starts gets the log, and waits for nothing; the one after it waits again.

    \b
    Examples:
      imap-wal claim /var/lib/maps
      imap-wal claim /var/lib/maps --cluster eu --force --yes
    """
    reports = _take(scope, dry_run=True)
    if force:
        which = ", ".join(sorted(f"{each.former or 'none'} (cluster {each.cluster!r})" for each in reports))
        cost = "Their members refuse all changes until they are restarted, and changes in flight, which are not acknowledged, may be lost."
        out.agree(f"Take the log from the Hazelcast clusters {which}? {cost}", yes)
        reports = _take(scope, dry_run=False)
    if output == out.JSON:
        out.print_json({"dry_run": not force, "clusters": [asdict(report) for report in reports]})
        return
    rows = [
        (each.namespace, each.cluster, each.former or "-", each.incarnation, ", ".join(each.signs) or "-", _others(each), each.claimed or "-")
        for each in reports
    ]
    out.print_table(("namespace", "cluster", "has the log", "incarnation", "signs of life at", "other agents (cluster)", "claimed"), rows)


def _others(report: ClaimReport) -> str:
    return ", ".join(f"{node} ({cluster_id or '-'})" for node, cluster_id in sorted(report.present.items())) or "-"


def _take(scope: Scope, *, dry_run: bool) -> list[ClaimReport]:
    with scope.open() as (store, clusters):
        return [take_log(ClusterLog(store, view.namespace, view.cluster), dry_run=dry_run) for view in clusters]
