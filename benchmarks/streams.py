"""Streams: transactions with locks beside transactions without them and plain appends, a request
beside an outbox in SQLite, conflicts, an open with many locks, and a consumer that writes to
SQLite. With --quick, the open has 100,000 locks instead of 10,000,000."""

from __future__ import annotations

import itertools
import multiprocessing
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import sqlalchemy as sql

import imap_wal
import imap_wal.stream as stream
from benchmarks.rows import compared
from imap_wal.errors import Conflict
from imap_wal.stream import Mark, SqlMarks, StreamRecord, Transaction

CONTEXT: Any = multiprocessing.get_context("spawn")
PROCESSES, THREADS = 4, 64
"""Of clients."""
DATA = b"x" * 100
CONFLICTS_PER_S = 100_000
OPEN_S, OPEN_LOCKS = 10.0, 10_000_000
CONSUMED_PER_S = 50_000
"""The goals."""


def per_s(work: Callable[[int], object], calls: int, threads: int = THREADS) -> float:
    """The rate of `work(number)` by several threads."""
    calls_of_thread = calls // threads

    def run(thread: int) -> None:
        for number in range(calls_of_thread):
            work(thread * calls_of_thread + number)

    running = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    began = time.monotonic()
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return calls_of_thread * threads / (time.monotonic() - began)


def serve_clients(folder: Path, calls: int, repetitions: int) -> dict[str, Any]:
    """Clients in other processes than the one that serves."""
    ours, others = [], []
    with stream.connect(folder / "served", partitions=1) as bank:
        for repetition in range(repetitions):
            for rates, mode in ((ours, "write"), (others, "")):
                before = bank.mark().id
                prefix = f"{mode}{repetition}"
                rates.append(_clients_per_s(folder / "served", calls, mode, prefix))
                assert bank.mark().id == before + calls + THREADS
    row = compared(
        f"submit with a lock, {THREADS} clients of a server",
        ours,
        others,
        "without locks",
        f"{PROCESSES} processes",
        "transactions/s",
    )
    return row | {"target": 0.7}


def _clients_per_s(url: Path, calls: int, mode: str, prefix: str) -> float:
    start = CONTEXT.Barrier(PROCESSES + 1)
    workers = [
        CONTEXT.Process(
            target=_client, args=(str(url), calls // PROCESSES, mode, f"{prefix}/{number}", start)
        )
        for number in range(PROCESSES)
    ]
    for worker in workers:
        worker.start()
    start.wait()
    began = time.monotonic()
    start.wait()
    seconds = time.monotonic() - began
    for worker in workers:
        worker.join()
    return calls / seconds


def _client(url: str, calls: int, mode: str, prefix: str, start: Any) -> None:
    """Each transaction writes a lock of its own, if `mode` is "write"."""
    with stream.connect(url, serve=False) as bank:

        def submit(number: int) -> None:
            locks = [f"{prefix}/{number}"] if mode else []
            mark = Mark(0) if mode else None
            bank.submit(number, Transaction(DATA, write=locks), mark=mark)

        threads = THREADS // PROCESSES
        per_s(lambda number: submit(-1 - number), threads, threads)  # connects
        start.wait()
        per_s(submit, calls, threads)
        start.wait()


def submitted(folder: Path, calls: int, repetitions: int) -> dict[str, Any]:
    """In one process. Each transaction writes a lock of its own."""
    ours, others = [], []
    locks = itertools.count()
    with (
        stream.open(folder / "stream", partitions=1) as bank,
        imap_wal.log.create(folder / "log") as log,
    ):

        def submit(number: int) -> None:
            transaction = Transaction(DATA, write=[f"account:{next(locks)}"])
            bank.submit(number, transaction, mark=Mark(0))

        def append(number: int) -> None:
            log.append("m", (b"%d" % number, DATA))

        for _ in range(repetitions):
            ours.append(per_s(submit, calls))
            others.append(per_s(append, calls))
    return compared(
        f"submit with a lock, {THREADS} threads",
        ours,
        others,
        "appends to a log",
        "",
        "transactions/s",
    )


def requested(folder: Path, calls: int, repetitions: int) -> dict[str, Any]:
    """Each request counts once. Its peer is an outbox: a table of SQLite with a unique name, and a
    sync for each commit."""
    ours, others = [], []
    names = itertools.count()
    mutex = threading.Lock()
    with (
        stream.open(folder / "requests", partitions=1) as bank,
        closing(sqlite3.connect(folder / "outbox.db", check_same_thread=False)) as database,
    ):
        database.execute("pragma journal_mode = wal")
        database.execute("pragma synchronous = full")
        database.execute(
            "create table outbox (id integer primary key, request text unique, data blob)"
        )

        def submit(number: int) -> None:
            bank.submit(number, Transaction(DATA), request=f"r{next(names)}")

        def insert(_: int) -> None:
            name = f"r{next(names)}"
            with mutex, database:  # SQLite has one writer: to wait here is faster than to retry
                database.execute("insert into outbox (request, data) values (?, ?)", (name, DATA))

        for _ in range(repetitions):
            ours.append(per_s(submit, calls))
            others.append(per_s(insert, calls))
    return compared(
        f"submit a request, {THREADS} threads",
        ours,
        others,
        "an outbox in SQLite with UNIQUE",
        "",
        "transactions/s",
    )


def refused(folder: Path, calls: int, repetitions: int) -> dict[str, Any]:
    with stream.open(folder / "refused", partitions=1) as bank:
        bank.submit(0, Transaction(DATA, append=["x"]))
        transaction, old = Transaction(DATA, write=["x"]), Mark(0, 0)

        def submit(_: int) -> None:
            try:
                bank.submit(0, transaction, mark=old)
            except Conflict:
                return
            raise AssertionError("it was appended")

        rates = [per_s(submit, calls, 1) for _ in range(repetitions)]
    goal = f"{CONFLICTS_PER_S:,}/s"
    row = compared("conflicts refused", rates, [CONFLICTS_PER_S] * len(rates), goal, "", "/s")
    return row | {"target": 1}


def opened(folder: Path, locks: int, repetitions: int) -> dict[str, Any]:
    """After a crash and after a clean close, an open reads all rows of locks."""
    url, together = folder / "open", 1000
    options: dict[str, Any] = {"durability": "os", "lock_table_bytes": 2**33}
    with stream.open(url, partitions=1, **options) as bank:
        for start in range(0, locks, together):
            names = [f"account:{number}" for number in range(start, start + together)]
            bank.submit(0, Transaction(DATA, append=names))
        bank.archive()
    rates = []
    for _ in range(repetitions):
        began = time.monotonic()
        with stream.open(url, **options):
            rates.append(locks / (time.monotonic() - began))
    goal = OPEN_LOCKS / OPEN_S
    name = f"{OPEN_LOCKS:,} locks in {OPEN_S:g} s"
    row = compared(f"open with {locks:,} locks", rates, [goal] * len(rates), name, "", "locks/s")
    return row | {"target": 1}


def consumed(folder: Path, count: int, repetitions: int) -> list[dict[str, Any]]:
    """A consumer inserts each transaction into SQLite, in batches; SQLite alone does the same."""
    with stream.open(folder / "consumed", partitions=1, durability="os") as bank:
        per_s(lambda number: bank.submit(0, Transaction(number)), count)
        count = bank.mark().id  # a multiple of the threads
    ours, others = [], []
    for repetition in range(repetitions):
        engine = sql.create_engine(f"sqlite:///{folder}/view-{repetition}.db")
        with engine.begin() as connection:
            connection.execute(sql.text("pragma journal_mode = wal"))
            connection.execute(sql.text("create table seen (id integer primary key, data integer)"))

        def insert(record: StreamRecord, connection: Any) -> None:
            cursor = connection.connection.cursor()
            cursor.execute("insert into seen values (?, ?)", (record.id, record.data))

        with stream.open(folder / "consumed", read_only=True) as reader:
            began = time.monotonic()
            reader.consumer("c", marks=SqlMarks(engine))(insert)
            reader.wait("c", Mark(0, count), 600)
            ours.append(count / (time.monotonic() - began))
        engine.dispose()
        others.append(_alone(folder / f"alone-{repetition}.db", count))
    batches = "batches of 1,000"
    row = compared(
        "a consumer into SQLite",
        ours,
        [CONSUMED_PER_S] * repetitions,
        f"{CONSUMED_PER_S:,}/s",
        batches,
        "transactions/s",
    )
    alone = compared(
        "rows into SQLite alone", others, ours, "a consumer into SQLite", batches, "rows/s"
    )
    return [row | {"target": 1}, alone]


def _alone(path: Path, count: int) -> float:
    with closing(sqlite3.connect(path)) as database:
        database.execute("pragma journal_mode = wal")
        database.execute("create table seen (id integer primary key, data integer)")
        began = time.monotonic()
        for start in range(0, count, 1000):
            with database:
                for number in range(start, start + 1000):
                    database.execute("insert into seen values (?, ?)", (number, number))
        return count / (time.monotonic() - began)


def run(repetitions: int, quick: bool) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        return [
            serve_clients(folder, 6400 if quick else 64_000, repetitions),
            submitted(folder, 6400 if quick else 64_000, repetitions),
            requested(folder, 1280 if quick else 12_800, repetitions),
            refused(folder, 20_000 if quick else 200_000, repetitions),
            opened(folder, 100_000 if quick else OPEN_LOCKS, repetitions),
            *consumed(folder, 20_000 if quick else 200_000, repetitions),
        ]
