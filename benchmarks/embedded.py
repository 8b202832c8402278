"""The embedded map compared with a loop that writes the same bytes, and with SQLite: in one run, in
turns, as medians and ratios."""

from __future__ import annotations

import asyncio
import os
import queue
import sqlite3
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import uvloop

import imap_wal
from imap_wal.embedded.store import Store

VALUE = b"v" * 100
BATCH = 256
ALONE = "asyncio alone, the same awaits, 256 in flight"
BESIDE_ASYNCIO = "asyncio set, 256 in flight, beside asyncio alone"


def frame_bytes(folder: Path) -> bytes:
    """The bytes of one commit of 256 sets, from a real log."""
    with imap_wal.open(folder.as_uri(), node="n") as store:
        before = store.statistics.commits.bytes
        store.map("m", raw=True).update({b"key%09d" % number: VALUE for number in range(BATCH)})
        size = store.statistics.commits.bytes - before
    return os.urandom(size)


def bare_loop(folder: Path, data: bytes, batches: int) -> float:
    """Records per second of a loop that writes 256 records' bytes and calls fdatasync."""
    file = os.open(folder / "bare", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    start = time.perf_counter()
    for _ in range(batches):
        os.write(file, data)
        os.fdatasync(file)
    seconds = time.perf_counter() - start
    os.close(file)
    return batches * BATCH / seconds


async def asynchronous(folder: Path, in_flight: int, operations: int) -> float:
    """Sets per second with this many in flight; each returns when it is durable."""
    async with imap_wal.aopen(folder.as_uri(), node="n") as store:
        items = store.map("m", raw=True)
        each = operations // in_flight
        # Before the measurement: the bare loop formats no keys either.
        keys = [
            [b"key%04d%05d" % (number, count) for count in range(each)]
            for number in range(in_flight)
        ]

        async def caller(own: list[bytes]) -> None:
            for key in own:
                await items.set(key, VALUE)

        start = time.perf_counter()
        await asyncio.gather(*[caller(own) for own in keys])
        return each * in_flight / (time.perf_counter() - start)


async def asyncio_alone(in_flight: int, operations: int) -> float:
    """The same awaits without a map or a log: another thread gets all futures that wait, and ends
    them on the loop, while further ones collect."""
    loop = asyncio.get_running_loop()
    handed: queue.SimpleQueue[list[asyncio.Future[None]]] = queue.SimpleQueue()
    waiting: list[asyncio.Future[None]] = []

    def answer() -> None:
        while futures := handed.get():
            loop.call_soon_threadsafe(end, futures)

    def hand_over() -> None:
        nonlocal waiting
        futures, waiting = waiting, []
        handed.put(futures)

    def end(futures: list[asyncio.Future[None]]) -> None:
        for future in futures:
            future.set_result(None)
        loop.call_soon(hand_over)

    def set(key: int, value: bytes) -> asyncio.Future[None]:
        future = loop.create_future()
        waiting.append(future)
        return future

    async def caller() -> None:
        for key in range(operations // in_flight):
            await set(key, VALUE)

    thread = threading.Thread(target=answer)
    thread.start()
    start = time.perf_counter()
    callers = [asyncio.create_task(caller()) for _ in range(in_flight)]
    loop.call_soon(hand_over)
    await asyncio.gather(*callers)
    seconds = time.perf_counter() - start
    handed.put([])
    thread.join()
    return operations / seconds


async def added(folder: Path, in_flight: int, operations: int) -> float:
    """Adds per second to one counter with this many in flight."""
    async with imap_wal.aopen(folder.as_uri(), node="n") as store:
        hits = store.map("m")

        async def caller() -> None:
            for _ in range(operations // in_flight):
                await hits.add("home")

        start = time.perf_counter()
        await asyncio.gather(*[caller() for _ in range(in_flight)])
        return float(hits["home"]) / (time.perf_counter() - start)


def updates(folder: Path, count: int, size: int = 10_000) -> float:
    """Records per second of `update` with 10,000 entries per call."""
    batches = [
        {b"key%09d" % (start * size + number): VALUE for number in range(size)}
        for start in range(count)
    ]
    with imap_wal.open(folder.as_uri(), node="n") as store:
        items = store.map("m", raw=True)
        start = time.perf_counter()
        for batch in batches:
            items.update(batch)
        return count * size / (time.perf_counter() - start)


def threaded(folder: Path, threads: int, operations: int) -> float:
    """Sets per second of this many threads."""
    with imap_wal.open(folder.as_uri(), node="n") as store:
        return _run_threads(store, threads, operations)


def _run_threads(store: Store, threads: int, operations: int) -> float:
    items = store.map("m", raw=True)
    each = operations // threads

    def caller(number: int) -> None:
        for count in range(each):
            items[b"key%04d%05d" % (number, count)] = VALUE

    callers = [threading.Thread(target=caller, args=(number,)) for number in range(threads)]
    start = time.perf_counter()
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join()
    return each * threads / (time.perf_counter() - start)


def sqlite(folder: Path, operations: int) -> float:
    """Sets per second of SQLite in WAL mode with synchronous=full, one commit per set."""
    database = sqlite3.connect(folder / "peer.sqlite", isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    database.execute("CREATE TABLE m (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID")
    start = time.perf_counter()
    for number in range(operations):
        database.execute("INSERT OR REPLACE INTO m VALUES (?, ?)", (b"key%09d" % number, VALUE))
    seconds = time.perf_counter() - start
    database.close()
    return operations / seconds


def peer_of(label: str) -> str:
    """What a measurement is compared with."""
    if label.startswith("threads"):
        return "SQLite WAL synchronous=full, 1 thread"
    if label == BESIDE_ASYNCIO:
        return ALONE
    return "asyncio set, 256 in flight" if label.startswith("asyncio add") else "bare loop"


def run(rounds: int, quick: bool) -> list[dict[str, Any]]:
    """All measurements, alternately, so that a slow period of the disk affects all alike. A row
    has the rate, the ratio and the target."""
    scale = 1 if quick else 4
    seen: dict[str, list[float]] = {}
    ratios: dict[str, list[float]] = {}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as name:
            root = Path(name)
            for part in "abcdefghijk":
                (root / part).mkdir()
            data = frame_bytes(root / "a")
            rates = {
                "bare loop, 256 records per fdatasync": bare_loop(root, data, 200 * scale),
                "asyncio set, 256 in flight": asyncio.run(
                    asynchronous(root / "b", 256, 25_600 * scale)
                ),
                "asyncio set on uvloop, 256 in flight": uvloop.run(
                    asynchronous(root / "i", 256, 25_600 * scale)
                ),
                "asyncio set, 2,000 in flight": asyncio.run(
                    asynchronous(root / "c", 2000, 50_000 * scale)
                ),
                "asyncio add to one counter, 256 in flight": asyncio.run(
                    added(root / "k", 256, 25_600 * scale)
                ),
                ALONE: asyncio.run(asyncio_alone(256, 25_600 * scale)),
                "update of 10,000": updates(root / "d", 10 * scale),
                "threads: 1": threaded(root / "e", 1, 1_000 * scale),
                "threads: 16": threaded(root / "f", 16, 4_000 * scale),
                "threads: 64": threaded(root / "g", 64, 6_400 * scale),
                "SQLite WAL synchronous=full, 1 thread": sqlite(root, 1_000 * scale),
            }
            rates[BESIDE_ASYNCIO] = rates["asyncio set, 256 in flight"]
            bare = (
                rates["bare loop, 256 records per fdatasync"] + bare_loop(root, data, 200 * scale)
            ) / 2
            for label, rate in rates.items():
                peer = peer_of(label)
                seen.setdefault(label, []).append(rate)
                ratios.setdefault(label, []).append(rate / rates.get(peer, bare))
    targets = {
        "asyncio set, 256 in flight": 0.2,
        "asyncio set on uvloop, 256 in flight": 0.2,
        "asyncio add to one counter, 256 in flight": 0.5,
        BESIDE_ASYNCIO: 0.6,
        "update of 10,000": 0.5,
        "threads: 1": 1.1,
        "threads: 64": 3.5,
    }
    return [
        {
            "measurement": label,
            "median": round(statistics.median(rates)),
            "least": round(min(rates)),
            "most": round(max(rates)),
            "unit": "records/s",
            "ratio": round(statistics.median(ratios[label]), 3),
            "to": "SQLite" if label.startswith("threads") else peer_of(label).partition(",")[0],
            "target": targets.get(label),
        }
        for label, rates in seen.items()
    ]
