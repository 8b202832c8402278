"""`imap-wal diff`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any

import click

from imap_wal.clock import SystemClock
from imap_wal.encoder import text
from imap_wal.entry import KEY, Row
from imap_wal.errors import ImapWalError
from rewrite_cli.console import output as out
from rewrite_cli.console.failures import CLEAN, Failed, message
from rewrite_cli.console.progress import Tell, working
from rewrite_cli.console.selection import Selection, Url, selection_options
from rewrite_cli.console.times import Moment, iso
from rewrite_cli.entries.comparison import (
    ADDED,
    CHANGED,
    NEW,
    OLD,
    REMOVED,
    Comparison,
    Difference,
)
from rewrite_cli.entries.live import LiveCluster, Reading, merge_all, partial_option
from rewrite_cli.entries.losses import Losses
from storage_backends import StorageError
from storage_backends.location import Location

DIFFERENT, TROUBLE = 1, 2
_MARKS = {ADDED: "+", REMOVED: "-", CHANGED: "~"}


class _Trouble(Failed):
    exit_code = TROUBLE


@dataclass(frozen=True)
class _Side:
    """One of two states."""

    name: str
    clusters: list[LiveCluster]


def _trouble(command: Callable[..., int]) -> Callable[..., int]:
    """A failure gets another exit code than a difference."""

    @wraps(command)
    def wrapper(*arguments: Any, **options: Any) -> int:
        try:
            return command(*arguments, **options)
        except click.UsageError:
            raise
        except (ImapWalError, StorageError, OSError, Failed) as error:
            raise _Trouble(message(error)) from error

    return wrapper


@click.command()
@selection_options(nodes=False)
@click.argument("other", metavar="[URL2]", type=Url(), required=False)
@click.option(
    "--as-of",
    "times",
    multiple=True,
    type=Moment(past=True),
    help="The state at this time. With one URL: once, to compare with now; or twice. With two "
    "URLs: once for both, or once for each.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    help="For each map and kind of difference, list at most this many keys.",
)
@partial_option
@out.output_option
@_trouble
def command(
    selection: Selection,
    other: Location | None,
    times: tuple[int, ...],
    limit: int,
    partial: bool,
    output: str,
) -> int:
    """Compare the live entries of two logs, or of one log at two times: keys that were added or
    removed, or that have another value or expiry. The exit codes are those of the Unix command
    `diff`: 0 the same, 1 different, 2 failed.

    If each URL has exactly one cluster, these two are compared, whatever their names are.

    \b
    Examples:
      imap-wal diff /var/lib/maps /mnt/copy
      imap-wal diff /var/lib/maps --as-of 2h
      imap-wal diff /var/lib/maps --map orders --as-of 2h --as-of 1h -o json
    """
    if len(times) > 2 or (other is None and not times):
        raise click.UsageError("name two URLs, or one and --as-of once or twice")
    until, losses = _times(times, both=other is not None), Losses()
    with working("reading") as tell, ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="imap-wal-diff-"))
        comparison = stack.enter_context(closing(Comparison(Path(scratch))))

        first = _read(selection, until[0], partial, stack, tell)
        second = _read(
            selection if other is None else replace(selection, url=other),
            until[1],
            partial,
            stack,
            tell,
        )
        alone = len(first.clusters) == len(second.clusters) == 1
        for side, state in ((OLD, first), (NEW, second)):
            for cluster in state.clusters:
                for name in cluster.maps:
                    tell(f"comparing {name}")
                    comparison.fill(side, _label(cluster, name, alone), cluster.rows(name))
        differences = list(comparison.differences(limit))
        shown = [_shown(difference, first, second, alone, losses) for difference in differences]
    if output == out.JSON:
        left_out = {
            side: [asdict(left_out) for cluster in state.clusters for left_out in cluster.left_out]
            for side, state in ((OLD, first), (NEW, second))
        }
        names = {"old": first.name, "new": second.name}
        out.print_json({**names, "maps": shown, "left_out": left_out})
    else:
        _print(first, second, shown, limit)
    losses.end()
    return DIFFERENT if differences else CLEAN


def _times(times: tuple[int, ...], *, both: bool) -> tuple[int | None, int | None]:
    match times:
        case (first, second):
            return first, second
        case (one,):
            return (one, one) if both else (one, None)
        case _:
            return None, None


def _read(
    selection: Selection, as_of_ms: int | None, partial: bool, stack: ExitStack, tell: Tell
) -> _Side:
    context, views = stack.enter_context(selection.open())
    name = f"{selection.url} at {iso(as_of_ms or SystemClock().now_ms())}"
    return _Side(
        name, merge_all(context, views, selection, stack, tell, Reading(partial, as_of_ms))
    )


def _label(cluster: LiveCluster, name: str, alone: bool) -> str:
    """The name of a map that both sides have."""
    return name if alone else f"{cluster.view}/{name}"


def _shown(
    difference: Difference, old: _Side, new: _Side, alone: bool, losses: Losses
) -> dict[str, Any]:
    """Counts, and the listed keys with their values."""
    listed_keys = {key for keys in difference.listed.values() for key in keys}
    before, after = (_values(side, difference.map, listed_keys, alone) for side in (old, new))
    keys = []
    for kind, listed in difference.listed.items():
        for key in listed:
            cluster, row = after.get(key) or before[key]
            entry = {"kind": kind, "key": losses.key(row, cluster.decoder)}
            for name, side in (("old", before), ("new", after)):
                if key in side:
                    entry[name] = losses.value(side[key][1], side[key][0].decoder)
            keys.append({**entry, "key_bytes": f"hex:{key.hex()}"})
    return {"map": difference.map, **difference.counts, "keys": keys}


def _values(
    side: _Side, label: str, keys: set[bytes], alone: bool
) -> dict[bytes, tuple[LiveCluster, Row]]:
    return {
        row[KEY]: (cluster, row)
        for cluster in side.clusters
        for name in cluster.maps
        if keys and _label(cluster, name, alone) == label
        for rows in cluster.rows(name)
        for row in rows
        if row[KEY] in keys
    }


def _print(first: _Side, second: _Side, shown: list[dict[str, Any]], limit: int) -> None:
    out.prose(f"- {first.name}")
    out.prose(f"+ {second.name}")
    if not shown:
        out.prose("no difference")
        return
    out.print_table(
        ("map", ADDED, REMOVED, CHANGED),
        [(row["map"], row[ADDED], row[REMOVED], row[CHANGED]) for row in shown],
    )
    for row in shown:
        for key in row["keys"]:
            values = [_short(key[name]) for name in ("old", "new") if name in key]
            out.prose(
                f"{_MARKS[key['kind']]} {row['map']}[{_short(key['key'])}] {' -> '.join(values)}"
            )
        for kind, mark in _MARKS.items():
            more = row[kind] - min(row[kind], limit)
            if more:
                out.prose(f"{mark} {row['map']}: {more:,} more {kind}")


def _short(value: Any) -> str:
    words = out.shown(text(value))
    return words if len(words) <= 60 else f"{words[:57]}..."
