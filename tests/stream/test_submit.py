"""What a stream accepts, what it refuses, and what counts once."""

from __future__ import annotations

import itertools
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import imap_wal
import imap_wal.stream as stream
from imap_wal.context import Context
from imap_wal.errors import (
    Closed,
    Conflict,
    ImapWalError,
    InvalidSetting,
    NoSuchLog,
    NotReadable,
    NotSerializable,
    OtherHistory,
    OutcomeUnknown,
    PositionGone,
    TooLarge,
    WriterLocked,
)
from imap_wal.log import LogReader
from imap_wal.read.cluster import ClusterLog
from imap_wal.rewrite.drop import drop_map
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.run import rewrite
from imap_wal.serializer import MsgpackSerializer
from imap_wal.stream import Mark, Stream, Transaction
from imap_wal.stream.transaction import LOCKS, REQUESTS, key_of, partition_of
from imap_wal.write import ring
from storage_backends import StorageError
from storage_backends.faults import Fault, FaultyStore, Plan
from storage_backends.memory import MemoryStore
from tests.kit.effort import every, step
from tests.support import FakeClock, Threads

START = Mark(0)


def opened(store: Any, **options: Any) -> Stream:
    return stream.open("memory://stream", **{"partitions": 1, "storage": store} | options)


def submitted(bank: Stream, *arguments: Any, **options: Any) -> Mark:
    mark = bank.submit(*arguments, **options)
    assert mark is not None
    return mark


def ids(records: Any) -> list[int]:
    return [record.id for record in records]


def test_ids_are_dense_in_each_partition_over_reopens(memory: MemoryStore) -> None:
    counts: dict[int, int] = {}
    for _ in range(3):
        with opened(memory, partitions=3) as bank:
            for header in (*range(5), "a", "b"):
                mark = bank.submit(header, Transaction(str(header)))
                assert mark is not None
                counts[mark.partition] = counts.get(mark.partition, 0) + 1
                assert (mark.id, mark) == (counts[mark.partition], bank.mark(mark.partition))
    with opened(memory, partitions=None) as bank:
        for partition in range(3):
            records = list(bank.read(partition))
            assert ids(records) == list(range(1, counts.get(partition, 0) + 1))
            assert {bank.partition_of(record.header) for record in records} <= {partition}
            assert {record.data for record in records} == {str(r.header) for r in records}
            for record in records:
                assert ids(bank.read(partition, record.mark)) == list(
                    range(record.id + 1, len(records) + 1)
                )


def test_partitions_of_headers_never_change() -> None:
    """They are those of the same keys in Hazelcast."""
    found = {
        header: partition_of(header, 271) for header in (0, 1, -1, 2**63 - 1, "a", "key-1", "é")
    }
    assert found == {0: 109, 1: 110, -1: 231, 2**63 - 1: 21, "a": 73, "key-1": 94, "é": 260}


@pytest.mark.parametrize("newer", ["read", "write", "append"])
@pytest.mark.parametrize("later", ["read", "write", "append"])
def test_which_locks_are_compatible(memory: MemoryStore, newer: str, later: str) -> None:
    """A transaction is refused if a newer one than its author has seen wrote a lock that it read or
    wrote. Both are refused at any partition count, before and after an open."""
    refused = newer != "read" and later != "append"
    with opened(memory) as bank:
        seen = bank.submit(0, Transaction("first"))
        assert seen is not None
        bank.submit(0, Transaction("newer", **{newer: ["x"]}), mark=seen)
    for _ in range(2):
        with opened(memory) as bank:
            transaction = Transaction("later", **{later: ["x", "y"]})
            before = bank.mark()
            if refused:
                with pytest.raises(Conflict, match="transaction 2 of partition 0 wrote lock 'x'"):
                    bank.submit(0, transaction, mark=seen)
                assert bank.mark().id == before.id
            else:
                assert bank.submit(0, transaction, mark=bank.mark() if later != "append" else None)


def test_other_locks_and_other_partitions_do_not_conflict(memory: MemoryStore) -> None:
    with opened(memory, partitions=2) as bank:
        here, there = (next(n for n in range(99) if bank.partition_of(n) == p) for p in (0, 1))
        seen = Mark(0)
        bank.submit(there, Transaction(1, write=["x"]), mark=Mark(1))
        bank.submit(here, Transaction(1, write=["y"]), mark=seen)
        assert bank.submit(here, Transaction(1, write=["x"]), mark=seen)
        with pytest.raises(Conflict) as raised:
            bank.submit(here, Transaction(1, read=["z", "y"]), mark=seen)
        assert (raised.value.lock, raised.value.newest, raised.value.seen) == ("y", 1, 0)


def test_one_of_several_threads_with_one_view_wins(tmp_path: Path) -> None:
    """Also of those that share a commit."""
    with stream.open(tmp_path, partitions=1) as bank:
        for round_number in range(20):
            seen, won = bank.mark(), []

            def submit(number: int, seen: Mark = seen, won: list[int] = won) -> None:
                with suppress(Conflict):
                    bank.submit(0, Transaction(number, write=["x"]), mark=seen)
                    won.append(number)

            Threads(*(partial(submit, number) for number in range(8))).join()
            assert len(won) == 1 and bank.mark().id == round_number + 1


class _Together(MsgpackSerializer):
    """Two threads leave it at the same time."""

    def __init__(self) -> None:
        self._both = threading.Barrier(2)

    def dump(self, value: Any) -> bytes:
        self._both.wait(20)
        return super().dump(value)


def test_two_that_share_a_commit_conflict(memory: MemoryStore) -> None:
    """Each was checked when the other was not appended yet."""
    with opened(memory, serializer=_Together()) as bank:
        refused = []

        def submit() -> None:
            try:
                bank.submit(0, Transaction(0, write=["x"]), mark=START)
            except Conflict as conflict:
                refused.append(conflict.newest)

        Threads(submit, submit).join()
        assert refused == [1] and bank.mark().id == 1


def test_a_request_counts_once(memory: MemoryStore) -> None:
    """Also after a restart, a takeover, and if its locks were written since, even by itself."""
    transaction = Transaction("pay", write=["x"])
    bank = opened(memory)
    first = bank.submit(0, transaction, mark=START, request="shop/1")
    assert first == bank.submit(0, transaction, mark=START, request="shop/1")
    bank.close()
    bank = opened(memory)
    again = bank.submit(0, transaction, mark=START, request="shop/1")
    other = opened(memory, takeover=True)
    last = other.submit(0, transaction, mark=START, request="shop/1")
    assert first is not None and again is not None and last is not None
    assert first.id == again.id == last.id == 1
    assert other.submit(0, Transaction("next"), request="shop/2") == other.mark()
    repeated = other.submit(0, transaction, mark=START, request="shop/1")
    assert repeated is not None and repeated.id == 1
    with pytest.raises(Conflict):
        other.submit(0, transaction, mark=START, request="another shop/1")
    assert ids(other.read()) == [1, 2]
    other.close()


def test_a_request_is_known_for_a_day(memory: MemoryStore) -> None:
    clock = FakeClock()
    with opened(memory, clock=clock) as bank:
        assert submitted(bank, 0, Transaction(1), request="shop/1").id == 1
        clock.advance(24 * 3600 - 1)
        assert submitted(bank, 0, Transaction(1), request="shop/1").id == 1
        clock.advance(2)
        assert submitted(bank, 0, Transaction(1), request="shop/1").id == 2


@every(3)
@pytest.mark.parametrize("kind", ["append", "sync"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_request_survives_a_storage_that_fails(memory: MemoryStore, kind: str, when: Any) -> None:
    """The stream opens its log again, and looks. Without a request, the author must."""
    opened(memory).close()
    store = FaultyStore(memory, Plan((Fault("error", 4, kind, when=when),)))
    with opened(store) as bank:
        for number in range(1, 8):
            mark = bank.submit(
                0, Transaction(number, write=["x"]), mark=bank.mark(), request=f"shop/{number}"
            )
            assert mark is not None and mark.id == number
        assert store.fired
        assert [record.data for record in bank.read()] == list(range(1, 8))


def test_without_a_request_an_unknown_outcome_is_raised(memory: MemoryStore) -> None:
    opened(memory).close()
    store = FaultyStore(memory, Plan((Fault("error", 4, "sync"),)))
    with opened(store) as bank:
        submitted = 0
        for number in itertools.count():
            try:
                bank.submit(0, Transaction(number))
            except OutcomeUnknown:
                break
            submitted += 1
        assert bank.submit(0, Transaction("next")) is not None
        records = [record.data for record in bank.read()]
        assert records in ([*range(submitted), "next"], [*range(submitted + 1), "next"])


def test_data_of_every_type_is_read_back(memory: MemoryStore) -> None:
    values: list[Any] = [None, 1, "é", b"\0", [1, {"a": (2, 3)}], datetime(2026, 1, 2, tzinfo=UTC)]
    with opened(memory) as bank:
        for value in values:
            bank.submit(0, Transaction(value))
        assert [record.data for record in bank.read()] == values
        with pytest.raises(NotSerializable):
            bank.submit(0, Transaction(object()))
    with opened(memory, serializer="raw") as bank:
        bank.submit(0, Transaction(b"raw"))
        assert [record.data for record in bank.read()] == [*values, b"raw"]
    with opened(memory) as bank:
        assert [record.data for record in bank.read()] == [*values, b"raw"]


_transaction: Any = Transaction
"""Without a check of its arguments."""
REFUSED: dict[str, tuple[type[Exception], Callable[[Any], object]]] = {
    "no mark for a lock": (InvalidSetting, lambda s: s.submit(0, Transaction(1, read=["x"]))),
    "a mark of another partition": (
        InvalidSetting,
        lambda s: s.submit(0, Transaction(1, read=["x"]), mark=Mark(5, 1)),
    ),
    "text for locks": (NotSerializable, lambda s: _transaction(1, write="account")),
    "a lock without a name": (NotSerializable, lambda s: _transaction(1, write=[""])),
    "a lock that is no text": (NotSerializable, lambda s: _transaction(1, write=[7])),
    "half of a character": (NotSerializable, lambda s: _transaction(1, write=["\ud83d"])),
    "a long lock": (NotSerializable, lambda s: _transaction(1, append=["x" * 1025])),
    "an empty header": (NotSerializable, lambda s: s.submit("", Transaction(1))),
    "a header that is no text": (NotSerializable, lambda s: s.submit(1.5, Transaction(1))),
    "a large header": (NotSerializable, lambda s: s.submit(2**63, Transaction(1))),
    "a request that is no text": (
        NotSerializable,
        lambda s: s.submit(0, Transaction(1), request=7),
    ),
    "a long request": (
        NotSerializable,
        lambda s: s.submit(0, Transaction(1), request="x" * 1025),
    ),
    "a function without marks": (InvalidSetting, lambda s: s.submit(0, lambda view: None)),
    "a function that returns data": (
        InvalidSetting,
        lambda s: s.submit(0, lambda view: {"a": 1}, marks="c"),
    ),
    "data instead of a transaction": (InvalidSetting, lambda s: s.submit(0, {"a": 1})),
    "a number for a mark": (InvalidSetting, lambda s: list(s.read(0, 3))),
    "marks that are none": (InvalidSetting, lambda s: s.consumer("c", marks="c")),
    "too much": (TooLarge, lambda s: s.submit(0, Transaction(b"x" * 2000))),
    "no such partition": (InvalidSetting, lambda s: list(s.read(7))),
}


@every(4)
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_changes_nothing(memory: MemoryStore, name: str) -> None:
    error, call = REFUSED[name]
    with opened(memory, max_value_bytes=1000) as bank:
        bank.submit(0, Transaction(1))
        with pytest.raises(error):
            call(bank)
        assert bank.submit(0, Transaction(2)) is not None
        assert [record.data for record in bank.read()] == [1, 2]


def test_a_stream_has_one_writer_and_one_partition_count(tmp_path: Path) -> None:
    with pytest.raises(NoSuchLog, match="say how many partitions"):
        stream.open(tmp_path)
    wrong: Any
    for wrong in (0, -1, 1025, 1.5, True):
        with pytest.raises(InvalidSetting, match="partitions is"):
            stream.open(tmp_path, partitions=wrong)
    bank = stream.open(tmp_path, partitions=2)
    with pytest.raises(WriterLocked):
        stream.open(tmp_path)
    with pytest.raises(InvalidSetting, match="has 2 partitions, not 3"):
        stream.open(tmp_path, partitions=3)
    with stream.open(tmp_path, partitions=3, name="other") as other:
        assert other.partitions == 3
    bank.close()
    bank.close()
    for call in (lambda: bank.submit(0, Transaction(1)), lambda: list(bank.read())):
        with pytest.raises(Closed):
            call()


def test_a_creation_that_was_interrupted_is_finished(memory: MemoryStore) -> None:
    whole = FaultyStore(MemoryStore("test-whole"))
    opened(whole, partitions=3).close()
    for at in range(1, whole.count, step()):
        inner = MemoryStore(f"test-{at}")
        store = FaultyStore(inner, Plan((Fault("error", at, times=0),)))
        with pytest.raises((ImapWalError, StorageError)):
            opened(store, partitions=3).close()
        with opened(inner, partitions=3, takeover=True) as bank:
            assert bank.partitions == 3 and bank.submit(1, Transaction(1)) is not None


@every(2)
@pytest.mark.parametrize("maps", [None, (LOCKS, REQUESTS)], ids=["all maps", "the tables"])
def test_transactions_are_read_after_a_rewrite_and_a_prune(
    memory: MemoryStore, maps: tuple[str, ...] | None
) -> None:
    """From the snapshot, by readers at any mark; the tables too."""
    logs = ClusterLog(Context(memory), "default", "stream")
    marks = [START]
    for _ in range(3):
        with opened(memory) as bank:
            for _ in range(3):
                seen = bank.mark()
                marks.append(bank.submit(0, Transaction(0, write=["x"]), mark=seen) or START)
            bank.archive()
            rewrite(logs, LocalEngine(), maps=maps)
            prune(logs)
            for mark in marks:
                expected = list(range(mark.id + 1, len(marks)))
                assert ids(bank.read(0, mark)) == ids(bank.read(0, Mark(0, mark.id))) == expected
    with opened(memory) as bank, pytest.raises(Conflict):
        bank.submit(0, Transaction(0, read=["x"]), mark=marks[-2])


def test_transactions_that_are_gone_are_named(memory: MemoryStore) -> None:
    """A reader does not pass over them."""
    with opened(memory) as bank:
        for _ in range(2):
            for _ in range(3):
                bank.submit(0, Transaction(0))
            bank.archive()
    log = LogReader(memory.url, storage=memory, cluster="stream", node="0-of-1")
    upto = [record.position for record in log.read() if record.entry.map == "transactions"][2]
    with imap_wal.log.open(memory.url, storage=memory, cluster="stream", node="0-of-1") as writer:
        writer.shrink(upto, uncovered=True)
    with opened(memory) as bank, pytest.raises(PositionGone, match="transaction 1 of partition 0"):
        list(bank.read())


def test_a_mark_of_what_was_lost_is_refused(tmp_path: Path) -> None:
    """The log was replaced by an older copy: an author must not build on what it lacks."""
    log, copy = tmp_path / "log", tmp_path / "copy"
    with stream.open(log, partitions=1) as bank:
        bank.submit(0, Transaction(1, write=["x"]), mark=START)
    shutil.copytree(log, copy)
    with stream.open(log) as bank:
        seen = bank.submit(0, Transaction(2, write=["x"]), mark=bank.mark())
        assert seen is not None
    shutil.rmtree(log)
    copy.rename(log)
    with stream.open(log) as bank:
        for mark in (seen, Mark(0, seen.id)):
            with pytest.raises(OtherHistory):
                bank.submit(0, Transaction(3, write=["x"]), mark=mark)
        bank.submit(0, Transaction("another"))  # there is a transaction 2 again
        with pytest.raises(OtherHistory):
            bank.submit(0, Transaction(3, write=["x"]), mark=seen)
        assert bank.mark().id == 2


class _Kind(StrEnum):
    PAID = "paid"


def test_names_lose_a_class_of_their_own(memory: MemoryStore) -> None:
    """Locks may come from any iterable, and text may be of a derived class."""
    with opened(memory, partitions=7) as bank:
        locks = (name for name in (_Kind.PAID, "y"))
        transaction = _transaction(1, write=locks)
        mark = bank.submit(_Kind.PAID, transaction, mark=Mark(partition_of("paid", 7)))
        assert mark is not None and mark.partition == partition_of("paid", 7)
        [record] = bank.read(mark.partition)
        assert (record.header, record.write) == ("paid", ("paid", "y"))
        with pytest.raises(Conflict):
            bank.submit("paid", Transaction(2, read=["y"]), mark=Mark(mark.partition))


def test_a_transaction_too_large_for_a_commit_leaves_no_gap(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(memory) as bank:
        bank.submit(0, Transaction(1))
        with monkeypatch.context() as patch:
            patch.setattr(ring, "COUNT_MAX", 3)
            with pytest.raises(TooLarge):
                bank.submit(0, Transaction(2, append=["x", "y", "z"]))
        assert bank.submit(0, Transaction(3, read=["x"]), mark=Mark(0, 1)) == bank.mark()
        assert ids(bank.read()) == [1, 2]


def test_after_an_outage_nothing_that_failed_is_met(memory: MemoryStore) -> None:
    """Neither its lock nor its id."""
    opened(memory).close()
    store = FaultyStore(memory)
    with opened(store) as bank:
        bank.submit(0, Transaction(1, write=["x"]), mark=START)
        store.plan, store._seen = Plan((Fault("error", 1, "append|sync|read|lock", times=9),)), [0]
        for _ in range(20):
            with suppress(ImapWalError):
                bank.submit(0, Transaction(1, write=["x"]), mark=bank.mark())
        seen = bank.mark()
        assert bank.submit(0, Transaction(2, write=["x"]), mark=seen) is not None
        assert ids(bank.read()) == list(range(1, bank.mark().id + 1))


def test_an_outage_does_not_take_the_log_back(memory: MemoryStore) -> None:
    """From a process that has taken over meanwhile, although this one once took over."""
    opened(memory).close()
    store = FaultyStore(memory)
    first = opened(store, takeover=True)
    first.submit(0, Transaction(1))
    store.plan, store._seen = Plan((Fault("error", 1, "sync"),)), [0]
    with suppress(ImapWalError):
        first.submit(0, Transaction(2))
    with opened(memory, takeover=True) as second:
        second.submit(0, Transaction(3))
        for _ in range(2):
            with pytest.raises(ImapWalError):
                first.submit(0, Transaction(4))
        assert second.submit(0, Transaction(5)) == second.mark()
    with suppress(ImapWalError):
        first.close()


def test_no_store_of_maps_opens_the_cluster_of_a_stream(memory: MemoryStore) -> None:
    opened(memory).close()
    with pytest.raises(InvalidSetting, match="is a stream; maps there could remove"):
        imap_wal.open("memory://stream", storage=memory, cluster="stream")
    logs = ClusterLog(Context(memory), "default", "stream")
    with pytest.raises(InvalidSetting, match="ids would be given again"):
        drop_map(logs, LOCKS)


@pytest.mark.parametrize(
    ("name", "value"),
    [("transactions", b"\xc1"), ("locks", b"\xc1"), ("locks", b"\xa1x")],
    ids=["transactions", "locks", "locks-text"],
)
def test_rows_of_another_program_are_named(memory: MemoryStore, name: str, value: bytes) -> None:
    with opened(memory) as bank:
        bank.submit(0, Transaction(1))
    with imap_wal.log.open(memory.url, storage=memory, cluster="stream", node="0-of-1") as log:
        log.append(name, (key_of(0, 2), value))
    with pytest.raises(NotReadable), opened(memory) as bank:
        list(bank.read())
