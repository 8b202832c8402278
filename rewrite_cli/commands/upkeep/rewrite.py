"""`imap-wal rewrite`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from imap_wal.errors import LogError
from imap_wal.manifest.readers import HISTORY
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.merge import MergeProgress
from imap_wal.read.newest.rivals import ADVICE
from imap_wal.retention.kept import KeptFor, kept_for_readers
from imap_wal.rewrite.conflicts import Resolution
from imap_wal.rewrite.plan import Engine
from imap_wal.rewrite.report import RewriteReport, Winner
from imap_wal.rewrite.run import rewrite
from imap_wal.rewrite.turn import turn
from imap_wal.settings import RecoveryPolicy
from rewrite_cli.console import output as out
from rewrite_cli.console import spark_properties
from rewrite_cli.console.failures import message
from rewrite_cli.console.progress import Reached, Tell, working
from rewrite_cli.console.selection import Selection, selection_options
from rewrite_cli.console.times import Duration, Moment, iso
from rewrite_cli.entries.kept import kept_json, name_of
from rewrite_cli.entries.left_out import left_out_of, note_left_out
from rewrite_cli.entries.live import history_option, keep, partial_option
from storage_backends import StorageError

if TYPE_CHECKING:
    from pyspark_imap_wal.progress import StepProgress

ENGINES = ("local", "spark")


FEW_FOR_SPARK = 1_000_000
"""The local engine merges that many records in a few seconds; a session of Spark starts in ten."""


@click.command()
@selection_options(nodes=False)
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    default="local",
    show_default=True,
    help="One machine with bounded memory, or a Spark session.",
)
@click.option(
    "--processes",
    type=click.IntRange(1),
    metavar="N",
    help="With --engine local: the most processes to use, if the log is large enough. Default: 1.",
)
@click.option(
    "--spark-conf",
    multiple=True,
    metavar="NAME=VALUE",
    help="A Spark property, such as spark.master=spark://host:7077; may be repeated. It "
    "overrides [spark] of the TOML file and spark-submit.",
)
@click.option(
    "--as-of",
    type=Moment(past=True),
    help="Cover only what was written until this time; newer entries stay in the log.",
)
@click.option(
    "--max-clock-skew",
    type=Duration(),
    default="5m",
    show_default=True,
    help="Refuse if this machine's clock differs from the storage's by more than this.",
)
@click.option(
    "--resolve",
    metavar="newest|node=NAME",
    help="Decide keys that two nodes claim: the change with the latest timestamp counts, or "
    "that of one node.",
)
@history_option
@partial_option
@out.dry_run_option
@out.output_option
@click.pass_context
def command(
    ctx: click.Context,
    selection: Selection,
    engine: str,
    processes: int | None,
    spark_conf: tuple[str, ...],
    as_of: int | None,
    max_clock_skew: float,
    resolve: str | None,
    history_s: float | None,
    partial: bool,
    dry_run: bool,
    output: str,
) -> None:
    """Keep only the newest entry of every key: read all nodes' logs and archives, and publish a
    snapshot. A cluster may run meanwhile; nothing changes in it.

    `imap-wal prune` then frees the space. A second rewrite of the log waits for the first. If
    something else changes the log meanwhile, such as `imap-wal drop`, the rewrite exits with code
    4. Tables of `imap-wal publish --each-rewrite` are published at the end; if one of them cannot
    be, the exit code is 0 all the same.

    Two halves of a split network may both have changed a key; then neither is newer. The snapshot
    keeps both changes until you decide with --resolve, or a newer change is written. The changes
    that --resolve rejects are kept in a Parquet file, which the report names.

    \b
    Examples:
      imap-wal rewrite /var/lib/maps --dry-run
      imap-wal rewrite s3://bucket/maps --namespace prod --cluster eu --engine spark
      imap-wal rewrite s3://bucket/maps --engine spark --spark-conf spark.master=spark://host:7077
    """
    properties = spark_properties.of_flags(spark_conf)
    if properties and engine != "spark":
        raise click.UsageError("--spark-conf is for --engine spark")
    if processes and engine != "local":
        raise click.UsageError("--processes is for --engine local")
    properties = {**(ctx.find_root().obj or {}).get("spark", {}), **properties}
    with working("reading") as tell:
        reports = rewrite_all(
            selection,
            _Engines(engine, properties, tell, processes or 1),
            as_of_ms=as_of,
            policy=RecoveryPolicy.PARTIAL if partial else RecoveryPolicy.FULL,
            dry_run=dry_run,
            skew_ms_max=round(max_clock_skew * 1000),
            resolve=Resolution.parse(resolve) if resolve else None,
            history_s=history_s,
        )
    if output == out.JSON:
        out.print_json({"clusters": [to_json(report) for report in reports]})
        return
    if dry_run:
        out.note("dry run: nothing was published")
    for report in reports:
        _show(report, dry_run=dry_run)


def _show(rewritten: _Rewritten, *, dry_run: bool) -> None:
    report = rewritten.report
    out.print_table(
        ("map", "records read", "live", "tombstones", "dropped", "before bytes", "after bytes"),
        [
            (
                m.map + (" (unchanged)" if m.unchanged else ""),
                m.records_read,
                m.live,
                m.tombstones,
                m.dropped,
                m.bytes_before,
                m.bytes_after,
            )
            for m in report.maps
        ],
        title=f"{report.namespace}/{report.cluster}",
    )
    out.prose(
        f"{out.count(report.records_read, 'record')} in {out.duration(report.seconds)} "
        f"({report.records_per_second:,.0f}/s, {out.size(report.memory_max_bytes)} of "
        "memory), "
        f"engine {report.engine}; prune {'would free' if dry_run else 'frees'} up "
        f"to {out.size(sum(max(m.saved_bytes, 0) for m in report.maps))}{_less(rewritten)}"
    )
    for step in report.steps:
        out.prose(
            f"{step.step}: {out.count(step.tasks, 'task')} in {out.duration(step.seconds)}, up to "
            f"{out.size(step.memory_max_bytes)} of memory in a worker; read "
            f"{step.records_read:,} records, {out.size(step.bytes_read)}; wrote "
            f"{step.records_written:,}, {out.size(step.bytes_written)}"
        )
    for table in report.tables:
        if table.error:
            out.note(f"map {table.map!r} was not published as {table.table}: {table.error}")
        else:
            same = "" if table.is_new else " (unchanged)"
            out.prose(
                f"map {table.map!r} is published as {table.table}: version {table.version}{same}"
            )
    if report.engine == "spark" and report.records_read < FEW_FOR_SPARK:
        out.note(
            f"for fewer than {FEW_FOR_SPARK:,} records, Spark takes longer to start than "
            "`--engine local` takes for all of it"
        )
    _show_remarks(report)


def _less(rewritten: _Rewritten) -> str:
    """What prune does not free. It is not known how much of it a dry run would cover."""
    if rewritten.report.dry_run:
        readers = {*rewritten.begun, *(retained.reader for retained in rewritten.kept)}
        reasons = " and ".join(map(name_of, sorted(readers)))
        return f", less what is kept for {reasons}" if reasons else ""
    reasons = ", ".join(
        f"about {out.size(retained.bytes)} for {name_of(retained.reader)}"
        for retained in rewritten.kept
        if retained.bytes
    )
    return f", less what is kept: {reasons}" if reasons else ""


def _show_remarks(report: RewriteReport) -> None:
    reused = sum(map_report.records_kept for map_report in report.maps)
    if reused:
        written = sum(map_report.bytes_written for map_report in report.maps)
        out.prose(
            f"unchanged files were kept, with {out.count(reused, 'record')}. New files: "
            f"{out.size(written)}"
        )
    for map_report in report.maps:
        if map_report.conflicts:
            where = (
                f"; the losing changes are in {map_report.set_aside}"
                if map_report.set_aside
                else ""
            )
            were = "was" if map_report.conflicts == 1 else "were"
            done = "would be decided" if report.dry_run else f"{were} decided"
            out.prose(f"map {map_report.map!r}: {_keys(map_report.conflicts)} {done}{where}")
            for winner in map_report.winners:
                out.prose(f"  key {_winner(winner)}")
            if len(map_report.winners) < map_report.conflicts:
                out.prose(f"  and {_keys(map_report.conflicts - len(map_report.winners), '')}")
        if map_report.undecided:
            out.note(
                f"map {map_report.map!r}: {_keys(map_report.undecided)}; the snapshot "
                f"keeps all claims. {ADVICE}"
            )
    note_left_out(left_out_of(f"{report.namespace}/{report.cluster}", report.missing))


def _keys(count: int, about: str = " in conflict") -> str:
    return f"{out.count(count, 'key')}{about}"


def _winner(winner: Winner) -> str:
    kind = "deletion" if winner.deleted else "change"
    over = ", ".join(map(repr, winner.over))
    when = iso(winner.timestamp_ms)
    return f"{winner.key}: the {kind} by node {winner.node!r} of {when} counts, not that of {over}"


def rewrite_all(
    selection: Selection,
    engines: _Engines,
    *,
    as_of_ms: int | None,
    policy: RecoveryPolicy,
    dry_run: bool,
    skew_ms_max: int,
    resolve: Resolution | None,
    history_s: float | None = None,
) -> list[_Rewritten]:
    """Rewrite every cluster in the selection, one after the other. `history_s`: of `keep`; a dry
    run keeps nothing."""
    done = []
    with selection.open(upkeep=True) as (context, clusters):
        for view in clusters:
            log = ClusterLog.of(context, view)
            with nullcontext() if dry_run else turn(log, "imap-wal rewrite", _waits):
                keep(log, None if dry_run else history_s, skew_ms_max)
                report = rewrite(
                    log,
                    engines.of(str(view)),
                    maps=selection.maps or None,
                    as_of_ms=as_of_ms,
                    policy=policy,
                    dry_run=dry_run,
                    skew_ms_max=skew_ms_max,
                    resolve=resolve,
                )
            begun = (HISTORY,) if dry_run and history_s else ()
            done.append(_Rewritten(report, _kept(log), begun))
    return done


@dataclass(frozen=True, slots=True)
class _Rewritten:
    """`kept`: for readers, of what prune can free otherwise. `begun`: the readers that are
    registered if this is not a dry run."""

    report: RewriteReport
    kept: tuple[KeptFor, ...]
    begun: tuple[str, ...]


def _kept(log: ClusterLog) -> tuple[KeptFor, ...]:
    try:
        return kept_for_readers(log)
    except (LogError, StorageError) as error:  # the rewrite itself is done
        out.note(message(error))
        return ()


def _waits(holder: str) -> None:
    out.note(f"waiting until another rewrite of this log has ended: {holder}")


@dataclass(frozen=True, slots=True)
class _Engines:
    """Makes the engine of this name for each cluster. `properties`: of Spark. `tell` receives the
    progress."""

    name: str
    properties: Mapping[str, str]
    tell: Tell
    processes: int

    def of(self, about: str) -> Engine:
        """The engine for the cluster `about`; Spark is started only here."""

        def progress(done: MergeProgress) -> None:
            of_tasks = (done.step, done.files, done.files_total) if done.step else ()
            self.tell(Reached(f"{about}: {done}", done.bytes, done.bytes_total, *of_tasks))

        def step(done: StepProgress) -> None:
            reached = done.bytes, done.bytes_total
            self.tell(
                Reached(f"{about}: {done}", *reached, done.step, done.tasks, done.tasks_total)
            )

        if self.name == "spark":
            from pyspark_imap_wal.rewrite_engine import SparkEngine

            return SparkEngine(properties=self.properties, progress=step)
        from imap_wal.rewrite.local_engine import LocalEngine

        return LocalEngine(progress=progress, processes=self.processes)


def to_json(rewritten: _Rewritten) -> dict[str, Any]:
    report = rewritten.report
    return {
        **asdict(report),
        "kept": list(map(kept_json, rewritten.kept)),
        "maps": [
            {
                **asdict(map_report),
                "dropped": map_report.dropped,
                "saved_bytes": map_report.saved_bytes,
            }
            for map_report in report.maps
        ],
        "covered": {node: str(position) for node, position in report.covered.items()},
        "records_per_second": report.records_per_second,
    }
