"""Histories of several authors, servers that are taken over, and requests that are repeated: in the
order of ids, each transaction has read what the transactions before it have written."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import sqlalchemy as sql
from sqlalchemy import Connection

import imap_wal.stream as stream
from imap_wal.errors import Closed, Conflict, Fenced, ImapWalError, OutcomeUnknown
from imap_wal.stream import SqlMarks, Stream, StreamRecord, Transaction
from tests.support import Threads

ACCOUNTS = ["a", "b", "c", "d"]
AUTHORS, EACH = 6, 12


def _apply(record: StreamRecord, connection: Connection) -> None:
    for name, amount in record.data["wrote"].items():
        connection.execute(
            sql.text("update balances set amount = :amount where name = :name"),
            {"name": name, "amount": amount},
        )


class _World:
    """The stream that is served now, and its view in a database."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        url = f"sqlite:///{folder}/view.db"
        self.engine = sql.create_engine(url, connect_args={"timeout": 60})
        with self.engine.begin() as connection:
            connection.execute(sql.text("pragma journal_mode = wal"))
            connection.execute(sql.text("create table balances (name text, amount integer)"))
            for name in ACCOUNTS:
                connection.execute(sql.text("insert into balances values (:n, 10)"), {"n": name})
        self.former: list[Stream] = []
        self.bank = self._served()

    def _served(self, **options: Any) -> Stream:
        bank = stream.open(self.folder / "log", partitions=1, durability="os", **options)
        bank.consumer("balances", marks=SqlMarks(self.engine))(_apply)
        return bank

    def take_over(self) -> None:
        self.former.append(self.bank)
        self.bank = self._served(takeover=True)

    def close(self) -> None:
        for bank in (*self.former, self.bank):
            try:
                bank.close()
            except Fenced:
                pass
        self.engine.dispose()


def _author(world: _World, number: int, seed: int, twice: list[str]) -> None:
    chance = random.Random(seed * 100 + number)

    for round_number in range(EACH):
        read, write = chance.sample(ACCOUNTS, 2)
        amount, request = chance.randrange(1, 4), f"author {number}/{round_number}"

        def build(
            view: Any, read: str = read, write: str = write, amount: int = amount
        ) -> Transaction:
            rows = dict(view.all("select name, amount from balances"))
            after = {read: rows[read] - amount, write: rows[write] + amount}
            return Transaction(
                {"read": {name: rows[name] for name in after}, "wrote": after}, write=[*after]
            )

        ids = set()
        for _ in range(2 if chance.random() < 0.3 else 1):
            while True:
                bank = world.bank
                try:
                    mark = bank.submit("bank", build, marks="balances", request=request)
                except (Fenced, Closed, Conflict, OutcomeUnknown):
                    continue
                except ImapWalError:
                    if bank is world.bank:
                        raise
                    continue
                assert mark is not None
                ids.add(mark.id)
                break
        if len(ids) > 1:
            twice.append(request)


def test_every_history_has_the_order_of_its_ids(tmp_path: Path, seed: int) -> None:
    world, twice, done = _World(tmp_path), list[str](), threading.Event()

    def authors() -> None:
        works = [
            lambda number=number: _author(world, number, seed, twice) for number in range(AUTHORS)
        ]
        try:
            Threads(*works).join(120)
        finally:
            done.set()

    def servers() -> None:
        after = 12
        while not done.wait(0.005):
            if world.bank.mark().id >= after:
                world.take_over()
                after += 12

    try:
        Threads(authors, servers).join(150)
        records = list(world.bank.read())
        assert world.bank.wait("balances", world.bank.mark())
        with world.engine.connect() as connection:
            stored = connection.execute(sql.text("select name, amount from balances")).all()
    finally:
        world.close()
    assert world.former and not twice
    assert len(records) == AUTHORS * EACH == len({record.request for record in records})
    assert [record.id for record in records] == list(range(1, len(records) + 1))
    balances = dict.fromkeys(ACCOUNTS, 10)
    for record in records:
        assert {name: balances[name] for name in record.data["read"]} == record.data["read"]
        balances |= record.data["wrote"]
    assert dict(stored) == balances and sum(balances.values()) == 10 * len(ACCOUNTS)
