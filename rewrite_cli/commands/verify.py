"""`imap-wal verify`."""

from __future__ import annotations

from collections import Counter

import click

from imap_wal.errors import LogError
from rewrite_cli import output as out
from rewrite_cli.failures import FINDINGS
from rewrite_cli.scope import Scope, scope_options
from rewrite_cli.verifier import CLEAN, CORRUPT, TORN, UNSUPPORTED, Finding, damaged, foreign_files, verify_cluster


@click.command()
@scope_options(maps=False)
@click.option("--all", "show_all", is_flag=True, help="Also list the files that are clean (JSON always does).")
@out.output_option
def command(scope: Scope, show_all: bool, output: str) -> int:
    """Read every byte of the log and say what is damaged, and what is lost.

    A torn tail (an incomplete last commit after a crash, or a service that is writing right now) is reported and is no damage: exit code 0. Damage: exit code 3.

    \b
    Examples:
      imap-wal verify /var/lib/maps
      imap-wal verify s3://bucket/maps --node n1 -o json
    """
    findings: list[Finding] = []
    foreign: list[str] = []
    with out.progress() as progress:
        task = progress.add_task("reading")
        try:
            with scope.open() as (store, clusters):
                for view in clusters:
                    findings += verify_cluster(store, view, scope.wants_node, lambda text: progress.update(task, description=text))
                    foreign += foreign_files(view, scope.wants_node)
        except LogError as error:  # a manifest: what it should name cannot be told
            findings.append(damaged(error.file, "manifest", 0, error, None))
    counts = Counter(finding.status for finding in findings)
    summary = {
        "files": len(findings),
        "bytes": sum(finding.bytes for finding in findings),
        "records": sum(finding.records for finding in findings),
        **{status.replace("-", "_"): counts[status] for status in (CLEAN, TORN, CORRUPT, UNSUPPORTED)},
        "foreign": len(foreign),
    }
    if output == out.JSON:
        out.print_json({"summary": summary, "files": [finding.to_json() for finding in findings], "foreign": foreign})
    else:
        shown = [finding for finding in findings if show_all or finding.status != CLEAN]
        if shown:
            out.print_table(
                ("status", "file", "offset", "first lost", "what", "what to do"),
                [(finding.status, finding.file, finding.offset, finding.first_lost, finding.what, finding.advice) for finding in shown],
            )
        for path in foreign:
            out.note(f"not ours, left alone: {path}")
        bad = counts[CORRUPT] + counts[UNSUPPORTED]
        verdict = click.style(f"{bad} damaged", fg="red", bold=True) if bad else click.style("no damage", fg="green", bold=True)
        torn = f", {counts[TORN]} torn tail" if counts[TORN] else ""
        click.echo(f"{verdict}{torn}: {len(findings)} files, {out.size(summary['bytes'])}, {summary['records']:,} records")
    return FINDINGS if counts[CORRUPT] or counts[UNSUPPORTED] else 0
