"""`make demo`."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import click

from examples.demo import flights
from examples.demo.embedded import Report, Tell, play_embedded
from imap_wal.clock import SystemClock
from rewrite_cli.cli import main
from rewrite_cli.console import output as out
from rewrite_cli.console.failures import FAILED
from rewrite_cli.console.progress import AUTO, mode
from rewrite_cli.console.progress import progress as progress_bar
from rewrite_cli.console.selection import Url


@click.command()
@click.option(
    "--flights",
    "count",
    type=click.IntRange(min=0),
    default=0,
    help="Play only the first N flights. Default: all.",
)
@click.option(
    "--kills",
    type=click.IntRange(min=0, max=20),
    default=1,
    show_default=True,
    help="How often to send SIGKILL during the run.",
)
@click.option(
    "--members",
    type=click.IntRange(min=0, max=8),
    default=0,
    show_default=True,
    help="Real Hazelcast members instead of the embedded map.",
)
@click.option(
    "--url",
    type=Url(),
    default=None,
    help="Write the log here and keep it. Default: a temporary folder.",
)
@click.option(
    "--picture",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("out/demo.png"),
    show_default=True,
    help="The file for the picture.",
)
@out.output_option
def command(
    count: int, kills: int, members: int, url: str | None, picture: Path, output: str
) -> int:
    """Play a year of real flights into durable maps, kill the process, and count what is lost.

    336,776 flights become 669,865 changes of maps, written by two producers. The writing process is
    killed with SIGKILL during the run. A reference, built from its acknowledgements alone, is
    compared with what the log restores. Then the log is archived to Parquet, rewritten, and
    compared again.

    \b
    Examples:
      python -m examples.demo
      python -m examples.demo --flights 20000 --kills 3 -o json
      python -m examples.demo --members 2             the same with a real cluster (needs Java)
    """
    scratch = Path(tempfile.mkdtemp(prefix="imap-wal-demo-"))
    try:
        with progress_bar() as progress:
            task = progress.add_task("")

            def tell(text: str, *, step: bool = True) -> None:
                progress.update(task, description=text)
                if step and progress.disable and mode() == AUTO:
                    out.note(text)

            tell("reading the flights")
            report = _play(count, kills, members, url or (scratch / "maps").as_uri(), scratch, tell)
            tell("drawing")
            report.picture = _draw(report, picture)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if output == out.JSON:
        out.print_json(report.to_json())
    else:
        show(report, url)
    return FAILED if report.lost else 0


def _play(count: int, kills: int, members: int, url: str, scratch: Path, tell: Tell) -> Report:
    from rewrite_cli.console.selection import open_empty

    open_empty(url)
    stream = flights.load(count)
    if members:
        from examples.demo.cluster import play_cluster

        return play_cluster(stream, url, scratch, kills, members, SystemClock(), tell)
    return play_embedded(stream, url, scratch, kills, SystemClock(), tell)


def _draw(report: Report, picture: Path) -> str:
    from examples.demo.picture import draw

    draw(report, picture)
    return str(picture)


def show(report: Report, url: str | None) -> None:
    """Print the report for people. `url`: where the log was kept; None: it was temporary."""
    out.print_table(
        ("run", ""),
        [
            (
                "played",
                f"{report.flights:,} flights: {report.records:,} changes "  # noqa: ISC004
                f"({report.deletions:,} deletions) in {report.commits:,} commits",
            ),
            ("into", report.what),
            (
                "written in",
                f"{out.duration(report.seconds)}: {report.records_per_second:,.0f} changes, "  # noqa: ISC004
                f"{report.commits_per_second:,.0f} commits a second",
            ),
            (
                "killed",
                ", ".join(f"after {records:,} acknowledged changes" for records in report.kills)
                or "never",
            ),
        ],
        title="A year of flights",
        wrapped=("",),
    )
    out.print_table(
        ("opened after", "took", "entries", "lost", "unacknowledged but there"),
        [
            (
                look.after,
                out.duration(look.seconds),
                look.comparison.entries,
                look.comparison.lost,
                look.comparison.unacknowledged,
            )
            for look in report.looks
        ],
        title="Restored and compared with what was acknowledged",
    )
    out.print_table(
        ("storage", "log bytes", "archive bytes", "snapshot bytes", "all bytes"),
        [
            (moment.moment, moment.log, moment.archives, moment.snapshots, moment.total)
            for moment in report.storage
        ],
        title="Before and after",
    )
    for look in report.looks:
        for example in look.comparison.examples:
            out.note(f"lost: {example}")
    colour = "red" if report.lost else "green"
    out.echo(
        out.styled(f"lost: {report.lost}", fg=colour, bold=True)
        + f"   picture: {report.picture}"
        + (f"   log: {url}" if url else "")
    )
    program = "imap-wal" if shutil.which("imap-wal") else f"{sys.executable} -m rewrite_cli"
    kept = url or "file:///tmp/imap-wal-flights"
    out.echo("\nNext:")
    again = f"--url {kept}-2 --kills 3" if url else f"--url {kept} --flights 20000"
    for line in (
        f"{sys.executable} -m examples.demo {again}",
        f"{program} stat {kept}",
        f"{program} dump {kept} | head",
    ):
        out.echo(f"  {line}")


if __name__ == "__main__":
    main(command=command, name="python -m examples.demo")
