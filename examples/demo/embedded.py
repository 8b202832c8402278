"""`make demo`: a year of real flights into durable maps, SIGKILL in the middle, and a check of
what is left.

    play ─▶ SIGKILL ─▶ open again, compare ─▶ play the rest ─▶ open, compare ─▶ archive
    ─▶ rewrite, prune ─▶ open, compare
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

import imap_wal
from examples.demo import flights
from examples.demo.flights import Stream
from examples.demo.playback import MemoryCheck, Playback, Timeline
from examples.demo.writer import CLUSTER, NAMESPACE, NODE
from imap_wal.checks import location
from imap_wal.clock import Clock
from imap_wal.context import Context
from imap_wal.inspect.inventory import take_inventory
from imap_wal.placement import open_store
from imap_wal.read.cluster import ClusterLog
from imap_wal.segment.reader import SegmentReader
from rewrite_cli.console.selection import Selection
from storage_backends import SegmentStore


class Tell(Protocol):
    """Reports progress to the user."""

    def __call__(self, text: str, *, step: bool = True) -> None:
        """`step`: a new step begins; otherwise `text` is how far the current one is."""


@dataclass(frozen=True, slots=True)
class Reopened:
    """One open of the log: its duration and its result."""

    after: str
    seconds: float
    comparison: MemoryCheck


@dataclass(frozen=True, slots=True)
class Bytes:
    """The bytes on storage at one moment."""

    moment: str
    log: int
    archives: int
    snapshots: int

    @property
    def total(self) -> int:
        return self.log + self.archives + self.snapshots


@dataclass(slots=True)
class Report:
    """All measurements of the demo."""

    what: str
    flights: int
    records: int
    deletions: int
    commits: int
    seconds: float = 0.0
    records_per_second: float = 0.0
    commits_per_second: float = 0.0
    kills: list[int] = field(default_factory=list)
    """Acknowledged records at each kill."""
    looks: list[Reopened] = field(default_factory=list)
    storage: list[Bytes] = field(default_factory=list)
    timeline: Timeline = field(default_factory=Timeline)
    picture: str = ""

    @classmethod
    def of(cls, what: str, stream: Stream, commits: int) -> Self:
        """The report of a run that begins. `what`: what the stream is played into."""
        return cls(what, stream.flights, stream.records, stream.deletions, commits)

    @property
    def lost(self) -> int:
        """Acknowledged changes that differed from the maps in a comparison."""
        return sum(look.comparison.lost for look in self.looks)

    def to_json(self) -> dict[str, Any]:
        data = asdict(self)
        del data["timeline"]
        return {**data, "lost": self.lost}


def measure_bytes(url: str, moment: str) -> Bytes:
    """Bytes on storage. Of a segment, only written bytes count, not reserved space."""
    store = open_store(url)
    try:
        files = [
            file for view in take_inventory(Context(store)) for file in store.list(view.folder)
        ]
        log = sum(_written(store, file.path) for file in files if file.path.endswith(".wal"))
    finally:
        store.close()

    def total(part: str) -> int:
        return sum(file.size for file in files if f"/{part}/" in file.path)

    return Bytes(moment, log, total("archive"), total("snapshot"))


def _written(store: SegmentStore, path: str) -> int:
    reader = SegmentReader(store, path)
    for _ in reader.whole_frames():
        pass
    return reader.end


def play_embedded(
    stream: flights.Stream, url: str, folder: Path, kills: int, clock: Clock, tell: Tell
) -> Report:
    """The embedded demo, from the first flight to the report. `folder` is for scratch files."""
    playback = Playback(stream, folder, clock, "embedded", url)
    report = Report.of("embedded maps, durability always", stream, playback.commits)

    def watch(records: int) -> None:
        tell(f"{records:,} of {stream.records:,} changes acknowledged", step=False)

    def look(after: str, then: Callable[[imap_wal.Store], None] | None = None) -> None:
        tell(f"opening the log after {after}")
        start = playback.now()
        store = imap_wal.open(url, namespace=NAMESPACE, cluster=CLUSTER, node=NODE)
        with store:
            end = playback.now()
            playback.timeline.spans.append((after, start, end))
            maps = {name: store.map(name).items() for name in store.maps()}
            report.looks.append(Reopened(after, end - start, playback.compare(maps)))
            if then is not None:
                then(store)

    for number in range(kills):
        tell("playing the flights")
        playback.run((number + 1) / (kills + 1), lambda: None, watch)
        report.kills.append(sum(playback.records))
        look("kill -9")
    tell("playing the flights")
    playback.run(1, None, watch)
    report.seconds = playback.seconds
    report.storage.append(measure_bytes(url, "log"))

    def archive(store: imap_wal.Store) -> None:
        tell("archiving: sealed segments become Parquet")
        start = playback.now()
        store.archive()
        playback.timeline.phases.append(("archive", start, playback.now()))

    look("the last flight", archive)
    report.storage.append(measure_bytes(url, "archived"))
    tell("rewriting: the newest of every key becomes a snapshot")
    start = playback.now()
    rewrite_and_prune(url)
    playback.timeline.phases.append(("rewrite", start, playback.now()))
    report.storage.append(measure_bytes(url, "rewritten"))
    look("rewrite and prune")
    return finish(report, playback)


def finish(report: Report, playback: Playback) -> Report:
    report.seconds = playback.seconds
    report.records_per_second = sum(playback.records) / max(playback.seconds, 1e-9)
    report.commits_per_second = playback.commits / max(playback.seconds, 1e-9)
    report.timeline = playback.timeline
    return report


def rewrite_and_prune(url: str) -> None:
    """Like `imap-wal rewrite URL && imap-wal prune URL --yes`."""
    from imap_wal.rewrite.local_engine import LocalEngine
    from imap_wal.rewrite.prune import prune
    from imap_wal.rewrite.run import rewrite

    with Selection(location(url)).open() as (context, clusters):
        for view in clusters:
            log = ClusterLog.of(context, view)
            rewrite(log, LocalEngine())
            prune(log)
