"""The cost of encryption at rest: the same work with and without it, alternately, as a ratio."""

from __future__ import annotations

import asyncio
import base64
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import imap_wal
from imap_wal.embedded.store import Store

VALUE = os.urandom(100)
VARIABLE = "IMAP_WAL_BENCH_KEYS"


def opened(folder: Path, source: str, **settings: Any) -> Store:
    return imap_wal.open(
        folder.as_uri(), encryption_keys=source, auto_rewrite_percentage=0, **settings
    )


def single(folder: Path, source: str, scale: int) -> float:
    """Sets per second of one thread: a frame and a sync per set."""
    count = 1_000 * scale
    with opened(folder, source) as store:
        items = store.map("m", raw=True)
        start = time.perf_counter()
        for number in range(count):
            items[b"key%09d" % number] = VALUE
        return count / (time.perf_counter() - start)


def in_flight(folder: Path, source: str, scale: int) -> float:
    """Sets per second with 256 in flight: frames of about 256 entries."""
    each = 100 * scale

    async def measure() -> float:
        async with imap_wal.aopen(folder.as_uri(), encryption_keys=source) as store:
            items = store.map("m", raw=True)

            async def caller(own: int) -> None:
                for number in range(each):
                    await items.set(b"key%04d%05d" % (own, number), VALUE)

            start = time.perf_counter()
            await asyncio.gather(*[caller(number) for number in range(256)])
            return 256 * each / (time.perf_counter() - start)

    return asyncio.run(measure())


def updates(folder: Path, source: str, scale: int) -> float:
    """Records per second of `update` with 10,000 entries per call: frames of a megabyte."""
    batches = [
        {b"key%09d" % (start * 10_000 + number): VALUE for number in range(10_000)}
        for start in range(10 * scale)
    ]
    with opened(folder, source) as store:
        items = store.map("m", raw=True)
        start = time.perf_counter()
        for batch in batches:
            items.update(batch)
        return len(batches) * 10_000 / (time.perf_counter() - start)


def restored(folder: Path, source: str, count: int) -> float:
    """Records per second of an open."""
    start = time.perf_counter()
    with opened(folder, source) as store:
        seconds = time.perf_counter() - start
        assert len(store.map("m", raw=True)) == count
    return count / seconds


def archived(folder: Path, source: str, count: int) -> float:
    """Records per second of archiving all segments."""
    with opened(folder, source) as store:
        start = time.perf_counter()
        store.archive()
        return count / (time.perf_counter() - start)


def round_of(source: str, scale: int) -> dict[str, float]:
    """One measurement of each kind."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        appends: dict[str, Callable[[Path, str, int], float]] = {
            "append, 1 thread": single,
            "append, 256 in flight": in_flight,
            "append, updates of 10,000": updates,
        }
        found = {
            label: measure(root / str(number), source, scale)
            for number, (label, measure) in enumerate(appends.items())
        }
        count = 100_000 * scale
        found["restore from segments"] = restored(root / "2", source, count)
        found["archive to Parquet"] = archived(root / "2", source, count)
        found["restore from Parquet"] = restored(root / "2", source, count)
        return found


def run(rounds: int, quick: bool) -> list[dict[str, Any]]:
    """One row for each kind: the rate with encryption, and its ratio to that without."""
    os.environ[VARIABLE] = f"bench:{base64.b64encode(os.urandom(32)).decode()}"
    scale = 1 if quick else 4
    seen: dict[str, list[float]] = {}
    ratios: dict[str, list[float]] = {}
    for number in range(rounds):
        # They alternate in order: the second one has a warm disk cache.
        order = ("", f"env:{VARIABLE}") if number % 2 else (f"env:{VARIABLE}", "")
        rates = {source: round_of(source, scale) for source in order}
        for label, rate in rates[f"env:{VARIABLE}"].items():
            seen.setdefault(label, []).append(rate)
            ratios.setdefault(label, []).append(rate / rates[""][label])
    return [
        {
            "measurement": f"encrypted: {label}",
            "median": round(statistics.median(rates)),
            "least": round(min(rates)),
            "most": round(max(rates)),
            "unit": "records/s",
            "ratio": round(statistics.median(ratios[label]), 3),
            "to": "not encrypted",
            "target": None,
            "note": f"ratios {min(ratios[label]):.2f} … {max(ratios[label]):.2f}",
        }
        for label, rates in seen.items()
    ]
