"""How long a program waits until all entries of its map are in memory again: from the log, from a
snapshot, and from a table of SQLite into a dict. Each in its own process, alternately."""

from __future__ import annotations

import json
import sqlite3
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import imap_wal

VALUE = b"v" * 100
BATCH = 10_000
LOG, SNAPSHOT, TABLE = "from the log", "from a snapshot", "SQLite, a table into a dict"

OURS = """
with imap_wal.open(sys.argv[1]) as store:
    found = len(store.map("m", raw=True))
    seconds = time.perf_counter() - start
"""
SQLITE = """
found = len(dict(sqlite3.connect(sys.argv[1]).execute("select key, value from entries")))
seconds = time.perf_counter() - start
"""
MEASURED = """
import json, sqlite3, sys, time
import imap_wal
from imap_wal.rewrite.report import memory_max_bytes
start = time.perf_counter()
{}
memory = memory_max_bytes() // 2**20
print(json.dumps([seconds, memory, found]))
"""


GOAL = 1.0
"""The time that SQLite needs, divided by that of an open, at least."""


def run(entries: int, rounds: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as name:
        log, snapshot, table = (Path(name) / each for each in ("log", "snapshot", "table"))
        for folder in (log, snapshot):
            _fill(folder, entries, compact=folder == snapshot)
        _fill_table(table, entries)
        found: dict[str, list[list[float]]] = {}
        for _ in range(rounds):
            for engine, path in ((LOG, log), (SNAPSHOT, snapshot), (TABLE, table)):
                found.setdefault(engine, []).append(_measured(engine, path, entries))
    return [
        *(_row(engine, 0, "s", found, entries) for engine in found),
        *(_row(engine, 1, "MiB", found, entries) for engine in found),
    ]


def _batches(entries: int) -> Any:
    for start in range(0, entries, BATCH):
        yield {b"key%09d" % number: VALUE for number in range(start, start + BATCH)}


def _fill(folder: Path, entries: int, *, compact: bool) -> None:
    with imap_wal.open(folder, durability="os", auto_rewrite_percentage=0) as store:
        items = store.map("m", raw=True)
        for batch in _batches(entries):
            items.update(batch)
        if compact:
            store.compact()


def _fill_table(file: Path, entries: int) -> None:
    with sqlite3.connect(file) as table:
        table.execute("create table entries (key blob primary key, value blob) without rowid")
        for batch in _batches(entries):
            table.executemany("insert into entries values (?, ?)", batch.items())


def _measured(engine: str, path: Path, entries: int) -> list[float]:
    """Seconds, and MiB of memory at most."""
    code = MEASURED.format(SQLITE if engine == TABLE else OURS)
    ended = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    )
    seconds, memory, found = json.loads(ended.stdout)
    assert found == entries
    return [seconds, memory]


def _row(
    engine: str, value: int, unit: str, found: dict[str, list[list[float]]], entries: int
) -> dict[str, Any]:
    of = {name: [each[value] for each in runs] for name, runs in found.items()}
    own = statistics.median(of[engine])
    return {
        "measurement": f"{entries:,} entries: {engine}",
        "median": round(own, 1),
        "least": round(min(of[engine]), 1),
        "most": round(max(of[engine]), 1),
        "unit": unit,
        "ratio": round(statistics.median(of[TABLE]) / own, 2),
        "to": TABLE,
        "target": GOAL if unit == "s" and engine != TABLE else None,
        "note": "values of 100 bytes",
    }
