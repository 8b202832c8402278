"""What automatic compaction costs a program under load, and what it saves: few keys are overwritten
again and again, by a store that never compacts and by one that does, alternately."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import imap_wal

KEYS, VALUE = 100, os.urandom(100)
PERCENTAGE = 100


@dataclass(frozen=True, slots=True)
class Measured:
    """`rate`: sets per second. `close_s`: the close, in seconds. `bytes`: on disk after it.
    `open_s`: the next open."""

    rate: float
    close_s: float
    bytes: int
    open_s: float


def overwrites(folder: Path, percentage: int, count: int) -> Measured:
    """Overwrites the keys until there were `count` sets; one commit for all keys."""
    entries = {b"key%03d" % number: VALUE for number in range(KEYS)}
    url = folder.as_uri()
    with imap_wal.open(url, auto_rewrite_percentage=percentage) as store:
        items = store.map("m", raw=True)
        start = time.perf_counter()
        for _ in range(count // KEYS):
            items.update(entries)
        rate = count / (time.perf_counter() - start)
        start = time.perf_counter()
    close_s = time.perf_counter() - start
    size = sum(file.stat().st_blocks * 512 for file in folder.rglob("*") if file.is_file())
    start = time.perf_counter()
    with imap_wal.open(url) as store:
        open_s = time.perf_counter() - start
        assert len(store.map("m", raw=True)) == KEYS
    return Measured(rate, close_s, size, open_s)


def run(rounds: int, count: int) -> list[dict[str, Any]]:
    """Rates, sizes and opens, with automatic compaction and without."""
    seen: dict[int, list[Measured]] = {0: [], PERCENTAGE: []}
    for number in range(rounds):
        for percentage in sorted(seen, reverse=bool(number % 2)):
            with tempfile.TemporaryDirectory() as name:
                seen[percentage].append(overwrites(Path(name), percentage, count))

    def row(
        what: str, unit: str, of: str, digits: int | None, target: float | None
    ) -> dict[str, Any]:
        ours, other = (
            [getattr(each, of) for each in seen[percentage]] for percentage in (PERCENTAGE, 0)
        )
        ratios = [mine / theirs for mine, theirs in zip(ours, other, strict=True)]
        return {
            "measurement": f"compacting: {what}",
            "median": round(statistics.median(ours), digits),
            "least": round(min(ours), digits),
            "most": round(max(ours), digits),
            "unit": unit,
            "ratio": round(statistics.median(ratios), 3),
            "to": "never compacted",
            "target": target,
            "note": f"without: {statistics.median(other):,.{digits or 0}f} {unit}",
        }

    return [
        row(f"{count:,} sets of {KEYS} keys", "records/s", "rate", None, 0.9),
        row("the close", "s", "close_s", 3, None),
        row("on disk afterwards", "bytes", "bytes", None, None),
        row("the next open", "s", "open_s", 3, None),
    ]
