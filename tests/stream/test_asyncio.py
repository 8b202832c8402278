"""Streams in asyncio."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sql

import imap_wal.stream as stream
from imap_wal.errors import Closed, Conflict, Fenced, InvalidSetting
from imap_wal.stream import AsyncStream, FileMarks, SqlMarks, StreamRecord, Transaction
from tests.kit.ports import free_port
from tests.kit.stream_servers import served


@pytest.mark.parametrize("kind", ["open", "connect", "tcp"])
def test_tasks_submit_and_read(tmp_path: Path, kind: str) -> None:
    """More tasks than threads; their transactions share commits."""
    url = f"tcp://127.0.0.1:{free_port()}"
    log = tmp_path / "log"

    async def run() -> None:
        if kind == "open":
            opening: Any = stream.aopen(log, partitions=2)
        elif kind == "connect":
            opening = stream.aconnect(log, partitions=2, socket=tmp_path / "s")
        else:
            opening = stream.aconnect(url)
        async with opening as bank:
            partition = bank.partition_of("a")
            marks = await asyncio.gather(
                *(bank.submit("a", Transaction(n), request=f"r{n}") for n in range(200))
            )
            assert sorted(mark.id for mark in marks) == list(range(1, 201))
            records = [record async for record in bank.read(partition)]
            assert [records[mark.id - 1].data for mark in marks] == list(range(200))
            rest = [record async for record in bank.read(partition, records[149].mark)]
            assert rest == records[150:]
            assert await bank.mark(partition) == records[-1].mark
            again = await bank.submit("a", Transaction(7), request="r7")
            assert again is not None
            assert again[:2] == marks[7][:2]
            with pytest.raises(Conflict):
                await bank.submit(
                    "b", Transaction(1, read=["x"]), mark=await _written(bank, "b", "x")
                )
            assert await bank.archive() > 0
        with pytest.raises(Closed):
            await bank.submit("a", Transaction(1))

    if kind == "tcp":
        with served(tmp_path, url, None):
            asyncio.run(run())
    else:
        asyncio.run(run())


async def _written(bank: AsyncStream, header: str, lock: str) -> stream.Mark:
    """The mark before a transaction that wrote the lock."""
    before = await bank.mark(bank.partition_of(header))
    await bank.submit(header, Transaction(0, append=[lock]))
    return before


def test_consumers_call_plain_and_coroutine_functions(tmp_path: Path) -> None:
    engine = sql.create_engine(f"sqlite:///{tmp_path}/views.db")
    with engine.begin() as connection:
        connection.execute(sql.text("create table sums (value int)"))

    async def run() -> None:
        seen: list[Any] = []
        async with stream.aopen(tmp_path / "log", partitions=1) as bank:

            @bank.consumer("seen", marks=FileMarks(tmp_path / "marks"))
            async def note(record: StreamRecord) -> None:
                await asyncio.sleep(0)
                seen.append(record.data)

            @bank.consumer("sums", marks=SqlMarks(engine))
            def add(record: StreamRecord, connection: sql.Connection) -> None:
                text = sql.text("insert into sums values (:value)")
                connection.execute(text, {"value": record.data})

            def next_number(view: Any) -> Transaction:
                total = view.one("select count(*) as n from sums").n
                return Transaction(total + 1, write=["sum"])

            marks = await asyncio.gather(
                *(bank.submit("a", next_number, marks="sums") for _ in range(5))
            )
            last = max((mark for mark in marks if mark is not None), key=lambda mark: mark.id)
            assert await bank.wait("seen", last)
            assert await bank.wait("sums", last)
            assert seen == [1, 2, 3, 4, 5]
            assert {name: status.lag for name, status in (await bank.consumers()).items()} == {
                "seen": 0,
                "sums": 0,
            }
            rows = (await bank.progress()).consumers
            assert [(row.consumer, row.mark, row.lag) for row in rows] == [
                ("seen", 5, 0),
                ("sums", 5, 0),
            ]
            with pytest.raises(InvalidSetting, match="needs FileMarks"):
                bank.consumer("other", marks=SqlMarks(engine))(note)

    asyncio.run(run())
    engine.dispose()


def test_a_close_does_not_wait_for_a_thread(tmp_path: Path) -> None:
    """All threads are in use by calls that wait for longer."""

    async def run() -> None:
        bank = await stream.aopen(tmp_path / "log", partitions=1)
        bank.consumer("never", marks=FileMarks(tmp_path / "marks"))(lambda record: None)
        mark = await bank.submit("a", Transaction(1))
        assert mark is not None
        later = mark._replace(id=5, position="")
        waits = [asyncio.create_task(bank.wait("never", later, 60.0)) for _ in range(200)]
        await asyncio.sleep(0)
        begin = time.monotonic()
        await bank.close()
        await bank.close()
        assert time.monotonic() - begin < 30
        answers = await asyncio.gather(*waits, return_exceptions=True)
        assert {type(answer) for answer in answers} <= {Closed, asyncio.CancelledError}

    asyncio.run(run())


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        async with stream.aopen(tmp_path / "log", partitions=1) as bank:
            child = os.fork()
            if not child:
                try:
                    bank._called(lambda: None).send(None)
                except Fenced:
                    os._exit(7)
                finally:
                    os._exit(1)
            _, status = await asyncio.to_thread(os.waitpid, child, 0)
            assert os.waitstatus_to_exitcode(status) == 7

    asyncio.run(run())
