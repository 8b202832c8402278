"""Several processes use one stream: one of them serves it, and may be killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgpack
import pytest

import imap_wal
import imap_wal.stream as stream
from imap_wal.errors import (
    Closed,
    Conflict,
    Fenced,
    ImapWalError,
    InvalidSetting,
    NoSuchLog,
    NotSerializable,
    OtherHistory,
    OutcomeUnknown,
    StorageUnavailable,
    WriterLocked,
)
from imap_wal.manifest import epochs
from imap_wal.stream import FileMarks, Mark, Stream, StreamRecord, Transaction, served
from imap_wal.stream.served import SLOW_S, ServedStream
from imap_wal.workers import server
from imap_wal.workers.messages import receive, send
from imap_wal.workers.server import Server
from tests.kit.effort import share
from tests.kit.stream_processes import CONTEXT, COUNTERS, add, connected
from tests.support import FakeClock, eventually


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Stream, Stream]]:
    """The stream of the process that serves, and one that asks."""
    with connected(tmp_path) as first, connected(tmp_path, serve=False) as second:
        yield first, second


def test_each_process_sees_what_another_submitted(two: tuple[Stream, Stream]) -> None:
    for number, bank in enumerate((*two, *two), 1):
        assert bank.partitions == 2
        mark = bank.submit("a", Transaction({"number": number}))
        assert mark is not None
        assert mark.id == number
        for other in two:
            records = list(other.read(mark.partition))
            assert [record.data for record in records] == [{"number": n + 1} for n in range(number)]
            assert records[-1].mark == mark == other.mark(mark.partition)
            assert list(other.read(mark.partition, after=mark)) == []
    assert list(two[1].read(1 - two[1].partition_of("a"))) == []


def test_long_reads_have_each_transaction_once(two: tuple[Stream, Stream]) -> None:
    """In batches, from any mark."""
    serving, asking = two
    partition = serving.partition_of("a")
    for number in range(25):
        serving.submit("a", Transaction("x" * 100_000 + str(number)))
    records = list(asking.read(partition))
    assert [record.id for record in records] == list(range(1, 26))
    for at in (0, 1, 11, 24):
        rest = [record.id for record in asking.read(partition, after=records[at].mark)]
        assert rest == list(range(at + 2, 26))


def test_errors_are_those_of_the_process_that_serves(two: tuple[Stream, Stream]) -> None:
    """With their attributes."""
    _, asking = two
    partition = asking.partition_of("a")
    first = asking.submit("a", Transaction(1, write=["account:7"]), mark=Mark(partition))
    assert first is not None
    with pytest.raises(Conflict) as conflict:
        asking.submit("a", Transaction(2, read=["account:7"]), mark=Mark(first.partition))
    error = conflict.value
    assert (error.lock, error.partition, error.newest, error.seen) == (
        "account:7",
        first.partition,
        1,
        0,
    )
    assert "transaction 1 of partition" in str(error)
    with pytest.raises(OtherHistory, match="another history") as other:
        far = Mark(first.partition, 9, first.position)
        asking.submit("a", Transaction(2, read=["account:7"]), mark=far)
    assert other.value.asked == "of transaction 9"
    with pytest.raises(NotSerializable):
        asking.submit("a", Transaction(object()))
    with pytest.raises(InvalidSetting, match="needs the mark"):
        asking.submit("a", Transaction(2, read=["account:7"]))
    assert asking.mark(first.partition) == first
    assert asking.submit("a", Transaction(3), request="r") == asking.submit(
        "a", Transaction(3), request="r"
    )


def test_a_consumer_follows_from_another_process(
    two: tuple[Stream, Stream], tmp_path: Path
) -> None:
    serving, asking = two
    ids: list[tuple[int, int]] = []
    marks = FileMarks(tmp_path / "marks")

    def note(record: StreamRecord) -> None:
        ids.append((record.partition, record.id))

    serving.submit("a", Transaction(0))
    asking.consumer("c", marks=marks)(note)
    for number in range(20):
        serving.submit("ab"[number % 2], Transaction(number))
    assert all(asking.wait("c", serving.mark(number)) for number in range(2))
    assert sorted(ids) == sorted({*ids}) and len(ids) == 21
    assert asking.consumers["c"].lag == 0


def test_counters_are_right_when_processes_are_killed(tmp_path: Path, seed: int) -> None:
    """The process that serves, and others, with `kill -9`: no addition is lost, none counts twice,
    and the ids have no gap."""
    chance, times = Random(seed), share(20, ci=20)
    names, running = [], {}

    def start() -> None:
        name = f"p{len(names)}"
        names.append(name)
        running[name] = CONTEXT.Process(target=add, args=(str(tmp_path), name, times))
        running[name].start()

    def journal(name: str) -> list[dict[str, str]]:
        path = tmp_path / f"{name}.journal"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    for _ in range(3):
        start()
    for _ in range(2):
        before = sum(len(journal(name)) for name in names)
        eventually(
            lambda before=before: sum(len(journal(name)) for name in names) > before + 8,
            "they submit",
            60,
        )
        victim = chance.choice(sorted(running))
        os.kill(running[victim].pid, signal.SIGKILL)
        running.pop(victim).join()
        start()
    (tmp_path / "stop").touch()
    for name, process in running.items():
        process.join(100)
        assert process.exitcode == 0, name
    begun = {line["begin"] for name in names for line in journal(name) if "begin" in line}
    ended = {line["end"] for name in names for line in journal(name) if "end" in line}
    with stream.open(tmp_path / "log", read_only=True) as bank:
        records = [record for number in range(2) for record in bank.read(number)]
    requests = Counter(record.request for record in records)
    assert {*requests.values()} == {1} and ended <= {*requests} <= begun
    for counter in COUNTERS:
        amounts = [record.data[1] for record in records if record.data[0] == counter]
        assert amounts == list(range(1, len(amounts) + 1)), counter
    for number in range(2):
        ids = [record.id for record in records if record.partition == number]
        assert ids == list(range(1, len(ids) + 1))


def test_without_a_request_a_lost_answer_is_unknown(
    two: tuple[Stream, Stream], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not sent again. With one, it counts once."""
    _, asking = two
    answer = Server._answer
    lost = 0

    def lose(server: Server, connection: Any, client: bytes, request: list[Any]) -> bool:
        nonlocal lost
        if request[1] != "append" or lost >= 2:
            return answer(server, connection, client, request)
        lost += 1
        own, other = socket.socketpair()
        with own, other:
            answer(server, own, client, request)
        return False

    monkeypatch.setattr(Server, "_answer", lose)
    with pytest.raises(OutcomeUnknown, match="may be in the log"):
        asking.submit("a", Transaction("without"))
    assert asking.submit("a", Transaction("with"), request="r") is not None
    assert lost == 2
    records = list(asking.read(asking.partition_of("a")))
    assert [record.data for record in records] == ["without", "with"]


def test_another_process_serves_when_the_first_one_closes(tmp_path: Path) -> None:
    with connected(tmp_path) as last:
        with connected(tmp_path) as first:
            assert first.submit("a", Transaction(1)) == last.mark(last.partition_of("a"))
        last.close()
        with connected(tmp_path) as last:
            mark = last.submit("a", Transaction(2))
            assert mark is not None and mark.id == 2


def test_a_log_that_lost_acknowledged_transactions_is_noticed(tmp_path: Path) -> None:
    """An older copy of its folder is served."""
    with connected(tmp_path) as bank:
        bank.submit("a", Transaction(1))
    shutil.copytree(tmp_path / "log", tmp_path / "older")
    with connected(tmp_path) as first:
        asking = connected(tmp_path, serve=False)
        asking.submit("a", Transaction(2))
        first.close()
        shutil.move(tmp_path / "log", tmp_path / "newer")
        shutil.move(tmp_path / "older", tmp_path / "log")
        lacks = pytest.raises(ImapWalError, match="lacks changes that it acknowledged")
        with connected(tmp_path), lacks:
            asking.submit("a", Transaction(3), request="r")
        asking.close()


def test_what_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(NoSuchLog, match="has no stream"):
        connected(tmp_path, partitions=None)
    with pytest.raises(StorageUnavailable, match="no process serves"):
        connected(tmp_path, serve=False, timeout_s=0.2)
    with (
        stream.open(tmp_path / "log", partitions=2),
        pytest.raises(WriterLocked, match=r"use imap_wal\.stream\.connect"),
    ):
        connected(tmp_path)
    with pytest.raises(InvalidSetting, match="memory://"):
        stream.connect("memory://x")
    with pytest.raises(InvalidSetting, match="read_only is an option of"):
        connected(tmp_path, read_only=True)
    with connected(tmp_path), pytest.raises(InvalidSetting, match="has 2 partitions, not 3"):
        connected(tmp_path, partitions=3)
    with connected(tmp_path) as bank:
        with pytest.raises(ImapWalError, match="serves a stream, not maps: use another socket"):
            imap_wal.connect(tmp_path / "log", socket=tmp_path / "socket", timeout_s=0.5)
        bank.close()
        with pytest.raises(Closed):
            bank.submit("a", Transaction(1))


HOSTILE: list[list[Any]] = [
    ["append", 9, b"", None],
    ["append", 0, b"\x00", None],
    ["append", 0, msgpack.packb({"header": "a"}), None],
    ["append", 0, msgpack.packb({"header": "a" * 2000, "data": 1}), None],
    ["append", 0, msgpack.packb({"header": 1, "data": 1, "write": ["\x00" * 2000]}), None],
    ["append", 0, msgpack.packb({"header": 1, "data": 1, "read": ["a"]}), None],
    ["append", 0, msgpack.packb({"header": 1, "data": 1}), [-1, ""]],
    ["append", 0, msgpack.packb({"header": 1, "data": 1}), [2**64 - 1, "x"]],
    ["append", 0, msgpack.packb({"header": 1, "data": 1, "request": "r" * 2000}), None],
    ["append", 0, "text", None],
    ["append"],
    ["known", 0, 5],
    ["known", True, "x"],
    ["read", -1, [0, ""]],
    ["read", 0, [1, "nonsense"]],
    ["wait", 0, 0, float("nan")],
    ["wait", 0, 0, "long"],
    ["mark", 2],
    ["change", [["m", ""]], []],
    ["nothing"],
]


@pytest.mark.parametrize("request_", HOSTILE, ids=repr)
def test_nonsense_is_refused_and_changes_nothing(
    two: tuple[Stream, Stream], tmp_path: Path, request_: list[Any]
) -> None:
    _, asking = two
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(20)
        raw.connect(str(tmp_path / "socket"))
        send(raw, ["hello", 1, bytes(16), "a stream", [0, []]], 1000)
        assert receive(raw, 1000)[0] == "welcome"
        send(raw, [1, *request_], 100_000)
        number, kind, *_ = receive(raw, 10_000)
        assert (number, kind) == (1, "error")
    assert [list(asking.read(number)) for number in range(2)] == [[], []]


def test_a_transaction_of_another_partition_is_refused(two: tuple[Stream, Stream]) -> None:
    serving, asking = two
    other = asking._partitions[1 - asking.partition_of("a")]
    with pytest.raises(InvalidSetting, match="header 'a' is not of partition"):
        other.append("a", Transaction(1), None)
    assert [list(serving.read(number)) for number in range(2)] == [[], []]


def test_a_connection_with_a_malformed_hello_is_closed(
    two: tuple[Stream, Stream], tmp_path: Path
) -> None:
    marks = ([5], [[0]], [[0, 1]], [[9, 1, ""]], [[0, "1", ""]], {"a": 1})
    for acknowledged in (None, 5, [], [0], *([0, nonsense] for nonsense in marks)):
        with socket.socket(socket.AF_UNIX) as raw:
            raw.settimeout(20)
            raw.connect(str(tmp_path / "socket"))
            send(raw, ["hello", 1, bytes(16), "a stream", acknowledged], 1000)
            with pytest.raises(OSError):
                receive(raw, 1000)
    assert two[1].submit("a", Transaction(1)) is not None


def test_a_close_does_not_wait_for_a_server(tmp_path: Path) -> None:
    """Although its consumers wait for a server that has ended or does not answer."""
    with connected(tmp_path) as first:
        second = connected(tmp_path, serve=False)
        second.consumer("c", marks=FileMarks(tmp_path / "marks"))(lambda record: None)
        first.submit("a", Transaction(1))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Server, "_answer", lambda *_: threading.Event().wait(20))
            begin = time.monotonic()
            second.close()
            assert time.monotonic() - begin < 10
        third = connected(tmp_path, serve=False)
        third.consumer("d", marks=FileMarks(tmp_path / "marks"))(lambda record: None)
        first._at_end()
        begin = time.monotonic()
        third.close()
        assert time.monotonic() - begin < 10


def test_a_slow_open_takes_no_time_of_a_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening = stream.open

    def slow(*args: Any, **options: Any) -> Stream:
        time.sleep(1.5)
        return opening(*args, **options)

    monkeypatch.setattr(served, "open_stream", slow)
    with connected(tmp_path, timeout_s=1.0) as bank:
        assert bank.submit("a", Transaction(1)) is not None


def test_a_request_on_a_broken_idle_connection_is_repeated(tmp_path: Path) -> None:
    """A request that was never sent as a whole is sent again, also without a name."""
    with connected(tmp_path) as asking:
        with connected(tmp_path, serve=False) as second:
            second.submit("a", Transaction(1))
            remote: Any = second._partitions[0]
            (line,) = remote._client._free
            line.connection.shutdown(socket.SHUT_RDWR)
            assert second.submit("a", Transaction(2)) is not None
        assert [record.data for record in asking.read(asking.partition_of("a"))] == [1, 2]


def test_a_closed_stream_serves_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request of another thread was just opening the log."""
    opening, entered, go_on = stream.open, threading.Event(), threading.Event()
    with connected(tmp_path):
        second = connected(tmp_path)

        def slow(*args: Any, **options: Any) -> Stream:
            entered.set()
            go_on.wait(20)
            return opening(*args, **options)

        monkeypatch.setattr(served, "open_stream", slow)
    errors: list[Exception] = []

    def submit() -> None:
        try:
            second.submit("a", Transaction(1))
        except ImapWalError as error:
            errors.append(error)

    thread = threading.Thread(target=submit)
    thread.start()
    assert entered.wait(20)
    closing = threading.Thread(target=second.close)
    closing.start()
    go_on.set()
    thread.join(30)
    closing.join(30)
    assert not thread.is_alive() and not closing.is_alive() and len(errors) <= 1
    monkeypatch.undo()
    stream.open(tmp_path / "log").close()  # no process has it


def test_another_number_of_partitions_means_another_log(tmp_path: Path) -> None:
    with connected(tmp_path) as first:
        asking = connected(tmp_path, serve=False)
        assert first.partitions == asking.partitions == 2
    shutil.rmtree(tmp_path / "log")
    another = pytest.raises(Fenced, match="lacks changes that it acknowledged")
    with connected(tmp_path, partitions=4), another:
        asking.mark()
    asking.close()


def test_a_mark_of_a_forgotten_epoch_is_no_older_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epochs, "EPOCHS_MAX", 3)
    with connected(tmp_path) as first:
        asking = connected(tmp_path, serve=False)
        asking.submit("a", Transaction(0))
    for number in range(1, 8):
        with connected(tmp_path) as first:
            first.submit("a", Transaction(number))
    with connected(tmp_path):
        mark = asking.submit("a", Transaction(8))
        assert mark is not None and mark.id == 9
    asking.close()


def test_an_older_copy_is_noticed_after_a_repeated_request(tmp_path: Path) -> None:
    """The mark of a repeated request has no position, and counts for less than one that has."""
    with connected(tmp_path) as first:
        first.submit("a", Transaction(1), request="one")
    shutil.copytree(tmp_path / "log", tmp_path / "older")
    with connected(tmp_path) as first:
        asking = connected(tmp_path, serve=False)
        asking.submit("a", Transaction(2))
        first.submit("a", Transaction(3), request="three")
        first.submit("a", Transaction(4))
        mark = asking.submit("a", Transaction(3), request="three")
        assert mark is not None and (mark.id, mark.position) == (3, "")
    shutil.rmtree(tmp_path / "log")
    shutil.move(tmp_path / "older", tmp_path / "log")
    with connected(tmp_path) as first:
        for _ in range(3):
            first.submit("a", Transaction("other"))
        with pytest.raises(Fenced, match="lacks changes that it acknowledged"):
            asking.submit("a", Transaction(5), request="five")
    asking.close()


def test_an_answer_that_came_too_late_is_kept(tmp_path: Path) -> None:
    """For a reader whose mark has no position: the search for it takes long."""
    clock = FakeClock()
    with stream.open(tmp_path / "log", partitions=1) as bank:
        for number in range(5):
            bank.submit("a", Transaction(number))
        (partition,) = bank.writing
        subject, after, logged = (
            ServedStream(bank, [partition], clock),
            Mark(0, 2),
            partition.logged,
        )

        def slow(mark: Mark) -> Any:
            clock.advance(SLOW_S + 1)
            return logged(mark)

        partition.logged = slow  # type: ignore[assignment, method-assign]
        answer = subject._batch(partition, after)
        assert [line[0] for line in answer] == [3, 4, 5]
        assert subject._batch(partition, after) is answer


def test_a_server_without_room_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with connected(tmp_path):
        monkeypatch.setattr(server, "CONNECTIONS_MAX", 1)
        with pytest.raises(StorageUnavailable, match="has 1 connections"):
            connected(tmp_path, serve=False, timeout_s=10)


def test_a_server_survives_a_thread_that_cannot_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, failures = threading.Thread.start, 0

    def fails_once(thread: threading.Thread) -> None:
        nonlocal failures
        if thread.name == "imap-wal-client" and not failures:
            failures += 1
            raise RuntimeError("can't start new thread")
        start(thread)

    with connected(tmp_path):
        monkeypatch.setattr(threading.Thread, "start", fails_once)
        with connected(tmp_path, serve=False) as asking:
            assert asking.submit("a", Transaction(1)) is not None
    assert failures == 1


def test_a_stop_ends_waits(tmp_path: Path) -> None:
    """Of consumers, and of processes that ask."""
    with connected(tmp_path) as first:
        second = connected(tmp_path)
        second.consumer("c", marks=FileMarks(tmp_path / "marks"))(lambda record: None)
        mark = first.submit("a", Transaction(1))
        assert mark is not None and second.wait("c", mark)
        begin = time.monotonic()
        first.close()
        second.close()
        assert time.monotonic() - begin < 10
