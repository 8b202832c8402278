"""Operators see how far the consumers of a stream are."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import imap_wal.stream as stream
from imap_wal.errors import Closed
from imap_wal.stream import ConsumerProgress, FileMarks, Retries, Stream, Transaction, progress
from imap_wal.stream.progress import KEPT_S, Applied, ProgressTable
from imap_wal.stream.served import ServedStream
from imap_wal.stream.shares import LEASE_S
from imap_wal.workers.messages import NotUnderstood
from storage_backends.memory import MemoryStore
from tests.kit.stream_processes import connected
from tests.support import FakeClock, eventually

ONE, TWO, THREE = (bytes([number]) * 16 for number in range(3))


def rows(progress: ProgressTable, *newest: int) -> list[tuple[Any, ...]]:
    """Partition, mark, lag, process and failure."""
    return [
        (row.partition, row.mark, row.lag, row.process, row.failure)
        for row in progress.consumers(newest)
    ]


# ---- what is remembered --------------------------------------------------------------------------


def test_the_last_mark_remains_when_no_process_applies() -> None:
    clock = FakeClock()
    known = ProgressTable(1, clock)
    assert rows(known, 9) == []
    known.note("c", ONE, "one", [Applied(0, 5)], "")
    assert rows(known, 9) == [(0, 5, 4, "one", "")]
    clock.advance(LEASE_S)  # it was killed
    assert rows(known, 12) == [(0, 5, 7, "", "")]
    (row,) = known.consumers([12])
    assert (row.is_running, row.age_s) == (False, LEASE_S)
    clock.advance(KEPT_S)
    assert rows(known, 12) == []


def test_a_process_that_leaves_applies_nothing_at_once() -> None:
    known = ProgressTable(1, FakeClock())
    known.note("c", ONE, "one", [Applied(0, 5)], "")
    known.leave("c", ONE)
    known.leave("other", ONE)
    assert rows(known, 9) == [(0, 5, 4, "", "")]
    known.note("c", ONE, "one", [Applied(0)], "")
    assert rows(known, 9) == [(0, 5, 4, "one", "")], "its new mark is not known yet"


def test_a_partition_that_moved_has_the_mark_of_its_process() -> None:
    """Another process has applied less for a moment; then the first one applies less."""
    known = ProgressTable(2, FakeClock())
    known.note("c", ONE, "one", [Applied(0, 5), Applied(1, 5)], "")
    known.note("c", TWO, "two", [], "")
    known.note("c", ONE, "one", [Applied(0, 6)], "")
    assert rows(known, 9, 9) == [(0, 6, 3, "one", ""), (1, 5, 4, "", "")]
    known.note("c", TWO, "two", [Applied(1, 4)], "")
    assert rows(known, 9, 9) == [(0, 6, 3, "one", ""), (1, 4, 5, "two", "")]


def test_processes_with_databases_of_their_own_are_shown_apart() -> None:
    """Of those that have ended, none while another one runs."""
    clock = FakeClock()
    known = ProgressTable(1, clock)
    known.note("c", ONE, "one", [Applied(0, 5)], "")
    known.note("c", TWO, "two", [Applied(0, 7)], "")
    assert rows(known, 9) == [(0, 5, 4, "one", ""), (0, 7, 2, "two", "")]
    clock.advance(LEASE_S)
    known.note("c", TWO, "two", [Applied(0, 8)], "")
    assert rows(known, 9) == [(0, 8, 1, "two", "")]
    known.note("d", ONE, "one", [Applied(0, 1)], "")
    clock.advance(1)
    known.note("d", TWO, "two", [Applied(0, 2)], "")
    clock.advance(LEASE_S)
    assert [row.mark for row in known.consumers([9]) if row.consumer == "d"] == [2]


def test_a_partition_without_a_process_is_shown() -> None:
    known = ProgressTable(2, FakeClock())
    known.note("c", ONE, "one", [Applied(1, 5)], "")
    assert rows(known, 9, 9) == [(0, None, None, "", ""), (1, 5, 4, "one", "")]


def test_a_process_that_cannot_read_its_mark_has_the_last() -> None:
    """So its lag grows. Another process that runs may have another database."""
    clock = FakeClock()
    known = ProgressTable(1, clock)
    known.note("c", ONE, "one", [Applied(0, 5)], "")
    clock.advance(1)
    known.note("c", TWO, "two", [Applied(0)], "")
    assert rows(known, 9) == [(0, 5, 4, "one", ""), (0, None, None, "two", "")]
    known.leave("c", TWO)
    known.leave("c", ONE)
    assert rows(known, 9) == [(0, 5, 4, "", "")]
    known.note("c", THREE, "three", [Applied(0)], "")
    assert rows(known, 12) == [(0, 5, 7, "three", "")]


def test_rows_texts_and_partitions_of_a_process_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress, "ROWS_MAX", 2)
    known = ProgressTable(2, FakeClock())
    known.note("c", ONE, "n" * 999, [Applied(0, 1), Applied(1, 1), Applied(2, 1)], "f" * 9999)
    known.note("d", ONE, "one", [Applied(0, 1)], "")
    assert [(len(row.process), len(row.failure)) for row in known.consumers([1, 1])] == [
        (progress.NAME_MAX, progress.TEXT_MAX)
    ] * 2
    known.leave("c", ONE)
    known.note("c", TWO, "two", [], "")
    assert len(known.consumers([1, 1])) == 2
    monkeypatch.setattr(progress, "CONSUMERS_MAX", 1)
    known.note("e", ONE, "one", [Applied(0, 1)], "")
    assert {row.consumer for row in known.consumers([1, 1])} == {"c"}


# ---- processes -----------------------------------------------------------------------------------


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Stream, Stream]]:
    """The stream of the process that serves, and one that asks."""
    with connected(tmp_path) as first, connected(tmp_path, serve=False) as second:
        yield first, second


def of_consumer(bank: Stream, name: str) -> list[ConsumerProgress]:
    return [row for row in bank.progress().consumers if row.consumer == name]


@pytest.mark.parametrize("shared", [False, True])
def test_every_process_sees_the_lag_of_a_consumer(
    two: tuple[Stream, Stream], tmp_path: Path, shared: bool
) -> None:
    serving, asking = two
    asking.consumer("c", marks=FileMarks(tmp_path / "marks"), shared=shared)(lambda _: None)
    for number in range(10):
        serving.submit(number, Transaction(number))
    newest = [serving.mark(number).id for number in range(2)]

    def applied() -> bool:
        found = of_consumer(serving, "c")
        return [(row.partition, row.mark, row.lag) for row in found] == [
            (number, newest[number], 0) for number in range(2)
        ]

    eventually(applied, "it has said that it has applied all")
    assert all(row.is_running for row in of_consumer(asking, "c"))
    assert serving.progress().newest == newest
    asking.close()
    eventually(lambda: not any(row.process for row in of_consumer(serving, "c")), "it has left")
    serving.submit(1, Transaction(1))
    assert sum(row.lag or 0 for row in of_consumer(serving, "c")) == 1


def test_a_consumer_that_stopped_is_seen_until_it_is_closed(
    two: tuple[Stream, Stream], tmp_path: Path
) -> None:
    """And after that."""
    serving, asking = two

    def apply(record: stream.StreamRecord) -> None:
        if record.data == "bad":
            raise KeyError("a bug")

    retries = Retries(2, 0.001)
    asking.consumer("c", marks=FileMarks(tmp_path / "marks"), retries=retries)(apply)
    good = serving.submit("a", Transaction("good"))
    assert good is not None and asking.wait("c", good)
    serving.submit("a", Transaction("bad"))

    def stopped() -> ConsumerProgress | None:
        rows = of_consumer(serving, "c")
        return next((row for row in rows if row.failure and row.partition == good.partition), None)

    eventually(stopped, "the failure is known")
    row = stopped()
    assert row is not None
    assert (row.mark, row.lag, row.is_running) == (1, 1, False)
    assert (row.failure, row.failures, bool(row.process)) == ("KeyError('a bug')", 4, True)
    assert asking.consumers["c"].failures == 4
    asking.close()

    def left() -> bool:
        row = stopped()
        return row is not None and not row.process

    eventually(left, "it has left, and the reason remains")


def test_a_program_that_opened_the_stream_sees_its_consumers(
    memory: MemoryStore, tmp_path: Path
) -> None:
    with stream.open("memory://s", partitions=1, storage=memory) as bank:
        skips: dict[str, Any] = {"retries": Retries(0), "on_error": lambda *_: True}

        @bank.consumer("c", marks=FileMarks(tmp_path / "marks"), **skips)
        def apply(record: stream.StreamRecord) -> None:
            if record.data == 0:
                raise KeyError("a bug")

        for number in range(3):
            mark = bank.submit("a", Transaction(number))
        assert mark is not None and bank.wait("c", mark)
        now = bank.progress()
        (row,) = now.consumers
        assert (row.mark, row.newest, row.lag, row.skipped) == (3, 3, 0, 1)
        assert row.process == now.process and row.failures > 0
    with pytest.raises(Closed):
        bank.progress()


def test_a_mark_is_shown_when_it_was_read(memory: MemoryStore, tmp_path: Path) -> None:
    """Until then, the lag is not known."""
    reading, may_read = threading.Event(), threading.Event()

    class SlowMarks(FileMarks):
        def load(self, consumer: str, partition: int) -> stream.Mark:
            reading.set()
            may_read.wait(60)
            return super().load(consumer, partition)

    with stream.open("memory://s", partitions=1, storage=memory) as bank:
        bank.submit("a", Transaction(1))
        bank.consumer("c", marks=SlowMarks(tmp_path / "marks"))(lambda _: None)
        assert reading.wait(60)
        (row,) = bank.progress().consumers
        may_read.set()
        assert (row.mark, row.lag, row.is_running) == (None, None, True)
        eventually(lambda: bank.progress().consumers[0].lag == 0, "it has applied all")


# ---- the process that serves ---------------------------------------------------------------------


@pytest.fixture
def subject(memory: MemoryStore) -> Iterator[ServedStream]:
    with stream.open("memory://s", partitions=2, storage=memory) as bank:
        yield ServedStream(bank, bank.writing, FakeClock())


def told(subject: ServedStream, process: bytes, failure: str = "", kind: str = "share") -> Any:
    request = [kind, "c", process, "one", [[0, 0, 0, 0]], failure, True]
    return subject.answer(b"", 1, request, list)


def test_a_consumer_that_stopped_gives_its_share_to_others(subject: ServedStream) -> None:
    assert told(subject, ONE) == [0, 1]
    assert told(subject, ONE, "KeyError") == []
    assert subject.answer(b"", 1, ["share", "c", TWO, "two", [], "", True], list) == [0, 1]


@pytest.mark.parametrize(
    "applied",
    [
        None,
        1,
        [[0]],
        [[0, "1", 0, 0]],
        [[0, -1, 0, 0]],
        [[0, 2**64, 0, 0]],
        [[2, 1, 0, 0]],
        [[]] * 3,
    ],
    ids=str,
)
def test_what_is_not_progress_is_refused(subject: ServedStream, applied: Any) -> None:
    with pytest.raises(NotUnderstood):
        subject.answer(b"", 1, ["share", "c", ONE, "one", applied, "", False], list)
    assert subject.progress().consumers == []
