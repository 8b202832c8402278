"""Processes that run one consumer share its partitions."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import imap_wal
import imap_wal.stream as stream
from imap_wal.errors import InvalidSetting
from imap_wal.stream import FileMarks, MapMarks, Transaction
from imap_wal.stream.shares import LEASE_S, Shares
from storage_backends.memory import MemoryStore
from tests.kit.stream_processes import CONTEXT, connected, engine_of, follow_shared
from tests.support import FakeClock, eventually

PROCESSES = [bytes([number]) * 16 for number in range(4)]


@given(
    st.integers(1, 9),
    st.lists(
        st.tuples(st.sampled_from(PROCESSES), st.sampled_from(["ask", "leave", "die", "pass"])),
        max_size=40,
    ),
)
@example(4, [(PROCESSES[3], "ask"), (PROCESSES[3], "die")])
@example(4, [(PROCESSES[0], "ask"), (PROCESSES[1], "ask")])
def test_each_partition_has_one_process_in_the_end(
    partitions: int, steps: list[tuple[bytes, str]]
) -> None:
    """Processes ask, leave, and die without leaving. No partition is given to a process while
    another one that is alive applies it, and soon all partitions have a process, evenly."""
    clock = FakeClock()
    shares, allowed = Shares(partitions, clock), dict[bytes, list[int]]()
    applied: dict[bytes, set[int]] = {}
    """What each may still do: a process that may apply less needs a moment to end a batch."""

    def ask(process: bytes) -> None:
        before = allowed.get(process, [])
        after = allowed[process] = shares.ask(process, before)
        taken = {number for other in applied if other != process for number in applied[other]}
        assert not taken & {*after}
        applied[process] = {*before, *after}

    def end(process: bytes) -> None:
        allowed.pop(process, None)
        applied.pop(process, None)

    for process, what in steps:
        if what == "ask":
            ask(process)
        elif what == "leave":
            end(process)
            shares.leave(process)
        elif what == "die":
            end(process)
        for other in [*allowed]:  # the others continue
            clock.advance(0.1)
            ask(other)
    clock.advance(LEASE_S)  # all of them were stopped
    allowed.clear()
    applied.clear()
    for _ in range(5):
        for process in PROCESSES[:3]:
            ask(process)
            clock.advance(LEASE_S / 10)
    owned = Counter(number for numbers in allowed.values() for number in numbers)
    assert owned == Counter(range(partitions))
    assert max(map(len, allowed.values())) <= -(-partitions // 3)


def test_a_new_server_learns_what_is_applied() -> None:
    shares = Shares(4, FakeClock())
    assert shares.ask(PROCESSES[0], [2, 3]) == [0, 1, 2, 3]
    assert shares.ask(PROCESSES[1], [0]) == []
    assert shares.ask(PROCESSES[0], [0, 1, 2, 3]) == [0, 1]
    assert shares.ask(PROCESSES[0], [0, 1]) == [0, 1]
    assert shares.ask(PROCESSES[1], []) == [2, 3]


def test_processes_share_a_consumer_and_take_over(tmp_path: Path) -> None:
    """One of three is killed: the others apply its partitions. Each transaction counts once."""
    engine_of(tmp_path, "shared").dispose()
    with connected(tmp_path, partitions=6) as bank:
        processes = [
            CONTEXT.Process(target=follow_shared, args=(str(tmp_path), f"p{number}"), daemon=True)
            for number in range(3)
        ]
        for process in processes:
            process.start()

        def applied() -> list[tuple[int, int, str]]:
            with sqlite3.connect(tmp_path / "shared.db") as database:
                return database.execute("select of, id, who from applied").fetchall()

        def submit(number: int) -> None:
            for of in range(60):
                bank.submit(of, Transaction(["a", number]))

        def all_shared() -> bool:
            submit(0)
            return len({who for _, _, who in applied()}) == 3

        eventually(all_shared, "each of them applies some", 60)
        os.kill(processes[0].pid, signal.SIGKILL)
        processes[0].join()
        submit(1)
        total = sum(bank.mark(number).id for number in range(6))
        eventually(lambda: len(applied()) == total, "the others apply all", 60)
        (tmp_path / "stop").touch()
        for process in processes[1:]:
            process.join(60)
            assert process.exitcode == 0
        ids = sorted((of, id) for of, id, _ in applied())
        assert ids == [(of, id) for of in range(6) for id in range(1, bank.mark(of).id + 1)]


def test_shared_needs_connect(memory: MemoryStore, tmp_path: Path) -> None:
    marks = FileMarks(tmp_path / "marks")
    needs = pytest.raises(InvalidSetting, match=r"is for a stream of imap_wal\.stream\.connect")
    with stream.open("memory://s", partitions=1, storage=memory) as bank, needs:
        bank.consumer("c", marks=marks, shared=True)(print)


@pytest.mark.parametrize("kind", ["file", "map"])
def test_one_waits_for_what_another_applies(tmp_path: Path, kind: str) -> None:
    """With marks in files, or in maps that the processes share too."""
    with ExitStack() as stack:
        banks = [stack.enter_context(connected(tmp_path, partitions=2)) for _ in range(2)]
        for bank in banks:
            marks: Any = FileMarks(tmp_path / "marks")
            if kind == "map":
                maps = imap_wal.connect(tmp_path / "maps", socket=tmp_path / "maps-socket")
                marks = MapMarks(stack.enter_context(maps))
            bank.consumer("c", marks=marks, shared=True)(lambda *_: None)
        first, second = banks
        for number in range(5):
            for of in ("a", "b", "c", "d"):
                mark = first.submit(of, Transaction(number))
                assert mark is not None and second.wait("c", mark) and first.wait("c", mark)
        eventually(lambda: sum(bank.consumers["c"].lag for bank in banks) == 0, "they have no lag")
        assert sum(bank.consumers["c"].applied for bank in banks) == 20
        stack.callback(lambda: [bank.close() for bank in banks])
