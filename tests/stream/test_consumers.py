"""Consumers: each transaction counts once, in order, and one that cannot be applied is not lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sql
from sqlalchemy import Connection, Engine

import imap_wal
import imap_wal.stream as stream
from imap_wal.embedded.transaction import Transaction as MapTransaction
from imap_wal.errors import Closed, Conflict, InvalidSetting, LostRace, OtherHistory, ReadOnly
from imap_wal.stream import (
    FileMarks,
    MapMarks,
    Mark,
    Retries,
    SqlMarks,
    Stream,
    StreamRecord,
    Transaction,
)
from imap_wal.stream.marks import Marks
from storage_backends.memory import MemoryStore
from tests.kit.effort import every, share
from tests.support import Threads, eventually

NO_RETRY = Retries(attempts=0)
QUICK = Retries(attempts=3, pause_s=0.001)


def opened(store: Any, **options: Any) -> Stream:
    return stream.open("memory://stream", **{"partitions": 1, "storage": store} | options)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = database(tmp_path)
    yield engine
    engine.dispose()


def database(folder: Path) -> Engine:
    engine = sql.create_engine(f"sqlite:///{folder}/view.db", connect_args={"timeout": 60})
    with engine.begin() as connection:
        connection.execute(sql.text("create table if not exists seen(id integer, data integer)"))
    return engine


def insert(record: StreamRecord, connection: Connection) -> None:
    connection.execute(
        sql.text("insert into seen values (:id, :data)"), {"id": record.id, "data": record.data}
    )


def seen(engine: Engine) -> list[int]:
    with engine.connect() as connection:
        return [
            row.id for row in connection.execute(sql.text("select id from seen order by rowid"))
        ]


class _Kept:
    """A consumer that remembers what it was called with, with each kind of marks."""

    def __init__(self, marks: Marks) -> None:
        self.marks, self.ids = marks, list[int]()

    def __call__(self, record: StreamRecord, *_: Any) -> None:
        self.ids.append(record.id)


@pytest.fixture(params=["sql", "map", "file"])
def kept(request: pytest.FixtureRequest, tmp_path: Path, engine: Engine) -> Iterator[_Kept]:
    if request.param == "sql":
        yield _Kept(SqlMarks(engine))
    elif request.param == "file":
        yield _Kept(FileMarks(tmp_path / "marks"))
    else:
        with imap_wal.open(tmp_path / "maps") as store:
            yield _Kept(MapMarks(store))


@every(2)
def test_a_consumer_continues_at_its_mark(memory: MemoryStore, kept: _Kept) -> None:
    """From the first transaction, in order, over reopens, with new ones while it runs."""
    expected = 0
    for _ in range(3):
        with opened(memory) as bank:
            for _ in range(5):
                bank.submit(0, Transaction(0))
            bank.consumer("c", marks=kept.marks)(kept)
            for _ in range(5):
                mark = bank.submit(0, Transaction(0))
            assert mark is not None and bank.wait("c", mark)
            expected += 10
            assert kept.ids == list(range(1, expected + 1))
            status = bank.consumers["c"]
            assert (status.applied, status.lag, status.marks[0]) == (10, 0, mark)
            assert kept.marks.load("c", 0) == mark and kept.marks.load("other", 0) == Mark(0)


def test_another_process_that_applies_too_is_noticed(memory: MemoryStore, kept: _Kept) -> None:
    """Its transactions are not applied again."""
    with opened(memory) as bank:
        for _ in range(3):
            bank.submit(0, Transaction(0))
        first, *others = list(bank.read())
        kept.marks.apply("c", Mark(0), [first], lambda *_: None)
        with pytest.raises(LostRace, match="another process applies it too"):
            kept.marks.apply("c", Mark(0), [first], lambda *_: None)
        bank.consumer("c", marks=kept.marks)(kept)
        assert bank.wait("c", others[-1].mark)
        assert kept.ids == [2, 3]


@pytest.mark.parametrize("marks", ["sql", "map"])
def test_a_function_that_fails_leaves_no_change(
    memory: MemoryStore, tmp_path: Path, engine: Engine, marks: str
) -> None:
    """It is called again, alone, and then counts once."""
    failures = iter([False, True, False, False, True, True, False, False, False])
    with imap_wal.open(tmp_path / "maps") as store, opened(memory) as bank:
        m = store.map("seen")

        def of_sql(record: StreamRecord, connection: Connection) -> None:
            insert(record, connection)
            if next(failures, False):
                raise RuntimeError("not now")

        def of_map(record: StreamRecord, transaction: MapTransaction) -> None:
            transaction[m]["ids"] = [*transaction[m].get("ids", []), record.id]
            if next(failures, False):
                raise RuntimeError("not now")

        for _ in range(5):
            mark = bank.submit(0, Transaction(0))
        assert mark is not None
        if marks == "sql":
            bank.consumer("c", marks=SqlMarks(engine), retries=QUICK)(of_sql)
            assert bank.wait("c", mark) and seen(engine) == [1, 2, 3, 4, 5]
        else:
            bank.consumer("c", marks=MapMarks(store), retries=QUICK)(of_map)
            assert bank.wait("c", mark) and m["ids"] == [1, 2, 3, 4, 5]
        assert bank.consumers["c"].applied == 5


def test_a_transaction_that_cannot_be_applied_stops_the_consumer(
    memory: MemoryStore, engine: Engine
) -> None:
    """Those before it are applied. Nothing after it is, and nothing is passed over."""

    def apply(record: StreamRecord, connection: Connection) -> None:
        insert(record, connection)
        if record.data == 3:
            raise ValueError("three")

    with opened(memory) as bank:
        for number in range(1, 6):
            mark = bank.submit(0, Transaction(number))
        assert mark is not None
        bank.consumer("c", marks=SqlMarks(engine), retries=QUICK)(apply)
        with pytest.raises(ValueError, match="three"):
            bank.wait("c", mark)
        assert seen(engine) == [1, 2]
        assert bank.consumers["c"].failure == "ValueError('three')"
        assert bank.consumers["c"].lag == 3
        bank.submit(0, Transaction(6))  # the stream works on
    asked: list[int] = []

    def skip(record: StreamRecord, error: Exception) -> bool:
        assert isinstance(error, ValueError)
        asked.append(record.id)
        return True

    with opened(memory) as bank:
        bank.consumer("c", marks=SqlMarks(engine), retries=NO_RETRY, on_error=skip)(apply)
        assert bank.wait("c", bank.mark())
        status = bank.consumers["c"]
        assert (asked, seen(engine)) == ([3], [1, 2, 4, 5, 6])
        assert (status.applied, status.skipped) == (3, 1)


def test_an_increment_of_two_authors_is_never_lost(memory: MemoryStore, engine: Engine) -> None:
    """The counter is built from a view that may be old; then it is built again."""

    def increment(view: Any) -> Transaction:
        row = view.one("select max(data) as value from seen")
        return Transaction((row.value or 0) + 1, write=["counter"])

    with opened(memory) as bank:
        bank.consumer("c", marks=SqlMarks(engine))(insert)

        def author() -> None:
            for _ in range(20):
                bank.submit(0, increment, marks="c")

        Threads(author, author, author).join()
        assert [record.data for record in bank.read()] == list(range(1, 61))


def test_a_balance_never_falls_below_zero(memory: MemoryStore, tmp_path: Path) -> None:
    with imap_wal.open(tmp_path / "maps") as store, opened(memory) as bank:
        balances = store.map("balances")
        balances["ann"] = 10

        @bank.consumer("balances", marks=MapMarks(store))
        def apply(record: StreamRecord, transaction: MapTransaction) -> None:
            transaction[balances]["ann"] += record.data

        def withdraw(view: Any) -> Transaction | None:
            return Transaction(-1, write=["ann"]) if balances["ann"] >= 1 else None

        results: list[Mark | None] = []

        def author() -> None:
            results.extend(bank.submit("ann", withdraw, marks="balances") for _ in range(8))

        Threads(author, author).join()
        assert bank.wait("balances", bank.mark()) and balances["ann"] == 0
        assert len([mark for mark in results if mark]) == 10


def test_an_author_without_a_newer_view_gets_the_conflict(
    memory: MemoryStore, engine: Engine
) -> None:
    over = threading.Event()

    def apply(record: StreamRecord, connection: Connection) -> None:
        over.wait(20)

    with opened(memory) as bank:
        bank.consumer("c", marks=SqlMarks(engine))(apply)
        bank.submit(0, Transaction(1, append=["x"]))
        with pytest.raises(Conflict):
            bank.submit(0, lambda _: Transaction(2, write=["x"]), marks="c", timeout_s=0.05)
        over.set()


@pytest.mark.parametrize("name", ["", "a/b", "..", "é", "x" * 201, 7])
def test_names_of_consumers_are_checked(memory: MemoryStore, kept: _Kept, name: Any) -> None:
    with opened(memory) as bank:
        with pytest.raises(InvalidSetting, match="the name of a consumer"):
            bank.consumer(name, marks=kept.marks)(kept)
        bank.consumer("c", marks=kept.marks)(kept)
        with pytest.raises(InvalidSetting, match="there is a consumer 'c' already"):
            bank.consumer("c", marks=kept.marks)(kept)


_KILLED = """
import sys, threading, imap_wal.stream as stream
from pathlib import Path
from tests.stream.test_consumers import database, insert, SqlMarks, Transaction
folder = Path(sys.argv[1])
bank = stream.open(folder / "log", partitions=1)
bank.consumer("c", marks=SqlMarks(database(folder)), batch=3)(insert)
for number in range(int(sys.argv[2]), 10**6):
    bank.submit(0, Transaction(number, append=["x"]), request=f"author/{number}")
    print(number, flush=True)
"""


def test_several_processes_create_the_table_of_marks(engine: Engine) -> None:
    """Another one creates it between the look and the creation. Other errors are raised."""
    create_all = sql.MetaData.create_all

    def late(metadata: sql.MetaData, bind: Engine) -> None:
        create_all(metadata, bind)
        create_all(metadata, bind, checkfirst=False)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sql.MetaData, "create_all", late)
        assert SqlMarks(engine).load("c", 0) == Mark(0)
    with pytest.raises(sql.exc.OperationalError):
        SqlMarks(sql.create_engine("sqlite:////none/of/these.db"))


def test_a_kill_between_any_two_steps_loses_and_repeats_nothing(tmp_path: Path) -> None:
    """The author repeats its last request. `kill -9` of the process, with its consumer."""
    last = 1
    for round_number in range(share(4, ci=50)):
        command = [sys.executable, "-c", _KILLED, str(tmp_path), str(last)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(20 + 7 * round_number):
                last = int(process.stdout.readline())
            os.kill(process.pid, signal.SIGKILL)
    with stream.open(tmp_path / "log", partitions=1) as bank:
        records = list(bank.read())
        assert [record.data for record in records] == list(range(1, len(records) + 1))
        assert len(records) >= last
        engine = database(tmp_path)
        bank.consumer("c", marks=SqlMarks(engine))(insert)
        assert bank.wait("c", bank.mark())
        assert seen(engine) == list(range(1, len(records) + 1))
        engine.dispose()


def test_a_consumer_continues_after_its_log_was_opened_again(
    memory: MemoryStore, engine: Engine
) -> None:
    from storage_backends.faults import Fault, FaultyStore, Plan

    opened(memory).close()
    with opened(FaultyStore(memory, Plan((Fault("error", 6, "sync"),)))) as bank:
        bank.consumer("c", marks=SqlMarks(engine))(insert)
        for number in range(1, 11):
            mark = bank.submit(0, Transaction(number), request=f"author/{number}")
        assert mark is not None
        eventually(lambda: seen(engine) == list(range(1, 11)), "all are applied")


def test_a_consumer_in_another_process_reads_only(tmp_path: Path, kept: _Kept) -> None:
    """It finds the stream, and what is appended later, without a lock."""
    with stream.open(tmp_path / "log", partitions=2) as bank:
        first = bank.submit("a", Transaction(1))
        with stream.open(tmp_path / "log", read_only=True) as other:
            other.consumer("c", marks=kept.marks)(kept)
            last = bank.submit("a", Transaction(2))
            assert first is not None and last is not None and other.wait("c", last)
            assert kept.ids == [1, 2] and other.mark(last.partition) == last
            assert [record.data for record in other.read(last.partition, first)] == [2]
            with pytest.raises(ReadOnly):
                other.submit("a", Transaction(3))
            with pytest.raises(ReadOnly):
                other.archive()
        with pytest.raises(Closed):
            list(other.read(last.partition))


def test_a_repeated_request_is_known_before_its_function_runs(
    memory: MemoryStore, engine: Engine
) -> None:
    """In a view that has the transaction, the function would return None."""

    def once(view: Any) -> Transaction | None:
        paid = view.one("select count(*) as n from seen").n
        return None if paid else Transaction(1, write=["x"])

    with opened(memory) as bank:
        bank.consumer("c", marks=SqlMarks(engine))(insert)
        mark = bank.submit(0, once, marks="c", request="pay")
        assert mark is not None and bank.wait("c", mark)
        assert bank.submit(0, once, marks="c", request="pay") == mark
        assert bank.submit(0, once, marks="c", request="another") is None


def test_nothing_to_do_is_not_said_of_an_old_view(memory: MemoryStore, engine: Engine) -> None:
    """An author sees what was acknowledged before its call."""

    asked = threading.Event()

    def withdraw(view: Any) -> Transaction | None:
        deposits = view.one("select count(*) as n from seen").n
        asked.set()
        return Transaction(-1, write=["x"]) if deposits else None

    def late(record: StreamRecord, connection: Connection) -> None:
        assert asked.wait(20)
        insert(record, connection)

    with opened(memory) as bank:
        bank.consumer("c", marks=SqlMarks(engine))(late)
        bank.submit(0, Transaction(1, append=["x"]))
        assert bank.submit(0, withdraw, marks="c") is not None


def test_a_view_of_a_log_that_is_gone_is_refused(tmp_path: Path, kept: _Kept) -> None:
    """Its database was kept, and the log is new: nothing is applied, and nothing built on it."""
    with stream.open(tmp_path / "log", partitions=1) as bank:
        bank.consumer("c", marks=kept.marks)(kept)
        old = bank.submit(0, Transaction(1))
        assert old is not None and bank.wait("c", old)
    with stream.open(tmp_path / "new", partitions=1) as bank:
        for _ in range(3):
            new = bank.submit(0, Transaction(2))
        assert new is not None
        bank.consumer("c", marks=kept.marks)(kept)
        with pytest.raises(OtherHistory):
            bank.wait("c", new)
        with pytest.raises(OtherHistory):
            bank.submit(0, lambda _: Transaction(3, write=["x"]), marks="c")
        assert kept.ids == [1] and bank.mark() == new


def test_a_function_that_ends_the_sql_transaction_is_refused(
    memory: MemoryStore, engine: Engine
) -> None:
    """Otherwise its mark could be stored without what follows."""

    def commit(record: StreamRecord, connection: Connection) -> None:
        insert(record, connection)
        if record.id == 2:
            connection.commit()

    with opened(memory) as bank:
        for number in range(5):
            mark = bank.submit(0, Transaction(number))
        assert mark is not None
        bank.consumer("c", marks=SqlMarks(engine), retries=NO_RETRY)(commit)
        with pytest.raises(InvalidSetting, match="must not commit or roll back"):
            bank.wait("c", mark)
        assert SqlMarks(engine).load("c", 0).id < 2 and seen(engine) == [1, 2]


@every(4)
@pytest.mark.parametrize("error", [OSError, Closed, LostRace])
def test_any_error_of_a_function_stops_its_consumer(
    memory: MemoryStore, kept: _Kept, error: type[Exception]
) -> None:
    """Errors of the same classes from storages and marks do not."""

    def fail(*_: Any) -> None:
        raise error("of the function")

    with opened(memory) as bank:
        mark = bank.submit(0, Transaction(1))
        assert mark is not None
        bank.consumer("c", marks=kept.marks, retries=QUICK)(fail)
        with pytest.raises(error, match="of the function"):
            bank.wait("c", mark)


@every(2)
def test_a_reader_of_a_stream_that_is_being_created_waits(memory: MemoryStore, kept: _Kept) -> None:
    """One of its two partitions is there."""
    imap_wal.log.create(memory.url, storage=memory, cluster="stream", node="0-of-2").close()
    with opened(memory, partitions=None, read_only=True) as reader:
        reader.consumer("c", marks=kept.marks)(kept)
        with opened(memory, partitions=2) as bank:
            marks = [bank.submit(number, Transaction(1)) for number in range(4)]
            assert {mark.partition for mark in marks if mark} == {0, 1}
            assert all(mark and reader.wait("c", mark) for mark in marks)
