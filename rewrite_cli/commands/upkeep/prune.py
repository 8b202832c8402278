"""`imap-wal prune`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from imap_wal.clock import SKEW_MS_MAX
from imap_wal.manifest import readers
from imap_wal.read.cluster import ClusterLog
from imap_wal.retention.kept import KeptFor, kept_for_readers
from imap_wal.retention.snapshots import ORPHAN_MS
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.report import PruneReport
from rewrite_cli.console import output as out
from rewrite_cli.console.audit import audit
from rewrite_cli.console.failures import Failed
from rewrite_cli.console.selection import Selection, selection_options
from rewrite_cli.console.times import Duration, iso
from rewrite_cli.entries.kept import kept_json, sizes, unfinished_text
from rewrite_cli.entries.live import history_option, keep


@click.command()
@selection_options(maps=False, nodes=False)
@click.option(
    "--wal-ttl-seconds",
    type=click.IntRange(min=0),
    default=0,
    help="Only files older than this. Default: all covered files.",
)
@click.option(
    "--wal-size-limit-mb",
    type=click.IntRange(min=0),
    default=0,
    help="Only the oldest files, until the rest has at most this many MiB.",
)
@click.option(
    "--max-clock-skew",
    type=Duration(),
    default="5m",
    show_default=True,
    help="With --wal-ttl-seconds or --history: refuse if this machine's clock differs from the "
    "storage's by more.",
)
@click.option(
    "--forget-reader",
    "forgotten",
    metavar="NAME",
    multiple=True,
    help="Forget this reader (the option `reader` of a Spark stream, or `history`), and keep "
    "nothing for it.",
)
@click.option(
    "--orphans-older-than",
    "orphan_s",
    type=Duration(),
    default="24h",
    show_default=True,
    help="Remove the files of an unfinished rewrite that has written nothing for this time. If it "
    "still runs, it fails, and only its own work is lost.",
)
@history_option
@out.yes_option
@out.dry_run_option
@out.output_option
def command(
    selection: Selection,
    wal_ttl_seconds: int,
    wal_size_limit_mb: int,
    max_clock_skew: float,
    forgotten: tuple[str, ...],
    orphan_s: float,
    history_s: float | None,
    yes: bool,
    dry_run: bool,
    output: str,
) -> None:
    """Remove what a snapshot covers (archives, sealed segments, former snapshots), and the files of
    ended backfills. Safe while a service runs. What a registered reader has not read is kept.

    Afterwards, the states of a map before its snapshot can be read only as far as --history, or
    history_s of the service, keeps them.

    \b
    Examples:
      imap-wal prune /var/lib/maps --dry-run
      imap-wal prune /var/lib/maps --cluster eu --yes
    """
    steps = [f"forget {reader}" for reader in _kept_for(selection, forgotten)] if forgotten else []
    if dry_run:
        for step in steps:
            out.note(f"dry run: would {step}")
        if history_s:
            out.note("dry run: what --history keeps or frees is not counted")
    reports = plan = prune_all(
        selection,
        dry_run=True,
        check=dry_run,
        ttl_s=wal_ttl_seconds,
        size_limit_mb=wal_size_limit_mb,
        forgotten=forgotten,
        orphan_ms=round(orphan_s * 1000),
    )
    if history_s and _has_history(plan):
        steps.append(f"keep only the last {out.duration(history_s)} of the history")
    files = sum(map(_files, plan))
    if files:
        size = out.size(sum(report.bytes for report in plan))
        steps.append(f"remove {out.count(files, 'file')} that are not needed ({size})")
    if not dry_run:
        if steps:
            question = "; ".join(steps)
            out.agree(f"{question[0].upper()}{question[1:]}?", yes)
        if forgotten:
            _forget(selection, forgotten)
        _keep(selection, history_s, round(max_clock_skew * 1000))
    if not dry_run and (steps or history_s):
        reports = prune_all(
            selection,
            dry_run=not steps,
            check=False,
            ttl_s=wal_ttl_seconds,
            size_limit_mb=wal_size_limit_mb,
            skew_ms_max=round(max_clock_skew * 1000),
            orphan_ms=round(orphan_s * 1000),
        )
        for report in reports:
            if steps and _files(report):
                audit(
                    "log pruned",
                    log=f"{report.namespace}/{report.cluster}",
                    files=_files(report),
                    bytes=report.bytes,
                    url=selection.url,
                )
    if output == out.JSON:
        out.print_json({"clusters": [_to_json(report) for report in reports]})
        return
    _show(reports, dry_run=dry_run)


def _files(report: PruneReport) -> int:
    covered = len(report.segments) + len(report.archives) + len(report.snapshot_files)
    return covered + len(report.backfill_files)


def _has_history(plan: list[PruneReport]) -> bool:
    return any(held.reader == readers.HISTORY for report in plan for held in report.kept)


def _to_json(report: PruneReport) -> dict[str, Any]:
    return {**asdict(report), "kept": list(map(kept_json, report.kept))}


def _show(reports: list[PruneReport], *, dry_run: bool) -> None:
    if dry_run:
        out.note("dry run: nothing was removed")
    out.print_table(
        ("namespace", "cluster", "segments", "archives", "snapshot files", "freed bytes"),
        [
            (
                report.namespace,
                report.cluster,
                len(report.segments),
                len(report.archives),
                len(report.snapshot_files),
                report.bytes,
            )
            for report in reports
        ],
    )
    for report in reports:
        if report.backfill_files:
            files = out.count(len(report.backfill_files), "file")
            out.note(f"{files} of ended backfills were not needed")
        for node, why in report.skipped.items():
            out.note(f"left alone: node {node!r}: {why}")
        for held in report.kept:
            _show_kept(report, held)
        if report.unfinished is not None:
            out.note(unfinished_text(f"{report.namespace}/{report.cluster}", report.unfinished))


def _show_kept(report: PruneReport, held: KeptFor) -> None:
    if held.begins_ms is not None:
        since = iso(held.begins_ms) or "the start of the log"
        out.note(
            f"{report.namespace}/{report.cluster}: kept for the history, so that each moment since "
            f"{since} can be read: {sizes(held)}"
        )
    else:
        _show_reader(report, held)
    if held.is_stale:
        out.note(held.advice)


def _show_reader(report: PruneReport, held: KeptFor) -> None:
    places = ", ".join(f"{node} {at}" for node, at in sorted(held.positions.items())) or "the start"
    where = "" if held.files_only else f", which is at {places}"
    out.note(
        f"{report.namespace}/{report.cluster}: kept for reader {held.reader!r}{where}: "
        f"{sizes(held)}; its last commit was {out.duration(held.idle_ms / 1000)} ago"
    )


def _keep(selection: Selection, history_s: float | None, skew_ms_max: int) -> None:
    """Begin or advance the history of each cluster."""
    if history_s:
        with selection.open(upkeep=True) as (context, clusters):
            for view in clusters:
                keep(ClusterLog.of(context, view), history_s, skew_ms_max)


def _readers(log: ClusterLog, names: tuple[str, ...]) -> dict[str, KeptFor | None]:
    """Each reader of these names, and what is kept for it; None: unknown, because a reader is
    damaged. Raises `Failed` if there is no such reader."""
    sound, damaged = readers.examined(log.store, log.folder)
    for name in names:
        if name not in {**sound, **damaged}:
            there = out.names(sorted([*sound, *damaged]))
            raise Failed(
                f"{log.namespace}/{log.cluster}: there is no reader {name!r}; found: {there}"
            )
    held = (
        {}
        if damaged
        else {kept_for_reader.reader: kept_for_reader for kept_for_reader in kept_for_readers(log)}
    )
    return {name: held.get(name) for name in names}


def _kept_for(selection: Selection, names: tuple[str, ...]) -> list[str]:
    """Each reader of these names, and what is kept for it, in words. Raises `Failed` if a selected
    cluster has no such reader."""
    with selection.open(upkeep=True) as (context, clusters):
        return [
            f"reader {name!r} of {view}" + (f" ({sizes(held)} are kept for it)" if held else "")
            for view in clusters
            for name, held in _readers(ClusterLog.of(context, view), names).items()
        ]


def _forget(selection: Selection, names: tuple[str, ...]) -> None:
    """Raises `Failed` if a selected cluster has no such reader."""
    with selection.open(upkeep=True) as (context, clusters):
        for view in clusters:
            log = ClusterLog.of(context, view)
            for name, held in _readers(log, names).items():
                if not readers.forget(log.context, log.folder, name):
                    raise Failed(f"{view}: reader {name!r} was forgotten meanwhile")
                audit(
                    "reader forgotten",
                    log=str(view),
                    reader=name,
                    kept=held.bytes if held else 0,
                    url=selection.url,
                )


def prune_all(
    selection: Selection,
    *,
    dry_run: bool = False,
    check: bool = True,
    ttl_s: int = 0,
    size_limit_mb: int = 0,
    skew_ms_max: int = SKEW_MS_MAX,
    forgotten: tuple[str, ...] = (),
    orphan_ms: int = ORPHAN_MS,
) -> list[PruneReport]:
    """Prune every cluster in the selection, as if these readers were forgotten."""
    with selection.open(upkeep=True) as (context, clusters):
        return [
            prune(
                ClusterLog.of(context, view),
                dry_run=dry_run,
                check=check,
                ttl_s=ttl_s,
                size_limit_mb=size_limit_mb,
                skew_ms_max=skew_ms_max,
                forgotten=forgotten,
                orphan_ms=orphan_ms,
            )
            for view in clusters
        ]
