"""Processes that share a stream: each adds to counters that it reads from a database of its own."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import time
from pathlib import Path
from typing import Any

import sqlalchemy as sql
from sqlalchemy import Connection

import imap_wal.stream as stream
from imap_wal.stream import Retries, SqlMarks, Stream, StreamRecord, Transaction

CONTEXT: Any = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.kit.stream_processes"])
COUNTERS = ["a", "b", "c"]


def connected(folder: Path, **options: Any) -> Stream:
    given: dict[str, Any] = {"socket": folder / "socket", "partitions": 2} | options
    return stream.connect(folder / "log", **given)


def engine_of(folder: Path, name: str) -> sql.Engine:
    """The database of one process."""
    engine = sql.create_engine(f"sqlite:///{folder}/{name}.db", connect_args={"timeout": 60})
    with engine.begin() as connection:
        connection.execute(sql.text("create table if not exists counts (name text, amount int)"))
        connection.execute(sql.text("create table if not exists seen (of int, id int)"))
        connection.execute(
            sql.text("create table if not exists applied (of int, id int, who text)")
        )
    return engine


def apply(record: StreamRecord, connection: Connection) -> None:
    name, amount = record.data
    connection.execute(
        sql.text("insert into seen values (:of, :id)"), {"of": record.partition, "id": record.id}
    )
    connection.execute(sql.text("delete from counts where name = :name"), {"name": name})
    connection.execute(
        sql.text("insert into counts values (:name, :amount)"), {"name": name, "amount": amount}
    )


def add(folder: str, name: str, times: int) -> None:
    """Add 1 to each counter, at least so many times and until there is a file `stop`. The journal
    has each addition before and after it."""
    engine = engine_of(Path(folder), name)
    with (Path(folder) / f"{name}.journal").open("a") as journal, connected(Path(folder)) as bank:
        marks = SqlMarks(engine)
        bank.consumer("counts", marks=marks, retries=Retries(pause_s=0.01))(apply)
        for number in itertools.count():
            if number >= times and (Path(folder) / "stop").exists():
                break
            for counter in COUNTERS:

                def built(view: Any, counter: str = counter) -> Transaction:
                    rows = view.all("select amount from counts where name = :name", name=counter)
                    amount = rows[0][0] if rows else 0
                    return Transaction([counter, amount + 1], write=[counter])

                request = f"{name}/{number}/{counter}"
                print(json.dumps({"begin": request}), file=journal, flush=True)
                bank.submit(counter, built, marks="counts", request=request)
                print(json.dumps({"end": request}), file=journal, flush=True)
    engine.dispose()


def follow_shared(folder: str, name: str) -> None:
    """Run a consumer that several processes share, until there is a file `stop`. Its table has who
    has applied each transaction."""
    engine = engine_of(Path(folder), "shared")
    with connected(Path(folder), partitions=6, serve=False) as bank:

        @bank.consumer("shared", marks=SqlMarks(engine), shared=True)
        def note(record: StreamRecord, connection: Connection) -> None:
            connection.execute(
                sql.text("insert into applied values (:of, :id, :who)"),
                {"of": record.partition, "id": record.id, "who": name},
            )

        while not (Path(folder) / "stop").exists():
            time.sleep(0.05)
    engine.dispose()
