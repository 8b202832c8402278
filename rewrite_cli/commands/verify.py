"""`imap-wal verify`."""

from __future__ import annotations

from collections import Counter

import click

from imap_wal.clock import SystemClock
from imap_wal.errors import LogError
from rewrite_cli import output as out
from rewrite_cli.failures import FINDINGS
from rewrite_cli.scope import Scope, scope_options
from rewrite_cli.times import Duration
from rewrite_cli.verifier import CLEAN, CORRUPT, TORN, UNSUPPORTED, Deadline, Finding, Unit, check, damaged, foreign_files, plan


@click.command()
@scope_options(maps=False)
@click.option("--max-duration", type=Duration(), help="Stop after this time (30s, 5m), and say what was not checked. Newest first.")
@click.option("--all", "show_all", is_flag=True, help="Also list the files that are clean (JSON always does).")
@out.output_option
def command(scope: Scope, max_duration: float | None, show_all: bool, output: str) -> int:
    """Read every byte of the log and say what is damaged, and what is lost.

    A torn tail (an incomplete last commit after a crash, or a service that is writing right now) is reported and is no damage: exit code 0. Damage: exit code 3.

    It begins with the newest segments of every node, and goes back; then archives, then snapshots. A run that --max-duration ended says so, and its exit code speaks of what
    was checked.

    \b
    Examples:
      imap-wal verify /var/lib/maps
      imap-wal verify /var/lib/maps --max-duration 30s
      imap-wal verify s3://bucket/maps --node n1 -o json
    """
    findings: list[Finding] = []
    units: list[Unit] = []
    unchecked: list[Unit] = []
    deadline = Deadline(SystemClock(), max_duration)
    foreign: list[str] = []
    with out.progress() as progress:
        task = progress.add_task("reading")
        try:
            with scope.open() as (store, clusters):
                for view in clusters:
                    told, to_read = plan(store, view, scope.wants_node)
                    findings += told
                    units += to_read
                    foreign += foreign_files(view, scope.wants_node)
                read, unchecked = check(units, lambda text: progress.update(task, description=text), deadline)
                findings += read
        except LogError as error:  # a manifest: what it should name cannot be told
            findings.append(damaged(error.file, "manifest", 0, error, None))
    counts = Counter(finding.status for finding in findings)
    summary = {
        "files": len(findings),
        "bytes": sum(finding.bytes for finding in findings),
        "records": sum(finding.records for finding in findings),
        **{status.replace("-", "_"): counts[status] for status in (CLEAN, TORN, CORRUPT, UNSUPPORTED)},
        "foreign": len(foreign),
        "partial": bool(unchecked),
        "unchecked_files": len(unchecked),
        "unchecked_bytes": sum(unit.bytes for unit in unchecked),
    }
    if output == out.JSON:
        out.print_json(
            {
                "summary": summary,
                "files": [finding.to_json() for finding in findings],
                "foreign": foreign,
                "unchecked": [{"file": unit.file, "bytes": unit.bytes} for unit in unchecked],
            }
        )
    else:
        shown = [finding for finding in findings if show_all or finding.status != CLEAN]
        if shown:
            out.print_table(
                ("status", "file", "offset", "first lost", "lost records", "what", "what to do"),
                [(one.status, one.file, one.offset, one.first_lost, _lost_records(one), one.what, one.advice) for one in shown],
            )
        for path in foreign:
            out.note(f"not ours, left alone: {path}")
        bad = counts[CORRUPT] + counts[UNSUPPORTED]
        verdict = click.style(f"{bad} damaged", fg="red", bold=True) if bad else click.style("no damage", fg="green", bold=True)
        torn = f", {counts[TORN]} torn tail" if counts[TORN] else ""
        click.echo(f"{verdict}{torn}: {len(findings)} files, {out.size(summary['bytes'])}, {summary['records']:,} records")
        if unchecked:
            for unit in unchecked if show_all else ():
                out.note(f"not checked: {unit.file}")
            click.echo(
                f"partial: the time was over; {len(unchecked)} files, {out.size(summary['unchecked_bytes'])}, were not checked, the oldest ones"
            )
    return FINDINGS if counts[CORRUPT] or counts[UNSUPPORTED] else 0


def _lost_records(finding: Finding) -> int | str:
    if finding.lost_records is not None:
        return finding.lost_records
    return "" if finding.status == CLEAN else "not told"
