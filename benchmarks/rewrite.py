"""The local rewrite of a large log: records per second and peak memory of the command in its own
process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import imap_wal
from imap_wal.context import open_context
from imap_wal.read.cluster import ClusterLog
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.run import rewrite

VALUE_BYTES = 100
BATCH = 10_000
GIB = 2**30


def fill(folder: Path, records: int, keys: int) -> None:
    """A log with this many upserts of this many keys, in commits of 10,000."""
    value = os.urandom(VALUE_BYTES)
    with imap_wal.open(
        folder.as_uri(), node="n1", durability="os", auto_rewrite_percentage=0
    ) as store:
        items = store.map("bench", raw=True)
        for start in range(0, records, BATCH):
            items.update(
                {b"key%09d" % ((start + number * 7919) % keys): value for number in range(BATCH)}
            )


def run(
    records: int, keys: int, judged: bool = True, memory_bytes: int = GIB
) -> list[dict[str, Any]]:
    """One row for the rate, one for the memory."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fill(folder, records, keys)
        size = sum(file.stat().st_size for file in folder.rglob("*.wal"))
        command = [
            sys.executable,
            "-m",
            "rewrite_cli.cli",
            "rewrite",
            folder.as_uri(),
            "--namespace",
            "default",
            "--cluster",
            "embedded",
        ]
        start = time.perf_counter()
        process = subprocess.Popen(
            [*command, "--engine", "local", "-o", "json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        out, problems = process.communicate()
        seconds = time.perf_counter() - start
        if process.returncode != 0:
            raise RuntimeError(f"rewrite ended with {process.returncode}: {problems[-2000:]}")
        (report,) = json.loads(out)["clusters"]
    peak = report["memory_max_bytes"]
    note = (
        f"{records:,} records of {keys:,} keys, {size / GIB:.2f} GiB of segments, {seconds:.1f} "
        "s with start-up"
    )
    rate = records / seconds / 1e6
    return [
        {
            "measurement": "rewrite, local engine",
            "median": round(rate, 3),
            "unit": "M records/s",
            "ratio": round(rate / 0.5, 2),
            "to": "0.5 M/s",
            "target": 1.0 if judged else None,
            "note": note,
        },
        {
            "measurement": "rewrite, local engine: peak memory (RSS)",
            "median": round(peak / 2**20),
            "unit": "MiB",
            "ratio": round(peak / memory_bytes, 2),
            "to": "1 GiB",
            "target": 1.0,
            "at_most": True,
            "note": "of the command's process, as it reports it",
        },
    ]


def again(keys: int, judged: bool = True) -> list[dict[str, Any]]:
    """A rewrite after one key in a hundred has a new value: keys next to each other."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        put(folder, range(keys))
        whole, _ = rewritten(folder)
        put(folder, range(keys // 2, keys // 2 + keys // 100))
        seconds, written = rewritten(folder)
    return [
        {
            "measurement": "rewrite after 1 % of the keys changed, next to each other",
            "median": round(seconds, 2),
            "unit": "s",
            "ratio": round(seconds / whole, 3),
            "to": "the first rewrite",
            "target": 0.05 if judged else None,
            "at_most": True,
            "note": f"{keys:,} keys, {written / 2**20:.0f} MiB written; the first: {whole:.1f} s",
        }
    ]


def put(folder: Path, keys: Iterable[int]) -> None:
    """New values of some keys, in commits of 10,000."""
    with imap_wal.open(
        folder.as_uri(), node="n1", durability="os", auto_rewrite_percentage=0
    ) as store:
        items = store.map("bench", raw=True)
        for some in batched(keys, BATCH):
            items.update({b"key%09d" % key: os.urandom(3 * VALUE_BYTES) for key in some})


def rewritten(folder: Path) -> tuple[float, int]:
    """Seconds of a rewrite, and bytes of its new files."""
    log = ClusterLog(open_context(folder.as_uri()), "default", "embedded")
    report = rewrite(log, LocalEngine())
    return report.seconds, sum(each.bytes_written for each in report.maps)


def batched(items: Iterable[int], count: int) -> Iterator[list[int]]:
    left = iter(items)
    while some := list(islice(left, count)):
        yield some
