"""`imap-wal tail`."""

from __future__ import annotations

import select
import sys
import threading

import click

from imap_wal.read.cluster import ClusterLog
from rewrite_cli.console import output as out
from rewrite_cli.console.failures import CLEAN, FINDINGS
from rewrite_cli.console.selection import Selection, selection_options
from rewrite_cli.console.times import Duration
from rewrite_cli.entries.following import LineFollower
from rewrite_cli.entries.keys import KeyType, matcher
from rewrite_cli.entries.lines import Line, show
from rewrite_cli.entries.losses import Losses, strict_option


@click.command()
@selection_options()
@click.option(
    "-n",
    "--lines",
    "count",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    help="The last N entries.",
)
@click.option(
    "-f",
    "--follow",
    is_flag=True,
    help="Then print the new entries of all nodes as they are appended.",
)
@click.option(
    "--key",
    "keys",
    multiple=True,
    type=KeyType(),
    help="Only this key, as dump prints it, or its bytes as hex:...; may be repeated.",
)
@click.option(
    "--interval",
    type=Duration(),
    default="1s",
    show_default=True,
    help="The pause between two searches for new entries.",
)
@strict_option
@out.output_option
def command(
    selection: Selection,
    count: int,
    follow: bool,
    keys: tuple[str | bytes, ...],
    interval: float,
    strict: bool,
    output: str,
) -> int:
    """Print the last entries of the log; with --follow, also those that are appended from then on,
    until Ctrl-C. In JSON, each is one line.

    The newest entries may not be acknowledged yet. --follow continues across rotations and
    archives, and includes nodes that join later. If a prune removes entries before they are read,
    that is reported. A missing log of a node is reported, too; without --follow, the exit code is
    then 3. What is on the own disk of a node alone is left out and reported, but it is no finding.

    \b
    Examples:
      imap-wal tail /var/lib/maps -f
      imap-wal tail /var/lib/maps --map orders --key 42 -f
      imap-wal tail /var/lib/maps -n 0 -f -o json | jq .value
    """
    matches, losses = matcher(keys), Losses(strict)

    def print_line(line: Line) -> None:
        if not keys or matches(line.row, line.decoder):
            show(line, output, losses)

    with selection.open() as (context, clusters):
        followers = [
            LineFollower(
                ClusterLog.of(context, view),
                selection.maps,
                selection.nodes,
            )
            for view in clusters
        ]
        lines = [line for follower in followers for line in follower.last(count)]
        lines.sort(key=lambda line: line.timestamp_ms)
        try:
            for line in lines[-count:] if count else ():
                print_line(line)
            while follow and not _closed_within(interval):
                for follower in followers:
                    for line in follower.new():
                        print_line(line)
        except KeyboardInterrupt:
            if not follow:
                raise
        missing = any(follower.lacks_a_log for follower in followers)
    matches.note_unreadable()
    return losses.end() or (FINDINGS if missing and not follow else CLEAN)


def _closed_within(seconds: float) -> bool:
    """Wait; return early with True if nothing reads the output any more."""
    try:
        watched = select.poll()
        watched.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):  # not a file
        threading.Event().wait(seconds)
        return False
    return bool(watched.poll(seconds * 1000))
