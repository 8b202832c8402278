"""The operations that work when a part of the storage is down: the table of docs/log.md, cell by
cell."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from imap_wal import errors, log
from imap_wal.errors import ImapWalError
from imap_wal.log import Log, LogReader, Position
from storage_backends.faults import Fault, FaultyStore, Plan
from storage_backends.memory import MemoryStore
from tests.kit.effort import every
from tests.support import copy_files

PAGE = Path(__file__).parents[2] / "docs/log.md"
WRITES = "append|sync|open_append|truncate|replace|create|create_from|delete"
DOWN = {
    "segments cannot be written": (
        Fault("error", kind=WRITES, path="*/wal/*", times=0),
        Fault("error", kind=WRITES, path="*/archive/*", times=0),
    ),
    "manifests cannot be written": (Fault("error", kind=WRITES, path="*/manifest/*", times=0),),
    "manifests cannot be reached": (Fault("error", path="*/manifest*", times=0),),
}


def table() -> Iterator[tuple[str, str, str]]:
    rows = [
        re.split(r"\s*\|\s*", line.strip("| \n"))
        for line in PAGE.read_text(encoding="utf-8").split("## What works")[1].splitlines()
        if "|" in line
    ]
    heads, _, *cells = rows
    for operation, *outcomes in cells:
        yield from (
            (operation, what, outcome) for what, outcome in zip(heads[-3:], outcomes, strict=True)
        )


class Bench:
    """A log of five entries over a storage of which parts can fail. A segment has room for two
    entries."""

    def __init__(self, name: str) -> None:
        self.inner = MemoryStore(name)
        self.storage = FaultyStore(self.inner)
        self.acknowledged: list[Position] = []
        self.log = self.create()
        for _ in range(5):
            self.append()

    def options(self, storage: object, node: str = "log") -> dict[str, Any]:
        return {"storage": storage, "node": node, "segment_bytes": 200, "preallocate": False}

    def create(self, node: str = "log") -> Log:
        return log.create("memory://", **self.options(self.storage, node))

    def open(self) -> Log:
        return log.open("memory://", **self.options(self.storage))

    def reader(self) -> LogReader:
        return LogReader("memory://", storage=self.storage)

    def append(self) -> None:
        self.acknowledged.append(self.log.append("m", (b"k", b"x" * 20)))

    def take_down(self, what: str) -> None:
        self.storage.plan = Plan(DOWN[what])
        self.storage._seen = [0] * len(DOWN[what])

    def mend(self) -> None:
        self.storage.plan = Plan()


Act = Callable[[], None]


def act_create(bench: Bench) -> Act:
    return lambda: bench.create("another").close()


def act_open_clean(bench: Bench) -> Act:
    bench.log.close()
    return lambda: setattr(bench, "log", bench.open())


def act_open_crashed(bench: Bench) -> Act:
    bench.inner = copy_files(bench.inner)
    bench.storage = FaultyStore(bench.inner)
    return lambda: setattr(bench, "log", bench.open())


def act_append(bench: Bench) -> Act:
    return bench.append


def act_append_first(bench: Bench) -> Act:
    bench.log.rotate()
    return bench.append


def act_append_full(bench: Bench) -> Act:
    def act() -> None:
        for _ in range(4):
            bench.append()

    return act


def act_read(bench: Bench) -> Act:
    def act() -> None:
        assert [record.position for record in bench.reader().read()] == bench.acknowledged
        assert [record.position for record in bench.log.read()] == bench.acknowledged

    return act


def act_read_archive(bench: Bench) -> Act:
    assert bench.log.archive() == 5
    bench.append()
    return act_read(bench)


def act_tail_begins(bench: Bench) -> Act:
    def act() -> None:
        tail = bench.reader().tail(poll_s=0.001)
        assert [next(tail).position for _ in bench.acknowledged] == bench.acknowledged

    return act


def act_tail_continues(bench: Bench) -> Act:
    tail = bench.reader().tail(poll_s=0.001)
    seen = [next(tail).position for _ in range(4)]

    def act() -> None:
        with suppress(ImapWalError):  # it may not be possible to append
            for _ in range(6):
                bench.append()
        while len(seen) < len(bench.acknowledged):
            seen.append(next(tail).position)
        assert seen == bench.acknowledged

    return act


def act_shrink(bench: Bench) -> Act:
    bench.log.rotate()
    return lambda: [bench.log.shrink(bench.acknowledged[1], uncovered=True)].clear()


ACTS: dict[str, Callable[[Bench], Act]] = {
    "create": act_create,
    "open after a clean close": act_open_clean,
    "open after a crash": act_open_crashed,
    "append": act_append,
    "append that begins a segment": act_append_first,
    "append to a full segment": act_append_full,
    "sync": lambda bench: bench.log.sync,
    "rotate": lambda bench: bench.log.rotate,
    "read": act_read,
    "read from an archive": act_read_archive,
    "tail that begins": act_tail_begins,
    "tail that continues, over a rotation": act_tail_continues,
    "archive": lambda bench: lambda: [bench.log.archive()].clear(),
    "shrink": act_shrink,
    "close": lambda bench: bench.log.close,
}


def test_the_page_has_a_row_for_every_operation() -> None:
    assert list(dict.fromkeys(operation for operation, *_ in table())) == list(ACTS)


@every(4)
@pytest.mark.parametrize(("operation", "what", "outcome"), list(table()))
def test_operations_during_an_outage_end_as_the_table_says(
    operation: str, what: str, outcome: str, memory: MemoryStore
) -> None:
    bench = Bench(f"{memory.url}-{operation}-{what}")
    act = ACTS[operation](bench)
    bench.take_down(what)
    if outcome == "works":
        act()
    else:
        with pytest.raises(ImapWalError) as raised:
            act()
        assert type(raised.value) is getattr(errors, outcome), raised.value
    bench.mend()
    removed = 2 if operation == "shrink" else 0
    with suppress(ImapWalError):
        bench.log.close()
    bench.log = log.open("memory://", **bench.options(FaultyStore(bench.inner)))
    bench.append()
    found = [record.position for record in LogReader("memory://", storage=bench.inner).read()]
    assert found == sorted(found)
    assert set(bench.acknowledged[removed:]) <= set(found), "something acknowledged was lost"
    assert len(set(found) - set(bench.acknowledged)) <= 1, "at most the entry in doubt"
    bench.log.close()
