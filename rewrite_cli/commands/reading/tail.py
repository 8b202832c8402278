"""`imap-wal tail`."""

from __future__ import annotations

from collections.abc import Iterator

import click

from imap_wal.decoder import Decoder
from imap_wal.entry import MAP, TIMESTAMP_MS
from imap_wal.format import START, Position
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.file_scan import SEGMENT, EntryBatch, FileScan, Scope, from_manifest
from imap_wal.read.scan import CutBack, read_scan
from imap_wal.read.scan_list import node_scans
from imap_wal.read.state import ClusterState
from imap_wal.settings import RecoveryPolicy
from rewrite_cli.console import output as out
from rewrite_cli.console.failures import CLEAN, FINDINGS
from rewrite_cli.console.output import note
from rewrite_cli.console.selection import Selection, selection_options
from rewrite_cli.console.times import Duration
from rewrite_cli.console.written import closed_within
from rewrite_cli.entries.keys import KeyType, matcher
from rewrite_cli.entries.left_out import unread
from rewrite_cli.entries.lines import Line, show
from rewrite_cli.entries.losses import Losses, strict_option
from storage_backends import NotFound


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
            while follow and not closed_within(interval):
                for follower in followers:
                    for line in follower.new():
                        print_line(line)
        except KeyboardInterrupt:
            if not follow:
                raise
        missing = any(follower.lacks_a_log for follower in followers)
    matches.note_unreadable()
    return losses.end() or (FINDINGS if missing and not follow else CLEAN)


# New entries of a log as they are appended, of all nodes: across rotations, archives, takeovers and
# new nodes.


class LineFollower:
    """Reads the entries of one cluster in rounds, each entry once."""

    def __init__(self, log: ClusterLog, maps: tuple[str, ...], nodes: tuple[str, ...]) -> None:
        self._log, self._maps, self._nodes = log, maps or None, nodes
        self._decoder = Decoder((), note)
        self._since: dict[str, Position] = {}
        """Node → position below which a whole round has read everything."""
        self._shown: dict[tuple[str, str], Position] = {}
        """(node, map) → position of the last entry that was returned: a map's entries are read in
        their order, but archives have one file for each map."""
        self.lacks_a_log = False
        """Whether the log of a node is missing, and not only what is on its own disk alone."""
        self._absent: set[str] = set()
        """The nodes that a note has named, until they return."""
        self._begun: dict[str, Position] = {}
        """Node → position after which following began."""

    def last(self, count: int) -> list[Line]:
        """The last entries of every node by their time, at most `count`; following continues after
        them. Reads only as many segments as needed."""
        state = self._state()
        lines: list[Line] = []
        for node in self._wanted(state):
            lines += self._last_of(state, node, count)
        lines.sort(key=lambda line: line.timestamp_ms)
        return lines[-count:] if count else []

    def _last_of(self, state: ClusterState, node: str, count: int) -> list[Line]:
        newest_lines: list[Line] = []
        end = START
        for scan in reversed(node_scans(state, node, maps=self._maps, covered=True)):
            try:
                lines, last = self._whole(scan)
            except NotFound:  # archived or removed since; the newest segment never is
                continue
            end = max(end, last)
            newest_lines = [*lines, *newest_lines]
            if len(newest_lines) >= count and scan.kind == SEGMENT:
                break
        archives = [archive.last for archive in state.nodes[node].manifest.archives]
        self._begun[node] = self._since[node] = state.marked(node, max([end, *archives]))
        return newest_lines[-count:] if count else []

    def _whole(self, scan: FileScan) -> tuple[list[Line], Position]:
        lines: list[Line] = []
        last = START
        for batch in read_scan(self._log.context, scan, self._maps, positions=True):
            lines += self._lines(batch)
            last = max(last, batch.last)
        return lines, last

    def new(self) -> Iterator[Line]:
        """What was appended since the last round."""
        state = self._state()
        for node in self._wanted(state):
            removed = state.nodes[node].manifest.removed
            place = state.plain({node: self._since.get(node, START)})[node]
            if START < place < removed:
                note(f"node {node!r}: entries up to {removed} were removed before they were read")
            try:
                yield from self._new_of(state, node)
            except CutBack:
                # The last entries were cut off by an open: they were never acknowledged. Read the
                # segment again.
                self._since[node] = Position(place.epoch, place.segment - 1, 0, 0)
            except NotFound:
                continue  # archived meanwhile: the next round finds the rest in the archive

    def _new_of(self, state: ClusterState, node: str) -> Iterator[Line]:
        end = since = Position(*self._since.get(node, START))
        for batch in self._log.changes(
            self._maps,
            Scope((node,), {node: since}, snapshots=False, covered=True),
            policy=RecoveryPolicy.PARTIAL,
            positions=True,
            state=state,
        ):
            for line in self._lines(batch):
                of_map = node, line.row[MAP]
                shown = max(self._begun.get(node, START), self._shown.get(of_map, START))
                if line.position is not None and line.position > shown:
                    self._shown[of_map] = line.position
                    yield line
            end = max(end, batch.last)
        self._since[node] = state.marked(node, end)

    def _state(self) -> ClusterState:
        """What can be read now. A note names what cannot."""
        state = self._log.state()
        absent = unread(state, self._nodes)
        for left_out in absent:
            if left_out.node not in self._absent:
                note(str(left_out))
        self._absent = {left_out.node for left_out in absent}
        self.lacks_a_log = any(left_out.node not in state.parts for left_out in absent)
        return state.demand(RecoveryPolicy.PARTIAL)

    def _wanted(self, state: ClusterState) -> list[str]:
        for node in state.nodes.values():
            self._decoder.add_metadata(map(from_manifest, node.manifest.metadata))
        return [node for node in sorted(state.nodes) if not self._nodes or node in self._nodes]

    def _lines(self, batch: EntryBatch) -> Iterator[Line]:
        self._decoder.add_metadata(batch.metadata)
        cluster = f"{self._log.namespace}/{self._log.cluster}"
        for row, place in zip(batch.rows, batch.positions or (), strict=True):
            yield Line(row[TIMESTAMP_MS], cluster, batch.node, place, row, self._decoder)
