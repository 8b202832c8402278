"""What the status page shows of a snapshot. Like the metrics, it has no key, no value, no name of a
map, and no text of an error, which could contain a secret: only the class of the error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from imap_wal.agent.monitoring.health import why_dead, why_maps_wait, why_not_ready
from imap_wal.agent.monitoring.snapshot import AgentSnapshot
from imap_wal.clock import Clock
from imap_wal.progress import size

DISK_LOW = 0.1
"""Below this free part of the disk there is a warning, as in the alert rules."""
UPLOAD_LATE_S = 600.0
"""Above this age of a segment that was not uploaded there is a warning, as in the alert rules."""
STALLED_S = 2 * 86_400.0
"""Above this time without progress of a reader there is a warning, as in the alert rules."""


class Level(StrEnum):
    PLAIN = ""
    GOOD = "good"
    WARNING = "warning"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Fact:
    """A row. `part`: a progress from 0 to 1, if it has one."""

    name: str
    value: str
    level: Level = Level.PLAIN
    part: float | None = None


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    facts: tuple[Fact, ...]


class MergeRate:
    """Bytes per second that a running merge reads, from two observations. For one thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._first: tuple[float, int, int] | None = None
        """The first observation of this merge: when, bytes read, bytes in all."""

    def of(self, now: AgentSnapshot) -> float:
        """0: not known."""
        merge, at = now.merge, self._clock.monotonic()
        if merge is None or merge.bytes >= merge.bytes_total:
            self._first = None
            return 0.0
        if (
            self._first is None
            or self._first[2] != merge.bytes_total
            or self._first[1] > merge.bytes
        ):
            self._first = at, merge.bytes, merge.bytes_total
        since, read = at - self._first[0], merge.bytes - self._first[1]
        return read / since if since > 0 else 0.0


def sections(now: AgentSnapshot, rate: float) -> list[Section]:
    """`rate`: of the running merge (`MergeRate`)."""
    return [
        Section("Agent", tuple(_agent(now))),
        Section("Log of this node", tuple(_log(now))),
        Section("Nodes, as far as they are merged here", tuple(_nodes(now))),
        Section("Restore", tuple(_restore(now, rate))),
        Section("Disks and maintenance", tuple(_maintenance(now))),
        Section("Errors", tuple(_errors(now))),
    ]


def _agent(now: AgentSnapshot) -> Iterator[Fact]:
    why = why_dead(now) or "; ".join(filter(None, (why_not_ready(now), why_maps_wait(now))))
    level = Level.BAD if why_dead(now) else Level.WARNING if why else Level.GOOD
    yield Fact("State", why or "ready", level)
    yield Fact("Log", f"{now.namespace}/{now.cluster}")
    yield Fact("Node", now.node)
    yield Fact("Running for", duration(now.uptime_seconds))
    yield Fact("Cluster", _cluster(now))
    if now.waiting_seconds:
        yield Fact("A new cluster has waited", duration(now.waiting_seconds), Level.WARNING)
    if now.settling:
        text = f"{now.settling:,}; operations on them wait"
        yield Fact("Partitions not yet compared with the log", text, Level.WARNING)
    yield Fact("Connections", f"{now.connections.open:,} of {now.connections.most:,}")
    if any(now.maps.values()):
        yield from _maps(now.maps)


def _maps(maps: Mapping[str, int]) -> Iterator[Fact]:
    """Their names: `imap-wal doctor --agent`."""
    yield Fact("Maps in use", f"{maps['durable']:,} durable, {maps['transient']:,} transient")
    named = "imap-wal doctor --agent names them"
    if maps["unnamed"]:
        text = f"{maps['unnamed']:,}, not durable; {named}"
        yield Fact("Maps that no list names", text, Level.WARNING)
    if maps["structures"]:
        text = f"{maps['structures']:,}, not durable; {named}"
        yield Fact("Structures besides maps", text, Level.WARNING)


def _cluster(now: AgentSnapshot) -> str:
    if not now.incarnation:
        return "none has claimed the log"
    return f"incarnation {now.incarnation}, {'alive' if now.alive else 'no sign of life'}"


def _log(now: AgentSnapshot) -> Iterator[Fact]:
    yield Fact("Epoch", f"{now.epoch}")
    yield Fact("Durability", now.durability)
    written = f"{now.commit.records:,} entries, {size(now.commit.bytes)}"
    yield Fact("Written since the log was opened", written)
    syncs = now.commit.sync_times
    if syncs.count:
        yield Fact("Mean time of a sync", f"{1000 * syncs.sum / syncs.count:.2f} ms")
    used = now.ring_fill
    level = Level.WARNING if used >= 0.9 else Level.PLAIN
    yield Fact("Ring", f"{used:.0%} used", level, used)
    yield Fact("Lag of the merge", f"{size(now.unmerged_bytes)} written, not merged yet")


def _nodes(now: AgentSnapshot) -> Iterator[Fact]:
    for node, position in sorted(now.positions.items()):
        mine = " (this node)" if node == now.node else ""
        yield Fact(f"{node}{mine}", f"position {position}")
    for node in sorted(now.left_out):
        yield Fact(f"{node}, left out", "some of its entries are missing here", Level.BAD)
    for node in sorted(now.read_from_copies):
        yield Fact(f"{node}, not read", "other logs have its acknowledged changes", Level.WARNING)
    if not now.positions:
        yield Fact("No node", "nothing is merged yet")


def _restore(now: AgentSnapshot, rate: float) -> Iterator[Fact]:
    merge, merged = now.merge, now.merged
    if now.merge_error:
        yield Fact("Merge", "failed: imap-wal doctor --agent names the reason", Level.BAD)
    elif merge is None:
        yield Fact("Merge", "has not begun")
    elif merge.bytes < merge.bytes_total and now.merged.merges:
        text = f"complete; what was appended since is being merged: {merge}"
        yield Fact("Merge", text, Level.GOOD, 1.0)
    elif merge.bytes < merge.bytes_total:
        left = (merge.bytes_total - merge.bytes) / rate if rate else None
        ahead = f", {size(rate)}/s, {duration(left)} left" if left is not None else ""
        yield Fact("Merge", f"{merge}{ahead}", Level.PLAIN, merge.part)
    else:
        yield Fact("Merge", "complete", Level.GOOD, 1.0)
    if merged.keys is not None:
        yield Fact("Keys", f"{merged.keys:,}")
    if merged.seconds > 0 and merged.bytes:
        read = merged.bytes + now.unmerged_bytes
        seconds = read * merged.seconds / merged.bytes
        yield Fact(
            "The next restart",
            f"reads {size(read)} in about {duration(seconds)}, less after a rewrite",
        )
    if now.conflicts:
        yield Fact("Keys in conflict", f"{now.conflicts}", Level.WARNING)


def _maintenance(now: AgentSnapshot) -> Iterator[Fact]:
    for folder, disk in now.disks.items():
        part = disk.free / disk.size if disk.size else 0.0
        level = Level.WARNING if part < DISK_LOW else Level.PLAIN
        yield Fact(f"Free space, disk of {folder}", f"{size(disk.free)}, {part:.0%}", level, part)
        if disk.wanted:
            held = disk.held >= disk.wanted
            text = f"{size(disk.wanted)}, {'held' if held else 'given up for maintenance'}"
            yield Fact(f"Reserve of {folder}", text, Level.PLAIN if held else Level.WARNING)
    if (upload := now.upload) is not None:
        level = Level.WARNING if upload.seconds > UPLOAD_LATE_S else Level.PLAIN
        age = f", the oldest entries for {duration(upload.seconds)}" if upload.bytes else ""
        yield Fact("Only on the own disk", f"{size(upload.bytes)}{age}", level)
        uploaded = f"{upload.uploaded:,} segments, {size(upload.uploaded_bytes)}"
        yield Fact(
            "Uploads",
            f"{uploaded}; {upload.failures:,} runs failed{_failing(upload.error)}",
            Level.WARNING if upload.error else Level.PLAIN,
        )
    done, compaction = now.maintenance, now.compaction
    for name, runs, failures, error in (
        ("Archives", done.archives, done.archive_failures, done.archive_error),
        ("Removals", done.removals, done.removal_failures, done.retention_error),
        ("Compactions", compaction.runs, compaction.failures, compaction.error),
    ):
        text = f"{runs:,} runs, {failures:,} failed"
        yield Fact(name, text + _failing(error), Level.WARNING if error else Level.PLAIN)
    yield from _ages(now)


def _ages(now: AgentSnapshot) -> Iterator[Fact]:
    for name, age_s in (
        ("The newest snapshot was written", now.compaction_age_s),
        ("The last whole backup ended", now.backup_age_s),
    ):
        yield Fact(name, "never, or not known" if age_s is None else f"{duration(age_s)} ago")
    tables_s = now.tables_stalled_s
    for name, stalled_s, left in (
        *(
            (f"Reader {name}", now.stalled_s[name], f"{size(unread)} of this log to read, ")
            for name, unread in sorted(now.unread_bytes.items())
        ),
        *(() if tables_s is None else [("Published tables", tables_s, "a newer snapshot, ")]),
    ):
        text = f"{left}no progress for {duration(stalled_s)}" if stalled_s else "up to date"
        yield Fact(name, text, Level.WARNING if stalled_s > STALLED_S else Level.PLAIN)


def _failing(error: str) -> str:
    return f"; the last one failed: {kind(error)}" if error else ""


def _errors(now: AgentSnapshot) -> Iterator[Fact]:
    if now.failure:
        yield Fact("The log", "another process has it" if now.fenced else "failed", Level.BAD)
    for name, state in sorted(now.threads.items()):
        if state.error:
            text = f"{kind(state.error)}, {state.failures:,} failures"
            level = Level.WARNING if state.alive else Level.BAD
            yield Fact(f"Thread {name}", text, level)
    uploads_failed = now.upload.failures if now.upload is not None else 0
    if now.upload is not None and uploads_failed:
        last = f"{kind(now.upload.error)}, " if now.upload.error else ""
        level = Level.WARNING if now.upload.error else Level.PLAIN
        yield Fact("Uploads", f"{last}{uploads_failed:,} failures", level)
    for code, count in sorted(now.errors.items()):
        yield Fact(f"Answers {code}", f"{count:,}")
    if now.peers_refused:
        yield Fact("Peers refused", f"{now.peers_refused:,}", Level.WARNING)
    if not (now.failure or uploads_failed or now.errors or now.peers_refused) and not any(
        state.error for state in now.threads.values()
    ):
        yield Fact("No errors", "since the start", Level.GOOD)


def kind(error: str) -> str:
    """The class of an error; its text may have a path or an answer of a storage."""
    name = error.partition(":")[0]
    return name if name.isidentifier() else "an error"


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s" if rest else "less than 1 s"
