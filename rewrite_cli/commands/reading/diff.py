"""`imap-wal diff`."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from functools import wraps
from hashlib import blake2b
from pathlib import Path
from typing import Any

import click

from imap_wal.clock import SystemClock
from imap_wal.encoder import text
from imap_wal.entry import EXPIRES_AT_MS, KEY, VALUE, VALUE_CLASS, Row
from imap_wal.errors import ImapWalError
from rewrite_cli.console import output as out
from rewrite_cli.console.failures import CLEAN, Failed, message
from rewrite_cli.console.progress import Tell, working
from rewrite_cli.console.selection import Selection, Url, selection_options
from rewrite_cli.console.times import Moment, iso
from rewrite_cli.entries.live import LiveCluster, Reading, merge_all, partial_option
from rewrite_cli.entries.losses import Losses
from storage_backends import StorageError
from storage_backends.location import Location

# The difference of two states of maps, in bounded memory: digests of the entries are in a SQLite
# table in the scratch folder.

OLD, NEW = "old", "new"
ADDED, REMOVED, CHANGED = "added", "removed", "changed"
_QUERIES = {
    ADDED: "select m, k from new n where not exists "
    "(select 1 from old o where o.m = n.m and o.k = n.k)",
    REMOVED: "select m, k from old o where not exists "
    "(select 1 from new n where o.m = n.m and o.k = n.k)",
    CHANGED: "select o.m, o.k from old o join new n on o.m = n.m and o.k = n.k where o.d <> n.d",
}
_BATCH = 10_000


@dataclass(frozen=True)
class Difference:
    """The keys of one map that differ."""

    map: str
    counts: Mapping[str, int]
    listed: Mapping[str, list[bytes]] = field(default_factory=dict)
    """The first keys of each kind, by their bytes."""


class Comparison:
    """Two sides are filled, then compared. Entries differ if value, class of the value or expiry
    differ."""

    def __init__(self, scratch: Path) -> None:
        self._tables = sqlite3.connect(scratch / "compare.sqlite", isolation_level=None)
        self._tables.execute("pragma journal_mode = off")
        self._tables.execute("pragma synchronous = off")
        for side in (OLD, NEW):
            self._tables.execute(
                f"create table {side} (m text, k blob, d blob, primary key (m, k)) without rowid"
            )

    def close(self) -> None:
        self._tables.close()

    def fill(self, side: str, name: str, pages: Iterable[list[Row]]) -> None:
        """Add the live entries of a map to `OLD` or `NEW`."""
        for rows in pages:
            for start in range(0, len(rows), _BATCH):
                self._tables.execute("begin")
                self._tables.executemany(
                    f"insert or replace into {side} values (?, ?, ?)",  # noqa: S608
                    ((name, row[KEY], digest(row)) for row in rows[start : start + _BATCH]),
                )
                self._tables.execute("commit")

    def differences(self, limit: int) -> Iterator[Difference]:
        """The maps that differ, by name; `limit`: how many keys of each kind are listed."""
        counts: dict[str, dict[str, int]] = {}
        for kind, query in _QUERIES.items():
            for name, count in self._tables.execute(
                f"select m, count(*) from ({query}) group by m"  # noqa: S608
            ):
                counts.setdefault(name, dict.fromkeys(_QUERIES, 0))[kind] = count
        for name in sorted(counts):
            listed = {
                kind: [
                    bytes(key)
                    for _, key in self._tables.execute(
                        f"select * from ({query}) where m = ? order by 2 limit ?",  # noqa: S608
                        (name, limit),
                    )
                ]
                for kind, query in _QUERIES.items()
            }
            yield Difference(name, counts[name], listed)


def digest(row: Row) -> bytes:
    """A digest of everything that a reader of the map sees."""
    head = f"{row[EXPIRES_AT_MS]} {len(row[VALUE_CLASS])} {row[VALUE_CLASS]} ".encode()
    return blake2b(head + (row[VALUE] or b""), digest_size=16).digest()


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
