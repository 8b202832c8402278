"""`imap-wal upgrade`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from imap_wal.errors import InvalidSetting
from imap_wal.inspect.inventory import ClusterView
from imap_wal.manifest.feature_level import NEWEST, FeatureLevel
from imap_wal.manifest.upgrade import LevelReport, Upgrade
from imap_wal.read.cluster import ClusterLog
from rewrite_cli.console import output as out
from rewrite_cli.console.audit import audit
from rewrite_cli.console.selection import Selection, selection_options


@click.command()
@selection_options(maps=False, nodes=False)
@out.yes_option
@out.dry_run_option
@out.output_option
def command(selection: Selection, yes: bool, dry_run: bool, output: str) -> None:
    """Show which release each node runs, and raise the feature level of the log: from then on,
    newer formats are written, and earlier releases refuse the log. Safe while a service runs.

    Refused (exit code 2, with --dry-run too) while a node cannot read the newest level: upgrade its
    program and start it, or forget the node. An embedded store raises the level when it is opened,
    unless its setting keep_level is true.

    \b
    Examples:
      imap-wal upgrade /var/lib/maps --dry-run
      imap-wal upgrade /var/lib/maps --cluster eu --yes
    """
    with selection.open() as (store, clusters):
        upgrades = [
            Upgrade(store, view.folder, log.clock, log.randomness)
            for view in clusters
            for log in (ClusterLog(store, view.namespace, view.cluster),)
        ]
        before = reports = [each.report() for each in upgrades]
        refused = [
            f"{view}: {each.refused}"
            for view, each in zip(clusters, before, strict=True)
            if each.refused
        ]
        if not dry_run and not refused and any(each.level < NEWEST for each in before):
            out.agree(
                f"Raise the feature level to {NEWEST:d}? Earlier releases then refuse the log.", yes
            )
            reports = [each.run() for each in upgrades]
            for view, old, new in zip(clusters, before, reports, strict=True):
                if new.level > old.level:
                    level = int(new.level)
                    audit("feature level raised", log=str(view), level=level, url=selection.url)
    rows = list(zip(clusters, before, reports, strict=True))
    if output == out.JSON:
        found = [_row(*each) for each in rows]
        out.print_json({"dry_run": dry_run, "newest": int(NEWEST), "clusters": found})
    else:
        _print(rows, dry_run)
    if refused:
        raise InvalidSetting("; ".join(refused))


def _row(view: ClusterView, before: LevelReport, after: LevelReport) -> dict[str, Any]:
    return {
        "namespace": view.namespace,
        "cluster": view.cluster,
        "before": int(before.level),
        "level": int(after.level),
        "brings": {str(int(each)): each.brings for each in FeatureLevel if each > before.level},
        "nodes": [asdict(each) for each in after.nodes],
        "refused": after.refused,
    }


def _print(rows: list[tuple[ClusterView, LevelReport, LevelReport]], dry_run: bool) -> None:
    for view, before, after in rows:
        raised = f"raised from {before.level:d} to {after.level:d}"
        level = raised if after.level > before.level else f"{after.level:d}, of {NEWEST:d}"
        out.echo(f"{view}: feature level {level}")
        for each in FeatureLevel:
            if each > before.level:
                out.echo(f"  {each:d} brings {each.brings}")
    if dry_run:
        out.note("dry run: nothing was changed")
    out.print_table(
        ("namespace", "cluster", "node", "release", "reads up to"),
        [
            (
                view.namespace,
                view.cluster,
                each.node,
                "MISSING" if each.missing else each.release or "older",
                each.level,
            )
            for view, _, after in rows
            for each in after.nodes
        ],
    )
