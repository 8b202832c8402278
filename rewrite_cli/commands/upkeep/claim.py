"""`imap-wal claim`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from imap_wal.agent.access.keys import read_token, token_hash
from imap_wal.agent.membership.operator_claim import ClaimReport, set_tokens, take_log
from imap_wal.clock import SystemClock
from imap_wal.read.cluster import ClusterLog
from rewrite_cli.console import output as out
from rewrite_cli.console.audit import audit
from rewrite_cli.console.selection import Selection, selection_options
from rewrite_cli.console.times import iso
from storage_backends.location import Location

LOOK = "`imap-wal claim URL`"
_TOKEN = click.Path(dir_okay=False, path_type=Path)


@click.command()
@selection_options(nodes=False, maps=False)
@click.option(
    "--force", is_flag=True, help="Claim. Without it, only show which cluster has the log."
)
@click.option(
    "--add-token",
    "add",
    type=_TOKEN,
    help="Let clusters with the token in this file claim, besides those with an earlier token.",
)
@click.option(
    "--only-token", "only", type=_TOKEN, help="Let only clusters with the token in this file claim."
)
@click.option(
    "--forget-tokens",
    "forget",
    is_flag=True,
    help="Let every client that may connect to an agent claim without a token.",
)
@out.yes_option
@out.output_option
def command(
    selection: Selection,
    force: bool,
    add: Path | None,
    only: Path | None,
    forget: bool,
    yes: bool,
    output: str,
) -> None:
    """Show which Hazelcast cluster has the log; with --force take the log from it.

    Use --force when a new cluster waits for a former one that will not return, or for missing nodes
    (start_policy). From then on no change by a member of the former cluster is acknowledged; its
    clients do not learn the outcome of changes in flight. Its members refuse changes, and answer
    reads from memory, until they are restarted. Acknowledged changes stay in the log. The next
    cluster that starts gets the log without waiting; the one after it waits again.

    \b
    Examples:
      imap-wal claim /var/lib/maps
      imap-wal claim /var/lib/maps --cluster eu --force --yes
      imap-wal claim /var/lib/maps --cluster eu --add-token /etc/imap-wal/new.token
    """
    if (add is not None) + (only is not None) + forget > 1:
        raise click.UsageError("--add-token, --only-token and --forget-tokens exclude each other")
    file, keep = add or only, add is not None
    hashes = [token_hash(read_token(file))] if file is not None else []
    # All questions come before the first change.
    if only is not None or forget:
        _agree_to_tokens(selection, file, yes=yes)
    if force:
        _agree_to_claim(_take(selection, dry_run=True), yes=yes)
    if keep or only is not None or forget:
        _set_tokens(selection, hashes, keep=keep)
    reports = _claim(selection) if force else _take(selection, dry_run=True)
    if output == out.JSON:
        out.print_json({"dry_run": not force, "clusters": [asdict(report) for report in reports]})
        return
    _show(reports)
    for report in reports:
        if report.missing and not report.claimed:
            _show_choices(report, selection.url)


def _agree_to_claim(reports: list[ClaimReport], *, yes: bool) -> None:
    """Ask whether the log is taken from the clusters of `reports`."""
    which = ", ".join(
        sorted(f"{report.former or 'none'} (cluster {report.cluster!r})" for report in reports)
    )
    cost = (
        "Their members refuse all changes until they are restarted, and changes in flight, "
        "which are not acknowledged, may be lost."
    )
    alive = "".join(
        f"The agents of {', '.join(report.signs)} hear members of {report.former}, or did until "
        "they were killed. "
        for report in reports
        if report.signs
    )
    out.agree(f"{alive}Take the log from the Hazelcast clusters {which}? {cost}", yes, LOOK)


def _claim(selection: Selection) -> list[ClaimReport]:
    taken = _take(selection, dry_run=False)
    for report in taken:
        audit(
            "log claimed",
            log=f"{report.namespace}/{report.cluster}",
            former=report.former,
            incarnation=report.claimed,
            url=selection.url,
        )
    return taken


def _show(reports: list[ClaimReport]) -> None:
    rows = [
        (
            report.namespace,
            report.cluster,
            report.former or "-",
            report.incarnation,
            ", ".join(report.signs) or "-",
            _others(report),
            report.claimed or "-",
            "closed" if report.closed else report.tokens,
        )
        for report in reports
    ]
    out.print_table(
        (
            "namespace",
            "cluster",
            "has the log",
            "incarnation",
            "last signs of life at",
            "other agents (cluster)",
            "claimed",
            "tokens",
        ),
        rows,
    )


def _show_choices(report: ClaimReport, url: Location) -> None:
    now_ms = SystemClock().now_ms()
    for node, seen_ms in report.missing.items():
        ago = out.duration(max(0, now_ms - seen_ms) / 1000)
        last = f"last seen {iso(seen_ms)}, {ago} ago" if seen_ms else "its log is not here"
        out.prose(f"missing: {node} ({last})")
    nodes = list(report.missing)
    log = f"{url} --namespace {report.namespace} --cluster {report.cluster}"
    out.prose('A new cluster waits for this, unless start_policy is "partial". Your choices:')
    out.prose(f"- start {out.count(len(nodes), 'agent')}: {', '.join(nodes)}. The wait then ends")
    for node in nodes:
        forget = f"imap-wal forget-node {log} --node {node} --lose --dry-run"
        out.prose(f"- {node} will not return: `{forget}` shows what only its log has")
    out.prose(f"- start once without waiting for nodes: `imap-wal claim {log} --force`")


def _agree_to_tokens(selection: Selection, file: Path | None, *, yes: bool) -> None:
    with selection.open() as (_, clusters):
        names = ", ".join(map(str, clusters))
    out.agree(f"Let {'only this token' if file else 'no token'} count for {names}?", yes, LOOK)


def _set_tokens(selection: Selection, hashes: list[str], *, keep: bool) -> None:
    with selection.open() as (context, clusters):
        for view in clusters:
            set_tokens(ClusterLog.of(context, view), hashes, keep=keep)
            audit(
                "token added" if keep else "tokens replaced" if hashes else "tokens forgotten",
                log=str(view),
                url=selection.url,
            )


def _others(report: ClaimReport) -> str:
    return (
        ", ".join(
            f"{node} ({cluster_id or '-'})" for node, cluster_id in sorted(report.present.items())
        )
        or "-"
    )


def _take(selection: Selection, *, dry_run: bool) -> list[ClaimReport]:
    with selection.open() as (context, clusters):
        return [take_log(ClusterLog.of(context, view), dry_run=dry_run) for view in clusters]
