"""`imap-wal forget-node`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

import click

from imap_wal.agent.membership.forget_node import ForgetReport, forget_node
from imap_wal.context import Context
from imap_wal.errors import InvalidSetting
from imap_wal.inspect.running_writer import writer_of
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.state import ClusterState
from rewrite_cli.console import output as out
from rewrite_cli.console.audit import audit
from rewrite_cli.console.failures import Failed
from rewrite_cli.console.selection import Selection, selection_options
from storage_backends import StorageError


@click.command()
@selection_options(maps=False)
@click.option(
    "--lose", is_flag=True, help="Forget it even if entries are lost that only its log has."
)
@out.yes_option
@out.dry_run_option
@out.output_option
def command(selection: Selection, lose: bool, yes: bool, dry_run: bool, output: str) -> None:
    """Forget a node that will not return: restores no longer wait for its log, and its files are
    deleted. Needs --node.

    A process that still writes its log is fenced first. Entries that no snapshot covers would be
    lost: rewrite first, or pass --lose. Without it, the exit code is then 2, also with --dry-run.

    \b
    Examples:
      imap-wal forget-node /var/lib/maps --node n3 --dry-run
      imap-wal forget-node /var/lib/maps --cluster eu --node n3 --yes
    """
    if not selection.nodes:
        raise click.UsageError("name what to forget: --node")
    reports = _forget(selection, lose=lose, dry_run=True)
    refused = "; ".join(report.refused for report in reports if report.refused)
    if not dry_run and not refused:
        files = sum(len(report.deleted) for report in reports)
        if files or not all(report.before for report in reports):
            losses = {
                f"{report.lost} of node {report.node!r}"
                for report in reports
                if report.missing or report.lost.files
            }
            lost = f" Entries that are lost: {', '.join(sorted(losses))}." if losses else ""
            nodes, its_files = ", ".join(selection.nodes), out.count(files, "file")
            out.agree(f"Forget node {nodes} and delete its {its_files}?{lost}", yes)
            reports = _forget(selection, lose=lose, dry_run=False)
            for report in reports:
                audit(
                    "node forgotten",
                    node=report.node,
                    files=len(report.deleted),
                    lost=str(report.lost),
                    url=selection.url,
                )
    if dry_run or not refused:
        _print(reports, dry_run, output)
    if refused:
        raise InvalidSetting(refused)


def _print(reports: list[ForgetReport], dry_run: bool, output: str) -> None:
    if output == out.JSON:
        out.print_json({"dry_run": dry_run, "nodes": [asdict(report) for report in reports]})
        return
    for report in reports:
        if report.before:
            out.echo(f"node {report.node!r} was forgotten by an earlier run")
    rows = [
        (report.node, len(report.deleted), str(report.lost), report.missing or "-")
        for report in reports
    ]
    titles = (
        ("node", "files to delete", "entries to lose", "missing")
        if dry_run
        else ("node", "files deleted", "entries lost", "missing")
    )
    out.print_table(titles, rows)


def _note_writers(context: Context, clusters: Sequence[ClusterState], names: Sequence[str]) -> None:
    """Name the processes that write the logs of these nodes: perhaps the wrong node is named. A
    lease is not asked for, because that could take it over."""
    if not context.store.capabilities.locks:
        return
    for node in (node for view in clusters for node in view.all_nodes if node.name in names):
        try:
            writer = writer_of(context.store, node.folder, "imap-wal forget-node")
        except StorageError as error:
            out.note(f"node {node.name!r}: it is unknown whether it is being written ({error})")
            continue
        if writer is not None:
            out.note(
                f"node {node.name!r} is being written by {writer}: if it is forgotten, this "
                "process cannot write its log any more"
            )


def _forget(selection: Selection, *, lose: bool, dry_run: bool) -> list[ForgetReport]:
    # Without `nodes`, because a node without a folder can be forgotten too.
    with replace(selection, nodes=()).open() as (context, clusters):
        node_names = {
            view.folder: {
                *view.manifest.nodes,
                *(all_node.name for all_node in (*view.all_nodes, *view.forgotten)),
            }
            for view in clusters
        }
        absent = set(selection.nodes).difference(*node_names.values())
        if absent:
            there = out.names(sorted(set().union(*node_names.values())))
            raise Failed(
                f"{selection.url}: no node {', '.join(sorted(map(repr, absent)))}; found: {there}"
            )
        if dry_run:  # a run begins with one
            _note_writers(context, clusters, selection.nodes)
        return [
            forget_node(
                ClusterLog.of(context, view),
                node,
                lose=lose,
                dry_run=dry_run,
            )
            for view in clusters
            for node in selection.nodes
            if node in node_names[view.folder]
        ]
