"""`imap-wal get`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from imap_wal.clock import SystemClock
from imap_wal.encoder import text
from imap_wal.entry import EXPIRES_AT_MS, ORDER, TIMESTAMP_MS, is_clear
from rewrite_cli.console import output as out
from rewrite_cli.console.failures import Failed
from rewrite_cli.console.progress import working
from rewrite_cli.console.selection import Selection, selection_options
from rewrite_cli.console.times import Moment, iso
from rewrite_cli.entries.history import Found, KeyHistory, Search, find
from rewrite_cli.entries.keys import KeyType, matcher
from rewrite_cli.entries.left_out import note_left_out
from rewrite_cli.entries.lines import Line, json_of, text_of
from rewrite_cli.entries.live import demand_begun, load_parquet, partial_option
from rewrite_cli.entries.losses import Losses, strict_option


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
