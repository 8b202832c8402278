"""`imap-wal get`."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import Any

import click

from imap_wal.clock import SystemClock
from imap_wal.context import Context
from imap_wal.decoder import Decoder
from imap_wal.encoder import text
from imap_wal.entry import DELETED, EXPIRES_AT_MS, KEY, MAP, ORDER, TIMESTAMP_MS, Order, is_clear
from imap_wal.format import Position
from imap_wal.read.cluster import ATTEMPTS, ClusterLog
from imap_wal.read.file_scan import from_manifest
from imap_wal.read.map_names import first_after
from imap_wal.read.newest.index import NewestIndex
from imap_wal.read.newest.rivals import Noted
from imap_wal.read.state import ClusterState
from imap_wal.rules.alive import has_expired
from imap_wal.rules.cleared import NO_FLOOR, Floors
from imap_wal.rules.newer import rank
from imap_wal.settings import RecoveryPolicy, Settings
from rewrite_cli.console import output as out
from rewrite_cli.console.failures import Failed
from rewrite_cli.console.output import note
from rewrite_cli.console.progress import Tell, working
from rewrite_cli.console.selection import Selection, selection_options
from rewrite_cli.console.times import Moment, iso
from rewrite_cli.entries.keys import KeyType, Matcher, matcher
from rewrite_cli.entries.left_out import LeftOut, note_left_out, without_copies
from rewrite_cli.entries.lines import Line, json_of, text_of
from rewrite_cli.entries.live import demand_begun, load_parquet, partial_option, state_at
from rewrite_cli.entries.losses import Losses, strict_option
from storage_backends import NotFound


@click.command()
@selection_options(nodes=False)
@click.argument("key", type=KeyType())
@click.option(
    "--history", is_flag=True, help="All versions of the key that the log still has, newest first."
)
@click.option(
    "--as-of",
    type=Moment(past=True),
    help="The key as of this time: 2026-11-21T10:00 (UTC), or 2h ago.",
)
@partial_option
@strict_option
@out.output_option
def command(
    selection: Selection,
    key: str | bytes,
    history: bool,
    as_of: int | None,
    partial: bool,
    strict: bool,
    output: str,
) -> int:
    """Print the newest value of one key, as a restart would load it, with its order, position,
    node, time and expiry. Needs --map.

    KEY is the key as `dump` prints it, as JSON, or its bytes as hex:... A key of a custom
    serializer has no text; use its bytes. If there is no such key, the exit code is 1, and the text
    says whether and when it was deleted. After a rewrite and a prune, the log no longer shows this.

    \b
    Examples:
      imap-wal get /var/lib/maps --map orders 42
      imap-wal get /var/lib/maps --map orders 42 --history
      imap-wal get /var/lib/maps --map orders 42 --as-of 2h
      imap-wal get /var/lib/maps --map orders hex:a3343231 -o json
    """
    if len(selection.maps) != 1:
        raise click.UsageError("name one map: --map; `imap-wal stat URL` lists the maps")
    (name,) = selection.maps
    load_parquet()
    results: list[Found] = []
    matches, losses = matcher((key,)), Losses(strict)
    with working("reading") as tell, selection.open() as (context, clusters):
        for view in clusters:
            search = Search(
                context,
                view,
                name,
                matches,
                partial,
                as_of,
                tell,
            )
            results.append(find(search, history=history))
            note_left_out(results[-1].left_out)
    demand_begun(results, as_of)
    keys = [key for result in results for key in result.keys]
    left_out = [node for result in results for node in result.left_out]
    now_ms = SystemClock().now_ms() if as_of is None else as_of
    live = any(past.state(now_ms) == "live" for past in keys)
    if output == out.JSON:
        out.print_json(
            {
                "keys": [_json(past, now_ms, losses, history=history) for past in keys],
                "left_out": list(map(asdict, left_out)),
            }
        )
    else:
        for past in keys:
            if history:
                _print_history(past, now_ms, losses)
            elif past.state(now_ms) == "live":
                _print(past.newest, losses)
    code = losses.end()
    if not keys:
        if matches.unreadable:
            raise click.UsageError(f"{selection.url}: {matches.why_unreadable()}")
        shown_key = f"hex:{key.hex()}" if isinstance(key, bytes) else repr(key)
        raise Failed(
            f"{selection.url}: map {name!r} has no key {shown_key}, and no earlier entry of it"
        )
    if not live:
        raise Failed("; ".join(_absence(past, now_ms) for past in keys))
    return code


def _absence(past: KeyHistory, now_ms: int) -> str:
    """Why a key that was written is not there."""
    line, state = past.newest, past.state(now_ms)
    key = past.versions[-1] if not is_clear(past.versions[-1].row) else past.newest
    shown = next(
        (
            text(version.decoder.key(version.row))
            for version in past.versions
            if not is_clear(version.row)
        ),
        text(key.decoder.key(key.row)),
    )
    when = iso(line.row[EXPIRES_AT_MS] if state == "expired" else line.row[TIMESTAMP_MS])
    how = {
        "cleared": "was deleted by a clear",
        "deleted": "was deleted",
        "expired": "expired",
        "dropped": "was dropped by a rewrite; its last change was",
    }
    return f"{line.cluster}: key {shown} {how[state]} at {when} ({_place(line)})"


def _place(line: Line) -> str:
    where = "in a snapshot" if line.position is None else f"at {line.position}"
    return f"node {line.node}, {where}" if line.node else where


def _json(past: KeyHistory, now_ms: int, losses: Losses, *, history: bool) -> dict[str, Any]:
    versions = {"versions": [json_of(line, losses) for line in past.versions]} if history else {}
    return {**json_of(past.newest, losses), "state": past.state(now_ms), **versions}


def _print(line: Line, losses: Losses) -> None:
    row = line.row
    for name, value in (
        ("key", losses.key_text(row, line.decoder)),
        ("value", losses.value_text(row, line.decoder)),
        ("written", iso(row[TIMESTAMP_MS])),
        ("expires", iso(row[EXPIRES_AT_MS]) or "never"),
        ("order", ", ".join(map(str, row[ORDER]))),
        ("cluster", line.cluster),
        ("node", line.node or out.NOTHING),
        ("position", str(line.position) if line.position is not None else "in a snapshot"),
    ):
        out.echo(f"{name:<9} {out.shown(value)}")


def _print_history(past: KeyHistory, now_ms: int, losses: Losses) -> None:
    count = out.count(len(past.versions), "version")
    out.echo(f"{past.newest.cluster}: {past.state(now_ms)}, {count}")
    for line in past.versions:
        out.echo(out.shown(text_of(line, losses)))


# One key: its newest change, and all earlier ones that a log still has.


@dataclass(frozen=True)
class Search:
    """What is searched, and how it is read."""

    context: Context
    view: ClusterState
    map: str
    matches: Matcher
    partial: bool = False
    """Without the logs of missing nodes."""
    as_of_ms: int | None = None
    """The state at this time, Unix milliseconds; None: now."""
    tell: Tell = lambda _: None


@dataclass(frozen=True)
class KeyHistory:
    """The changes of one key that count, newest first, and the clears that deleted it."""

    key: bytes
    newest: Line
    """The change or the clear that decides the key's state."""
    versions: list[Line] = field(default_factory=list)
    covered: bool = False
    """A snapshot covers all versions, and does not have the key: a restart does not load it."""

    def state(self, now_ms: int) -> str:
        """`live`, `deleted`, `cleared`, `expired`, or `dropped`: a snapshot covers the value and
        does not have it, although no later change deleted it."""
        row = self.newest.row
        if is_clear(row):
            return "cleared"
        if row[DELETED]:
            return "deleted"
        if has_expired(row[EXPIRES_AT_MS], now_ms):
            return "expired"
        return "dropped" if self.covered else "live"


@dataclass(frozen=True)
class Found:
    """What was found in a cluster. `keys`: those that match, usually one. `begins_ms`: the time of
    the map's first entry, if the wanted moment is before it."""

    view: ClusterState
    keys: list[KeyHistory]
    left_out: list[LeftOut]
    begins_ms: int | None = None


@dataclass(frozen=True)
class _Lines:
    """The changes of the keys, and the clears of the map; the other fields as in `Found`."""

    changes: list[Line] = field(default_factory=list)
    clears: list[Line] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    begins_ms: int | None = None


def find(search: Search, *, history: bool) -> Found:
    """Find the keys of a cluster that match.

    Args:
        search: What is searched.
        history: Also find what a snapshot covers, as far as the files still exist. A key that is
            in no other file is always searched in these.

    Returns:
        The keys with their changes. Those of a lower order than a clear do not count, but are
        versions.

    Raises:
        Failed: The state of the map at the wanted time is no longer known.
        MissingNode: A node's log is missing, without `partial`.
        LogError: The log is damaged.
        NotFound: Files were removed at each attempt to read them.
    """
    for attempt in range(ATTEMPTS):
        try:
            now = _read(search, covered=False)
            more = history or not now.changes
            earlier = _read(search, covered=True) if more else _Lines()
            break
        except NotFound:
            if attempt == ATTEMPTS - 1:
                raise
    counting, covered = _by_key(now.changes), _by_key(earlier.changes)
    histories = []
    for key in counting | covered:
        own, old = counting.get(key, []), covered.get(key, [])
        deleted, old_deleted = _of_key(key, now.clears), _of_key(key, earlier.clears)
        newest = (
            _newest(search.map, own, deleted)
            if own
            else _newest(search.map, old, [*deleted, *old_deleted])
        )
        versions = _each_once([*own, *old, *deleted, *old_deleted])
        histories.append(KeyHistory(key, newest, versions, covered=not own))
    return Found(search.view, histories, now.left_out, now.begins_ms)


def _by_key(lines: Iterable[Line]) -> dict[bytes, list[Line]]:
    by_key: dict[bytes, list[Line]] = {}
    for line in lines:
        by_key.setdefault(line.row[KEY], []).append(line)
    return by_key


def _read(search: Search, *, covered: bool) -> _Lines:
    policy = RecoveryPolicy.PARTIAL if search.partial else RecoveryPolicy.FULL
    view = search.view
    log = ClusterLog.of(search.context, view)
    schemas = (from_manifest(item) for node in view.all_nodes for item in node.manifest.metadata)
    decoder = Decoder(schemas, note)
    lines: list[Line] = []
    clears: list[Line] = []
    count = 0
    oldest: int | None = None
    until_ms = search.as_of_ms
    if until_ms is not None and not covered:
        state = state_at(log, (search.map,), until_ms, policy)
    else:
        state = log.state().demand(policy)
    for batch in log.all_changes(state, (search.map,), covered=covered, positions=True):
        decoder.add_metadata(batch.metadata)
        places: Iterable[Position | None] = batch.positions or [None] * len(batch.rows)
        for row, place in zip(batch.rows, places, strict=True):
            oldest = row[TIMESTAMP_MS] if oldest is None else min(oldest, row[TIMESTAMP_MS])
            if until_ms is not None and row[TIMESTAMP_MS] > until_ms:
                continue
            if is_clear(row) or search.matches(row, decoder):
                line = Line(row[TIMESTAMP_MS], str(view), batch.node, place, row, decoder)
                (clears if is_clear(row) else lines).append(line)
        count += len(batch.rows)
        search.tell(f"{view}: {count:,} records")
    begins_ms = None
    if until_ms is not None:
        begins_ms = first_after(oldest, {search.map} & state.manifest.snapshots.keys(), until_ms)
    return _Lines(lines, clears, without_copies(state), begins_ms)


def _of_key(key: bytes, clears: Iterable[Line]) -> list[Line]:
    """The clears of the partition of a key."""
    of_key = []
    for line in clears:
        floors = Floors()
        floors.add(line.row, line.node)
        if floors.hidden([key], [NO_FLOOR]):
            of_key.append(line)
    return of_key


def _newest(name: str, lines: list[Line], clears: list[Line]) -> Line:
    """The line that decides, by the rules of a restart."""
    with closing(NewestIndex(Settings().restore_memory_bytes)) as index:
        for line in [*lines, *clears]:
            index.add(line.node, [line.row], clears=True)
        noted = Noted()
        for rows, nodes in index.batches_with_nodes(name):
            noted.note(index.conflicts())
            for row, node in zip(rows, nodes, strict=True):
                same = [line for line in lines if (line.row, line.node) == (row, node)]
                return min(same, key=lambda line: line.position is None)
    return max(clears, key=lambda line: rank(line.row, line.node))


def _each_once(lines: Iterable[Line]) -> list[Line]:
    """Newest first. A change that is also in a snapshot is there once, with its position."""
    newest: dict[tuple[str, Order, bool, str], Line] = {}
    for line in lines:
        row = line.row
        identity = row[MAP], row[ORDER], is_clear(row), line.node
        former = newest.get(identity)
        if former is None or former.position is None:
            newest[identity] = line
    return sorted(newest.values(), key=lambda line: rank(line.row, line.node), reverse=True)
