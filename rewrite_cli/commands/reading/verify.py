"""`imap-wal verify`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import click

from imap_wal.clock import SystemClock
from imap_wal.context import Context
from imap_wal.errors import LogError
from imap_wal.inspect.finding import (
    CLEAN,
    CONFLICT,
    CORRUPT,
    TORN,
    UNSUPPORTED,
    Deadline,
    Finding,
    OutOfTime,
    Unit,
    damaged,
)
from imap_wal.inspect.verify import check, foreign_files, is_problem, order, plan
from imap_wal.inspect.verify import quick as quick_check
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.state import ClusterState
from imap_wal.retention.snapshots import unfinished
from rewrite_cli.console import output as out
from rewrite_cli.console.failures import FINDINGS
from rewrite_cli.console.progress import Reached, Tell, working
from rewrite_cli.console.selection import Selection, selection_options
from rewrite_cli.console.times import Duration
from rewrite_cli.entries.kept import unfinished_text
from storage_backends import NotFound


@click.command()
@selection_options(maps=False)
@click.option(
    "--max-duration",
    type=Duration(),
    help="Stop after this time (30s, 5m), and name the files that were not checked.",
)
@click.option(
    "--quick",
    is_flag=True,
    help="Read manifests and listings only, as doctor does: missing nodes and segments, and "
    "manifests that do not fit their files.",
)
@click.option(
    "--all", "show_all", is_flag=True, help="Also list the files that are clean (JSON always does)."
)
@out.output_option
def command(
    selection: Selection, max_duration: float | None, quick: bool, show_all: bool, output: str
) -> int:
    """Read every byte of the log, and report damage and losses.

    After that, it looks for keys that two nodes claim with the same order: both halves of a split
    network can leave such claims. Every reader chooses one claim by a fixed rule, and the other one
    is kept. The exit code is 3, as for damage.

    A torn tail (an incomplete last commit after a crash, or a service that is writing at this
    moment) is reported, but it is no damage: exit code 0. Damage: exit code 3.

    It reads the newest segments of every node first, then older ones, archives, and snapshots. A
    run that --max-duration ends reports this; its exit code is about the checked files only.

    With --quick, no file is read, except to look for such keys in a log of at most 1 GiB.

    \b
    Examples:
      imap-wal verify /var/lib/maps
      imap-wal verify /var/lib/maps --quick
      imap-wal verify /var/lib/maps --max-duration 30s
      imap-wal verify s3://bucket/maps --node n1 -o json
    """
    if quick and max_duration is not None:
        raise click.UsageError("--quick reads no files, so it takes no --max-duration")
    outcome = _read(selection, Deadline(SystemClock(), max_duration), quick=quick)
    if output == out.JSON:
        out.print_json(
            {
                "summary": outcome.summary(),
                "files": [finding.to_json() for finding in outcome.findings],
                "foreign": outcome.foreign,
                "unfinished": outcome.unfinished,
                "unchecked": [
                    {"file": unit.file, "bytes": unit.bytes} for unit in outcome.unchecked
                ],
            }
        )
    else:
        _print(outcome, show_all, quick=quick)
    return FINDINGS if any(is_problem(finding) for finding in outcome.findings) else 0


@dataclass(frozen=True, slots=True)
class _Outcome:
    """`foreign`: files that do not belong to a log; `unfinished`: sentences about the files of
    unfinished rewrites; `unchecked`: files that were not read in time."""

    findings: list[Finding]
    foreign: list[str]
    unfinished: list[str]
    unchecked: list[Unit]

    def counts(self) -> Counter[str]:
        return Counter(finding.status for finding in self.findings)

    def summary(self) -> dict[str, int | bool]:
        counts = self.counts()
        return {
            "files": len(self.findings),
            "bytes": sum(finding.bytes for finding in self.findings),
            "records": sum(finding.records for finding in self.findings),
            **{
                status.replace("-", "_"): counts[status]
                for status in (CLEAN, TORN, CORRUPT, UNSUPPORTED, CONFLICT)
            },
            "foreign": len(self.foreign),
            "unopened": sum(finding.unopened for finding in self.findings),
            "partial": bool(self.unchecked),
            "unchecked_files": len(self.unchecked),
            "unchecked_bytes": sum(unit.bytes for unit in self.unchecked),
        }


def _read(selection: Selection, deadline: Deadline, *, quick: bool) -> _Outcome:
    findings: list[Finding] = []
    units: list[Unit] = []
    unchecked: list[Unit] = []
    foreign: list[str] = []
    left: list[str] = []
    wants_node = selection.wants_node if selection.nodes else None
    with working("reading") as tell:
        try:
            with selection.open() as (context, clusters):
                for view in clusters:
                    if quick:
                        planned, to_read, _ = quick_check(context, view, wants_node)
                    else:
                        planned, to_read = plan(context, view, selection.wants_node)
                    findings += planned
                    units += to_read
                    foreign += foreign_files(view, selection.wants_node)
                    left += _unfinished(context, view)
                if quick:
                    return _Outcome(findings, foreign, left, units)
                read, unchecked = check(units, _counting(units, tell), deadline)
                total = sum({unit.file: unit.bytes for unit in units}.values())
                if total and not unchecked:
                    tell(Reached("reading", total, total))
                findings += read
                if (
                    not unchecked
                    and wants_node is None
                    and not any(is_problem(finding) or finding.unopened for finding in findings)
                ):
                    for view in clusters:
                        tell(f"{view}: order")
                        findings += _conflicts(context, view, deadline)
        except LogError as error:  # without the manifest it is unknown which files must exist
            damage = damaged(error.file, "manifest", 0, error, None)
            findings.append(
                replace(
                    damage, what=f"{damage.what}; verify stopped here: other files were not checked"
                )
            )
    return _Outcome(findings, foreign, left, unchecked)


def _unfinished(context: Context, view: ClusterState) -> Iterator[str]:
    with suppress(LogError):  # of a damaged manifest, which is a finding
        restore = unfinished(ClusterLog.of(context, view))
        if restore is not None:
            yield unfinished_text(str(view), restore)


def _counting(units: list[Unit], tell: Tell) -> Callable[[str], None]:
    """A function that reports the progress. It is called with the name of each file before it is
    read."""
    sizes = {unit.file: unit.bytes for unit in units}
    total = sum(sizes.values())
    done = last = 0

    def begin(file: str) -> None:
        nonlocal done, last
        done, last = done + last, sizes.get(file, 0)
        tell(Reached(file, done, total))

    return begin


def _print(outcome: _Outcome, show_all: bool, *, quick: bool) -> None:
    findings, unchecked, counts, summary = (
        outcome.findings,
        outcome.unchecked,
        outcome.counts(),
        outcome.summary(),
    )
    shown = [finding for finding in findings if show_all or finding.status != CLEAN]
    if shown:
        out.print_table(
            ("status", "file", "offset", "first lost", "lost records", "what", "what to do"),
            [
                (
                    one.status,
                    one.file,
                    one.offset,
                    one.first_lost,
                    _lost_records(one),
                    one.what,
                    one.advice,
                )
                for one in shown
            ],
        )
    for path in outcome.foreign:
        out.note(f"does not belong to a log, left alone: {path}")
    for sentence in outcome.unfinished:
        out.note(sentence)
    bad = counts[CORRUPT] + counts[UNSUPPORTED]
    verdict = (
        out.styled(f"{bad} damaged", fg="red", bold=True)
        if bad
        else out.styled("no damage", fg="green", bold=True)
    )
    if counts[TORN]:
        verdict += f", {out.count(counts[TORN], 'torn tail')}"
    if counts[CONFLICT]:
        conflicts_ = f"{out.count(counts[CONFLICT], 'conflict')} of order"
        verdict += ", " + out.styled(conflicts_, fg="red", bold=True)
    out.prose(
        verdict + f": {out.count(len(findings), 'file')}, {out.size(summary['bytes'])}, "
        f"{out.count(summary['records'], 'record')}"
    )
    if summary["unopened"]:
        out.prose(
            f"{out.count(summary['unopened'], 'file')} encrypted, and no given key opens them: "
            "only their checksums were verified (--encryption-keys)"
        )
    for finding in findings:
        if finding.status == CLEAN and finding.kind == "node":
            out.prose(f"{finding.file}: {finding.what}")
    if unchecked:
        for unit in unchecked if show_all else ():
            out.note(f"not checked: {unit.file}")
        files = f"{out.count(len(unchecked), 'file')}, {out.size(summary['unchecked_bytes'])},"
        out.prose(
            f"quick: {files} were not read"
            if quick
            else f"partial: the time limit was reached; {files} not checked, the oldest ones"
        )


def _conflicts(context: Context, view: ClusterState, deadline: Deadline) -> list[Finding]:
    """Keys that two nodes claim; the log's bytes are whole."""
    try:
        return order(context, view, deadline.check)
    except OutOfTime:
        out.note(f"{view}: the time limit was reached; it was not checked for conflicts of order")
    except NotFound:
        out.note(
            f"{view}: its files changed during the run; it was not checked for conflicts of order"
        )
    return []


def _lost_records(finding: Finding) -> int | str:
    if finding.lost_records is not None:
        return finding.lost_records
    return "" if finding.status == CLEAN else "unknown"
