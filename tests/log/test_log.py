"""What the log promises when it is used by itself: order, read-after-write, one writer, and clear
words where something cannot be."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import imap_wal
from imap_wal import format, log
from imap_wal.clock import SeededRandomness
from imap_wal.entry import DataEntry, clear_of, pack
from imap_wal.errors import (
    Closed,
    CorruptLog,
    Fenced,
    InvalidSetting,
    LogExists,
    MissingNode,
    NoSuchLog,
    NotAppended,
    NotSerializable,
    OutcomeUnknown,
    PositionGone,
    StorageUnavailable,
    TooLarge,
    WriterLocked,
)
from imap_wal.layout import parse_wal_path
from imap_wal.log import START, Change, Log, LogReader, Position, Record
from imap_wal.manifest.cluster import IncarnationRecord
from imap_wal.manifest.store import KEEP
from imap_wal.parquet import file as parquet_file
from imap_wal.read import log_reader
from imap_wal.read.cluster import ClusterLog
from imap_wal.read.log_reader import Bound
from imap_wal.read.newest.partitions import partition_id
from imap_wal.retention.archive import archive_sealed
from imap_wal.rewrite.local_engine import LocalEngine
from imap_wal.rewrite.prune import prune
from imap_wal.rewrite.run import rewrite
from imap_wal.settings import Settings
from rewrite_cli.cli import group
from storage_backends import SegmentStore
from storage_backends.faults import Fault, FaultyStore, Plan
from storage_backends.local import LocalStore
from storage_backends.memory import MemoryStore
from tests.histories import put
from tests.kit.logs import append as append_rows
from tests.kit.logs import node as agent_log
from tests.log.children import append_one, child, tail_until, write_until_killed
from tests.support import FakeClock, Threads, embedded, eventually, overwrite, segments

SMALL: dict[str, Any] = {"segment_bytes": 300, "preallocate": False}


def create(storage: SegmentStore, **options: Any) -> Log:
    return log.create(storage.url, storage=storage, **{**SMALL, **options})


def reopen(storage: SegmentStore, **options: Any) -> Log:
    return log.open(storage.url, storage=storage, **{**SMALL, **options})


def reading(storage: SegmentStore, **options: Any) -> LogReader:
    return LogReader(storage.url, storage=storage, **options)


def fill(opened: Log, *values: Any, name: str = "m") -> list[Position]:
    return [opened.append(name, (b"k", str(value).encode())) for value in values]


def told(records: Any) -> list[str]:
    return [(record.entry.value or b"").decode() for record in records]


# ---- create and open -----------------------------------------------------------------------------


def test_a_log_is_created_once_and_opened_from_then_on(url: str) -> None:
    with pytest.raises(NoSuchLog, match=r"make it with imap_wal\.log\.create"):
        log.open(url)
    with log.create(url) as opened:
        fill(opened, 1)
    with pytest.raises(LogExists, match="open it, or choose another name"):
        log.create(url)
    with log.create(url, exist_ok=True) as opened:
        fill(opened, 2)
    with log.open(url) as opened:
        fill(opened, 3)
        assert told(opened.read()) == ["1", "2", "3"]


def test_created_but_unopened_log_can_be_opened(
    memory: MemoryStore,
) -> None:
    """A log that was created and not opened because the process died can be opened."""
    faulty = FaultyStore(memory, Plan((Fault("error", kind="lock"),)))
    with pytest.raises(StorageUnavailable):
        create(faulty)
    assert list(reading(memory).read()) == []
    with reopen(memory) as opened:
        fill(opened, 1)


def test_one_of_many_concurrent_creators_makes_the_log(url: str) -> None:
    """Of many that create a log at once one makes it."""
    outcomes: list[str] = []

    def work() -> None:
        try:
            log.create(url).close()
            outcomes.append("made")
        except (LogExists, WriterLocked) as error:
            outcomes.append(type(error).__name__)

    Threads(*[work] * 6).join()
    assert outcomes.count("made") == 1 and len(outcomes) == 6


@pytest.mark.parametrize("durability", ["always", "interval", "os"])
def test_appended_entries_survive_a_reopen_with_any_durability(url: str, durability: str) -> None:
    """What was appended is there after a reopen whatever the durability."""
    with log.create(url, durability=durability) as opened:
        places = fill(opened, *range(10))
        opened.sync()
    assert [record.position for record in LogReader(url).read()] == places


def test_durability_that_storage_cannot_keep_is_refused(
    tmp_path: Path,
) -> None:
    """A durability that cannot keep the promise is refused and nothing is created."""
    with pytest.raises(
        InvalidSetting, match="positions, which are known only once they are written"
    ):
        log.create(f"file://{tmp_path}/log", durability="async")
    with pytest.raises(InvalidSetting, match="manual_wal_flush"):
        log.create(f"file://{tmp_path}/log", manual_wal_flush=True)
    with pytest.raises(InvalidSetting, match="before any reader can see it"):
        log.create(f"objects+file://{tmp_path}/log", durability="interval")
    with pytest.raises(InvalidSetting, match="there is no setting"):
        log.create(f"file://{tmp_path}/log", segment_size=1)
    assert not (tmp_path / "log").exists()


def test_logs_and_maps_keep_out_of_each_others_folders(memory: MemoryStore) -> None:
    with embedded(memory) as store:
        store.map("m")["a"] = 1
    with pytest.raises(InvalidSetting, match=r"is the log of maps.*LogReader"):
        reopen(memory, cluster="embedded", node="n1")
    with pytest.raises(InvalidSetting, match="choose another cluster name"):
        create(memory, cluster="embedded")
    with pytest.raises(InvalidSetting, match="is the log of maps"):
        create(memory, cluster="embedded", node="n1")
    with embedded(memory) as store:
        assert store.map("m")["a"] == 1
    create(memory, node="first").close()
    create(memory, node="second").close()


def test_a_log_is_refused_among_hazelcast_members(memory: MemoryStore) -> None:
    cluster = ClusterLog(memory, "default", "log", FakeClock(), SeededRandomness(1))
    cluster.manifests.update(lambda manifest: type(manifest)(claims={"a cluster id": 1}))
    with pytest.raises(InvalidSetting, match="choose another cluster name"):
        create(memory)


def test_logs_sharing_a_cluster_have_newest_map_values(memory: MemoryStore) -> None:
    """Logs that share a cluster are the newest values of a map."""
    with create(memory, node="a") as first, create(memory, node="b") as second:
        first.append("m", (b"k", b"1"), (b"only", b"a"))
        second.append("m", (b"k", b"2"))
    with imap_wal.open(
        memory.url, cluster="log", node="view", storage=memory, preallocate=False
    ) as store:
        assert dict(store.map("m", raw=True).items()) == {b"k": b"2", b"only": b"a"}
    with reopen(memory, node="a") as first:
        first.append("m", (b"k", b"3"))
    with imap_wal.open(
        memory.url, cluster="log", node="view", storage=memory, preallocate=False
    ) as store:
        assert store.map("m", raw=True)[b"k"] == b"3"
    with pytest.raises(InvalidSetting, match="choose another cluster name"):
        create(memory, node="c")
    create(memory, node="a", exist_ok=True).close()


def test_segments_may_stand_elsewhere(tmp_path: Path, url: str) -> None:
    with log.create(url, wal_dir=f"file://{tmp_path}/quick") as opened:
        places = fill(opened, 1, 2)
        assert list((tmp_path / "quick").rglob("*.wal"))
        assert [record.position for record in LogReader(url).read()] == places
        opened.archive()
        assert [record.position for record in LogReader(url).read()] == places


# ---- append --------------------------------------------------------------------------------------


def test_one_append_is_one_commit_with_consecutive_positions(
    memory: MemoryStore,
) -> None:
    """One append is one commit whose entries follow the position it returns."""
    with create(memory) as opened:
        fill(opened, "before")
        first = opened.append("m", (b"a", b"1"), Change(b"b", None), Change(b"c", b"3", 99))
        found = list(opened.read(first))
        assert [record.position for record in found] == [
            first,
            first._replace(index=1),
            first._replace(index=2),
        ]
        assert [
            (entry.key, entry.value, entry.deleted, entry.expires_at_ms) for _, entry in found
        ] == [
            (b"a", b"1", False, 0),
            (b"b", None, True, 0),
            (b"c", b"3", False, 99),
        ]
        assert found[1] in list(opened.read(found[0].position.after()))
        assert opened.high_water_mark == found[-1].position
        assert opened.statistics.records == 4


def test_positions_are_monotone_over_segments_reopens_and_takeovers(
    url: str,
) -> None:
    """Positions are monotone as values and as text over segments reopens and takeovers."""
    places: list[Position] = []
    with log.create(url, **SMALL) as opened:
        places += fill(opened, *range(20))
    for life in range(3):
        opened = log.open(url, takeover=bool(life), **SMALL)  # not closed: the next one takes over
        places += fill(opened, *range(7))
        opened.rotate()
    assert places == sorted(places) and len(set(places)) == len(places)
    assert [str(place) for place in places] == sorted(map(str, places))
    assert [Position.parse(str(place)) for place in places] == places
    assert [record.position for record in LogReader(url).read()] == places


@pytest.mark.parametrize("scheme", ["file", "objects+file"])
def test_a_log_goes_on_behind_its_hundred_millionth_segment(tmp_path: Path, scheme: str) -> None:
    url, at = f"{scheme}://{tmp_path}", 99_999_996
    with log.create(url, **SMALL) as opened:
        opened._log.manifests.update(
            lambda manifest: replace(manifest, archived=(1, at), checkpoint=Position(1, at, 0, 0))
        )
        opened._log._next_segment = at + 1
        places = []
        for number in range(8):
            places += [*fill(opened, number), *fill(opened, number, name="other")]
            opened.rotate()
            if number == 4:
                opened.archive()
    with log.open(url, takeover=True, **SMALL) as opened:
        places += fill(opened, "later")
        assert places[0].segment < 10**8 < places[-1].segment
        assert places == sorted(places) and [str(place) for place in places] == sorted(
            map(str, places)
        )
        for place in places:
            assert [record.position for record in opened.read(str(place))] == places[
                places.index(place) :
            ]
        opened.archive()
        assert [record.position for record in opened.read()] == places
        assert opened.shrink(str(places[9]), uncovered=True) > places[0]
    with log.open(url, **SMALL) as opened:
        assert opened.read().__next__().position == places[10]
    for command in ("verify", "dump", "stat", "rewrite"):
        assert CliRunner().invoke(group, [command, url]).exit_code == 0


def test_manifest_does_not_grow_with_segments(
    memory: MemoryStore,
) -> None:
    """A log has no end segment follows segment and its manifest does not grow.
    Metadata by compare-and-swap, and a list of segments that is told by their names."""
    with create(memory) as opened:
        places = fill(opened, 0)
        before = max(file.size for file in memory.list("") if "/manifest/" in file.path)
        places += fill(opened, *range(1, 1000))
        after = [file for file in memory.list("") if "/manifest/" in file.path]
        assert max(file.size for file in after) <= before + 10, (
            "the number of the newest segment has more digits"
        )
        assert len(after) <= 2 * KEEP + 3, "of the cluster and of the node"
        files = segments(memory)
        assert len(files) > 200
        assert [parse_wal_path(path) for path in files] == [
            (1, number) for number in range(1, len(files) + 1)
        ]
        assert all(memory.size(path) < 600 for path in files)
        assert [record.position for record in opened.read()] == places
    with reopen(memory) as opened:
        places += fill(opened, "more")
        assert [record.position for record in opened.read()] == places
        assert places[-1][:2] == (2, len(files) + 1)


def test_each_thread_gets_its_own_append_position(memory: MemoryStore) -> None:
    """Threads append and each gets the position of its own entry."""
    opened = create(memory)
    mine: dict[bytes, Position] = {}

    def work(thread: int) -> None:
        for number in range(40):
            value = b"%d.%d" % (thread, number)
            mine[value] = opened.append("m", (b"k", value))

    Threads(*[lambda thread=thread: work(thread) for thread in range(6)]).join()
    assert {record.entry.value: record.position for record in opened.read()} == mine
    orders = [record.entry.order for record in opened.read()]
    assert orders == sorted(orders), "the log's order is the order of changes"
    opened.close()


@pytest.mark.parametrize(
    ("append", "error"),
    [
        (lambda opened: opened.append("m", (b"k", "text")), NotSerializable),
        (lambda opened: opened.append("m", ("text", b"v")), NotSerializable),
        (lambda opened: opened.append("m", (b"k", b"x" * 200)), TooLarge),
        (lambda opened: opened.append("m", (b"k", b"v", 2**63)), NotSerializable),
        (lambda opened: opened.append("m", (b"k", b"v", -(2**63) - 1)), NotSerializable),
        (lambda opened: opened.append("m", (b"k", b"v", 1.5)), NotSerializable),
        (lambda opened: opened.append("m", (b"k", None, 1)), NotSerializable),
        (lambda opened: opened.append("m", (b"", None, 1)), NotSerializable),
        (lambda opened: opened.append("m", (None, None, 1)), NotSerializable),
        (lambda opened: opened.append("m"), InvalidSetting),
        (lambda opened: opened.append("", (b"k", b"v")), InvalidSetting),
        (lambda opened: opened.shrink("nonsense"), ValueError),
        (lambda opened: list(opened.read("1.2.3")), ValueError),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_appended(
    memory: MemoryStore, append: Callable[[Log], Any], error: type[Exception]
) -> None:
    with create(memory, max_value_bytes=100) as opened:
        with pytest.raises(error):
            append(opened)
        fill(opened, "fine")
        assert told(opened.read()) == ["fine"]


def test_a_closed_log_says_so(memory: MemoryStore) -> None:
    opened = create(memory)
    opened.close()
    opened.close()
    for use in (
        lambda: fill(opened, 1),
        opened.sync,
        opened.rotate,
        opened.archive,
        opened.shrink,
        opened.read,
        opened.tail,
    ):
        with pytest.raises(Closed):
            use()


def test_failed_write_is_reported_and_the_next_open_continues(memory: MemoryStore) -> None:
    """A failed write is reported and the next open continues."""
    faulty = FaultyStore(memory)
    opened = create(faulty)
    fill(opened, 1)
    faulty.plan, faulty._seen = Plan((Fault("error", kind="sync", path="*/wal/*"),)), [0]
    with pytest.raises(OutcomeUnknown):
        fill(opened, 2)
    with pytest.raises(NotAppended):
        fill(opened, 3)
    assert told(opened.read()) == ["1"], "a reader of the log itself sees acknowledged entries only"
    opened.close()
    with reopen(memory) as again:
        fill(again, 4)
        assert told(again.read()) in (["1", "4"], ["1", "2", "4"])


# ---- one writer ----------------------------------------------------------------------------------


def test_second_writer_is_refused_unless_it_takes_over(
    memory: MemoryStore,
) -> None:
    """A second writer is refused and one that takes over shuts the first out."""
    old = create(memory)
    place = fill(old, "old")[0]
    with pytest.raises(WriterLocked):
        reopen(memory)
    new = reopen(memory, takeover=True)
    later = fill(new, "new")[0]
    with pytest.raises((Fenced, OutcomeUnknown)):
        fill(old, "void")
    with pytest.raises((Fenced, NotAppended)):
        fill(old, "void")
    assert later > place
    assert told(new.read()) == ["old", "new"]
    assert told(old.read()) == ["old", "new"], "who was shut out reads as everybody does"
    old.close()
    new.close()
    assert told(reading(memory).read()) == ["old", "new"]


def test_a_reader_follows_while_another_process_takes_the_log_over(url: str) -> None:
    opened = log.create(url)
    fill(opened, "one")
    stop = threading.Event()
    tail = LogReader(url).tail(poll_s=0.002, stop=stop)
    own = opened.tail(poll_s=0.002, stop=stop)
    assert told([next(tail), next(own)]) == ["one", "one"]
    with child(append_one, url, b"two") as (_, pipe):
        place = pipe.recv()
        assert str(next(tail).position) == place
        assert str(next(own).position) == place, "though the old writer has not noticed yet"
    with pytest.raises(OutcomeUnknown):
        fill(opened, "void")
    stop.set()
    assert list(tail) == [] and list(own) == []
    opened.close()


# ---- reading -------------------------------------------------------------------------------------


def everywhere(opened: Log, storage: SegmentStore, places: list[Position]) -> None:
    """Reading from every position, and from between them, gives exactly what is there from it
    on."""
    for source in (opened, reading(storage)):
        assert [record.position for record in source.read(START)] == places
        for index, place in enumerate(places):
            assert [record.position for record in source.read(place)] == places[index:]
            assert [record.position for record in source.read(str(place.after()))] == places[
                index + 1 :
            ]
            between = place._replace(frame=place.frame - 1, index=5)
            assert [record.position for record in source.read(between)] == places[index:]


@pytest.mark.parametrize("kind", ["memory", "objects"])
def test_reading_starts_anywhere_in_segments_and_archives(
    kind: str, memory: MemoryStore, tmp_path: Path
) -> None:
    from storage_backends import open_store

    storage: SegmentStore = memory if kind == "memory" else open_store(f"objects+file://{tmp_path}")
    with create(storage) as opened:
        places = fill(opened, *range(12))
        everywhere(opened, storage, places)
        assert opened.archive() == 12
        everywhere(opened, storage, places)
        places += fill(opened, *range(8))
        assert opened.archive() == 8
        places += fill(opened, *range(8))
        opened.rotate()
        everywhere(opened, storage, places)


def test_archives_of_several_maps_are_read_in_position_order(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reader, "MERGE_FILES_MAX", 3)
    with create(memory, segment_bytes=5000) as opened:
        for _ in range(3):
            for number in range(40):
                opened.append(f"map {number % 11}", (b"k%d" % number, b"%d" % number), (b"x", None))
            before = list(opened.read())
            opened.archive()
            assert not segments(memory)
            assert list(opened.read()) == before
            assert list(opened.read(before[33].position)) == before[33:]


def test_memory_of_a_reader_does_not_grow_with_the_log(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tracemalloc

    monkeypatch.setattr(parquet_file, "GROUP_BYTES_MAX", 2 * 1024 * 1024)
    with log.create(url, durability="os", segment_bytes=1024 * 1024) as opened:
        for _ in range(128):
            opened.append("m", *((b"k%d" % number, os.urandom(1024)) for number in range(512)))
        for source in ("segments", "archives"):
            list(itertools.islice(LogReader(url).read(), 10))
            tracemalloc.start()
            count = sum(1 for _ in LogReader(url).read())
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert count == 128 * 512
            assert peak < 32 * 1024 * 1024, f"{source}: {peak} bytes to read 64 MiB"
            opened.archive()


def test_damaged_frame_is_an_error_with_its_place(
    memory: MemoryStore,
) -> None:
    """A damaged frame is an error with file and place and what is before it is read."""
    with create(memory) as opened:
        fill(opened, *range(9))
    path = segments(memory)[1]
    data = bytearray(memory.read(path))
    data[-3] ^= 1
    overwrite(memory, path, bytes(data))
    seen = []
    with pytest.raises(CorruptLog) as raised:
        for record in reading(memory).read():
            seen.append(record)  # noqa: PERF402
    assert raised.value.file == path
    assert told(seen) == [str(number) for number in range(len(seen))] and 0 < len(seen) < 9


def test_a_reader_of_nothing_says_what_is_missing(memory: MemoryStore) -> None:
    for use in (reading(memory).read, reading(memory).tail):
        with pytest.raises(NoSuchLog, match="node 'log' in cluster 'log'"):
            next(use())
    with pytest.raises(NoSuchLog):
        reading(memory).oldest()
    with create(memory):
        with pytest.raises(NoSuchLog):
            list(reading(memory, node="other").read())
        assert list(reading(memory).read()) == [] and reading(memory).oldest() == START


# ---- tail ----------------------------------------------------------------------------------------


def collect(tail: Any) -> tuple[list[Record], Callable[[], None]]:
    """What a thread reads from `tail`, as it comes, and how to wait for its end."""
    found: list[Record] = []

    def work() -> None:
        for record in tail:
            found.append(record)  # noqa: PERF402  # one by one: others look meanwhile

    return found, Threads(work).join


def test_tail_sees_an_entry_once_its_append_returned(memory: MemoryStore) -> None:
    """A tail sees an entry as soon as its append returned."""
    opened = create(memory)
    found, join = collect(opened.tail(poll_s=60))  # only a commit can wake it
    slow, stop = reading(memory), threading.Event()
    other, join_other = collect(slow.tail(poll_s=0.001, stop=stop))
    for number in range(60):
        place = opened.append("m", (b"k", b"%d" % number))
        assert next(opened.read(place)).position == place
        assert next(slow.read(place)).position == place
        eventually(
            lambda place=place: found and found[-1].position == place, "the entry in the tail"
        )
        if number % 20 == 7:
            opened.archive()
        if number % 20 == 13:  # not under the feet of the other one
            eventually(
                lambda number=number: len(other) == number + 1, "the entry in the other tail"
            )
            opened.shrink(place, uncovered=True)
    opened.close()
    join()
    eventually(lambda: len(other) == 60, "all in the other tail")
    stop.set()
    join_other()
    assert (
        [record.position for record in found]
        == [record.position for record in other]
        == sorted(record.position for record in found)
    )


def test_tail_ends_with_its_closed_log(
    memory: MemoryStore,
) -> None:
    """A tail ends when its log is closed with all that was acknowledged."""
    opened = create(memory)
    found, join = collect(opened.tail(poll_s=60))
    fill(opened, *range(50))
    opened.close()
    join()
    assert len(found) == 50


def test_a_tail_stops_when_it_is_told(memory: MemoryStore) -> None:
    with create(memory) as opened:
        fill(opened, *range(5))
        stop = threading.Event()
        tail = reading(memory).tail(stop=stop)
        next(tail)
        stop.set()
        assert list(tail) == []
        assert list(reading(memory).tail(stop=stop)) == []


def test_a_tail_waits_where_it_was_told_to_begin(memory: MemoryStore) -> None:
    with create(memory) as opened:
        last = fill(opened, *range(5))[-1]
        found, join = collect(opened.tail(last.after(), poll_s=0.01))
        fill(opened, "new")
    join()
    assert told(found) == ["new"]


def test_tail_in_another_process_sees_everything(url: str) -> None:
    """A tail in another process sees everything over rotations and archives."""
    with log.create(url, **SMALL) as opened:
        start = fill(opened, "begin")[0]
        with child(tail_until, url, str(start), b"end") as (_, pipe):
            assert pipe.recv() == (str(start), b"begin")
            sent = []
            for number in range(200):
                value = b"end" if number == 199 else b"%d" % number
                sent.append((str(opened.append("m", (b"k", value))), value))
                if number % 37 == 0:
                    opened.archive()
            assert [pipe.recv() for _ in sent] == sent


def test_killed_writer_leaves_acknowledged_entries_to_readers(url: str) -> None:
    """A writer that is killed leaves all it acknowledged to the readers."""
    log.create(url).close()
    stop = threading.Event()
    found, join = collect(LogReader(url).tail(poll_s=0.002, stop=stop))
    acknowledged: list[str] = []
    for _ in range(3):
        with child(write_until_killed, url) as (process, pipe):
            acknowledged += [pipe.recv() for _ in range(50)]
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            with_rest: list[str] = []
            try:
                while True:
                    with_rest.append(pipe.recv())
            except EOFError:
                acknowledged += with_rest
    log.open(url).close()
    eventually(
        lambda: {str(record.position) for record in found} >= set(acknowledged),
        "all acknowledged entries",
        10,
    )
    time.sleep(0.05)
    stop.set()
    join()
    seen = [str(record.position) for record in found]
    assert seen == sorted(set(seen))
    assert seen == [str(record.position) for record in LogReader(url).read()]


def test_a_tail_that_fails_goes_on_from_its_last_position(memory: MemoryStore) -> None:
    faulty = FaultyStore(memory)
    with create(memory) as opened:
        places = fill(opened, *range(9))
        seen: list[Position] = []
        for at in range(1, 60):
            faulty.plan, faulty._seen = Plan((Fault("error", at=at),)), [0]
            with pytest.raises(StorageUnavailable):
                for record in reading(faulty).tail(seen[-1].after() if seen else START, poll_s=0):
                    seen.append(record.position)  # noqa: PERF401
        assert seen == places


def test_limited_reader_continues_in_the_same_segment(
    memory: MemoryStore,
) -> None:
    """A reader with a limit reads on in the segment where it stopped."""

    class Limited(Bound):
        def limit(self) -> Position | None:
            return self.position

    with create(memory) as opened:
        places = fill(opened, *range(9))
    assert places[1].segment == places[0].segment < places[-1].segment
    bound = Limited()
    tail = reading(memory, bound=bound).tail(poll_s=0)
    seen = []
    for place in places:
        bound.position = place
        seen.append(next(tail).position)
    assert seen == places


def test_a_tail_does_not_read_again_what_it_has_read(memory: MemoryStore) -> None:
    class Counting(FaultyStore):
        bytes = 0

        def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
            data = super().read(path, offset, length)
            self.bytes += len(data)
            return data

    counting = Counting(memory)
    with create(memory, segment_bytes=1024 * 1024) as opened:
        tail = reading(counting).tail(poll_s=0.001)
        for _ in range(300):
            fill(opened, "x" * 200)
            next(tail)
        assert counting.bytes < 300 * 6000, (
            "the segment's front and a frame each time, not all 80 KiB"
        )


def test_tail_reports_another_disk_under_its_log(memory: MemoryStore) -> None:
    """Another disk under the name of a log is reported to its tail."""
    opened = create(memory)
    fill(opened, 1)
    tail = reading(memory).tail(poll_s=0.001)
    next(tail)
    opened.close()
    for file in memory.list(""):
        if "/nodes/" in file.path:
            memory.delete(file.path)
    with create(memory, recovery_policy="partial", randomness=SeededRandomness(2)) as other:
        fill(other, 2)
        other.archive()
        with pytest.raises(MissingNode, match="its log was replaced"):
            next(tail)


# ---- smaller -------------------------------------------------------------------------------------


def covered(storage: SegmentStore, cluster: str = "log") -> ClusterLog:
    """The cluster, with a fresh snapshot of all its maps."""
    found = ClusterLog(storage, "default", cluster, FakeClock(), SeededRandomness(7))
    rewrite(found, LocalEngine(Settings()))
    return found


def test_shrink_removes_only_what_a_snapshot_covers(memory: MemoryStore) -> None:
    with create(memory) as opened:
        places = fill(opened, *range(12))
        opened.rotate()
        assert opened.shrink() == START, "no snapshot covers anything"
        everywhere(opened, memory, places)
        covered(memory)
        later = fill(opened, *range(12, 20))
        oldest = opened.shrink()
        assert places[0] < oldest <= places[-1].after()
        left = [record.position for record in opened.read()]
        assert left == [place for place in places + later if place >= oldest] and set(later) <= set(
            left
        )
        with pytest.raises(PositionGone) as raised:
            list(opened.read(places[0]))
        assert raised.value.oldest == str(oldest)
        assert [record.position for record in opened.read(raised.value.oldest)] == left
        assert reading(memory).oldest() == oldest
        fill(opened, "more")
    with reopen(memory) as opened:
        assert [record.position for record in opened.read()][: len(left)] == left
    with imap_wal.open(memory.url, cluster="log", node="view", storage=memory) as store:
        assert store.map("m", raw=True)[b"k"] == b"more", "the snapshot has what was removed"


@pytest.mark.parametrize("archived", [False, True])
def test_shrink_upto_a_position_keeps_everything_above_it(
    memory: MemoryStore, archived: bool
) -> None:
    with create(memory) as opened:
        places = fill(opened, *range(8))
        if archived:
            opened.archive()
        places += fill(opened, *range(8, 20))
        if archived:
            opened.archive()
        opened.rotate()
        assert opened.shrink(places[0]) == START
        for upto in (places[2], places[9], places[15], places[9]):
            oldest = opened.shrink(upto, uncovered=True)
            assert oldest <= places[15].after()
            assert [record.position for record in opened.read()] == [
                place for place in places if place >= oldest
            ]
        places += fill(opened, "more")
        assert opened.shrink(uncovered=True) == places[-2].after(), (
            "the segment being written stays"
        )
        opened.rotate()
        assert opened.shrink(uncovered=True) == places[-1].after()
        assert list(opened.read()) == [] and not segments(memory)
        after = fill(opened, "after")
        assert [record.position for record in opened.read()] == after
    with reopen(memory) as opened:
        assert after[0] < fill(opened, "again")[0]
        assert told(opened.read()) == ["after", "again"]


def test_covered_files_are_removed_after_their_retention(memory: MemoryStore) -> None:
    """What a snapshot covers goes when it has outlived its time."""
    with create(memory, wal_ttl_seconds=1, clock=FakeClock()) as opened:
        places = fill(opened, *range(12))
        opened.archive()
        assert [record.position for record in opened.read()] == places
        covered(memory)
        places += fill(opened, "new")
        opened.archive()
        assert told(opened.read()) == ["new"] and opened.shrink(START) == places[-2].after()


def test_a_log_removes_what_a_snapshot_covers_by_itself(memory: MemoryStore) -> None:
    with create(memory) as opened:
        fill(opened, *range(12))
        opened.archive()
    covered(memory)
    with reopen(memory, wal_ttl_seconds=1) as opened:
        eventually(
            lambda: not any("/archive/" in file.path for file in memory.list("")),
            "the covered archive goes",
        )
        fill(opened, "new")
        assert told(opened.read()) == ["new"]


def test_reader_at_pruned_position_gets_the_oldest_position(memory: MemoryStore) -> None:
    """The error for a reader at a removed position names the oldest position."""
    with create(memory) as opened:
        places = fill(opened, *range(12))
        opened.archive()
        fill(opened, "new")
        prune(covered(memory))
        with pytest.raises(PositionGone) as raised:
            list(opened.read(places[3]))
        assert raised.value.oldest == str(places[-1].after())
        assert told(opened.read(places[-1].after())) == ["new"]
        assert told(opened.read()) == ["new"]


def test_only_a_tail_that_missed_removed_entries_fails(
    memory: MemoryStore,
) -> None:
    """A tail that has read what is removed continues; one that has not gets an error."""
    with create(memory) as opened:
        places = fill(opened, *range(20))
        opened.rotate()
        places += fill(opened, "last")
        ahead, behind = reading(memory).tail(poll_s=0.001), reading(memory).tail(poll_s=0.001)
        assert [next(ahead).position for _ in places] == places
        next(behind)
    with reopen(memory) as opened:  # the last frame is a clean shutdown now, which is no entry
        opened.shrink(places[-1], uncovered=True)
        fill(opened, "new")
        assert told([next(ahead)]) == ["new"]
        with pytest.raises(PositionGone):
            list(behind)


# ---- logs of maps --------------------------------------------------------------------------------


def test_the_log_of_embedded_maps_is_read_and_followed(memory: MemoryStore) -> None:
    store = embedded(memory, segment_bytes=400)
    changes = reading(memory, cluster="embedded", node="n1").tail(poll_s=0.001)
    expected = []
    for number in range(30):
        store.map("m")[number] = number
        expected.append((number, number))
        if number % 10 == 3:
            store.archive()
        if number % 10 == 6:
            del store.map("m")[number]
            expected.append((number, None))
    store.close()
    load = imap_wal.MsgpackSerializer().load
    found = [next(changes).entry for _ in expected]
    assert [
        (load(entry.key), None if entry.deleted else load(entry.value or b"")) for entry in found
    ] == expected


def test_agent_log_is_read_without_void_entries(
    memory: MemoryStore,
) -> None:
    """The log of an agent is read without what a later lifetime made void."""
    writer = agent_log(memory)
    append_rows(writer, put("a", "1", (1, 1, 1, 1)))
    cut = writer.end
    append_rows(writer, put("a", "void", (1, 1, 1, 2)))
    writer.clusters.update(
        lambda manifest: type(manifest)(
            2, {"x": 2}, (IncarnationRecord("x", 2, {"n1": cut}),), manifest.nodes
        )
    )
    append_rows(writer, put("a", "2", (2, 1, 1, 1)))
    read = reading(memory, namespace="ns", cluster="c", node="n1")
    assert told(read.read()) == ["1", "2"]
    writer.close()
    archive_sealed(memory, writer.identity.node_folder, "n1", writer.manifests)
    assert told(read.read()) == ["1", "2"]


def test_log_is_replicated_by_read_and_append(memory: MemoryStore, url: str) -> None:
    """A log is replicated by reading one and appending to the other."""
    with embedded(memory) as store:
        store.map("m").update(a=1, b=2)
        store.map("other").put("c", 3, ttl=1000)
    source = reading(memory, cluster="embedded", node="n1")
    with log.create(url) as copy:
        copy.append_entries(entry for _, entry in source.read())
        kept = [entry._replace(order=(0, 0, 0, 0)) for _, entry in copy.read()]
        assert kept == [entry._replace(order=(0, 0, 0, 0)) for _, entry in source.read()]
        with pytest.raises(NotSerializable):
            copy.append_entries(
                [DataEntry("m", b"k", "", b"value", "", True, 0, 0, 0, (0, 0, 0, 0))]
            )
    with imap_wal.open(url, cluster="log", node="view") as store:
        assert (
            dict(store.map("m").items()) == {"a": 1, "b": 2}
            and store.map("other").ttl("c") is not None
        )


@pytest.mark.parametrize("field", ["timestamp_ms", "expires_at_ms", "partition"])
@pytest.mark.parametrize("value", [-(2**63) - 1, 2**63, 2**64 - 1], ids=str)
def test_log_refuses_a_number_outside_the_archive_range(
    memory: MemoryStore, field: str, value: int
) -> None:
    """It was acknowledged, and every later `archive` failed."""
    taken = DataEntry("m", b"k", "", b"v", "", False, 0, 0, 0, (0, 0, 0, 0))
    with create(memory) as opened:
        with pytest.raises(
            NotSerializable, match=rf"map 'm': .*{field} is {value}; it takes -2\^63 to 2\^63 - 1"
        ):
            opened.append_entries([taken, taken._replace(**{field: value})])
        opened.append_entries(taken._replace(**{field: edge}) for edge in (-(2**63), 2**63 - 1))
        assert opened.archive() == 2
        assert [getattr(entry, field) for _, entry in opened.read()] == [-(2**63), 2**63 - 1]


def test_a_map_that_was_cleared_is_replicated_with_its_clears(
    memory: MemoryStore, url: str
) -> None:
    made = [
        DataEntry(*put("\0" * 8 + f"k{number}", number, (1, 1, 1, number + 1)))
        for number in range(20)
    ]
    rows = [tuple(entry._replace(key_class="raw", value_class="raw")) for entry in made]
    agent = agent_log(memory)
    append_rows(agent, *rows)
    cleared = clear_of("orders", 2, 5, 1000, (1, 1, 1, 21))
    agent.write(format.CLEARS, 1, [pack(cleared)])
    agent.close()
    with embedded(memory, cluster="maps") as store:
        filled = store.map("m")
        filled["a"] = 1
        filled.clear()
        filled["b"] = 2
    sources = [
        reading(memory, namespace="ns", cluster="c", node="n1"),
        reading(memory, cluster="maps", node="n1"),
    ]
    with log.create(url) as copy:
        for source in sources:
            copy.append_entries(entry for _, entry in source.read())
        with pytest.raises(NotSerializable, match="partition 5 of 5"):
            copy.append_entries([DataEntry(*cleared)._replace(partition=5)])
        with pytest.raises(NotSerializable, match="key_class"):
            copy.append_entries([DataEntry(*cleared)._replace(key_class="k")])
        for _ in range(2):
            entries = [entry for _, entry in copy.read()]
            assert [
                (entry.map, entry.expires_at_ms, entry.partition)
                for entry in entries
                if entry.key is None
            ] == [("orders", 5, 2), ("m", 1, 0)]
            copy.archive()
    left = {row[1] for row in rows if partition_id(row[1], 5) != 2}
    assert 0 < len(left) < len(rows)
    with imap_wal.open(url, cluster="log", node="view") as store:
        assert dict(store.map("m").items()) == {"b": 2}
        assert set(store.map("orders", raw=True).keys()) == left


def test_a_segment_whose_header_appears_between_two_looks_is_read(memory: MemoryStore) -> None:
    with create(memory) as opened:
        places = fill(opened, 1)
    (path,) = segments(memory)

    class Late(FaultyStore):
        """The first read of the segment comes before its writer's first write."""

        def read(self, path_: str, offset: int = 0, length: int | None = None) -> bytes:
            data = super().read(path_, offset, length)
            if (
                path_ == path
                and sum(
                    operation.kind == "read" and operation.path == path
                    for operation in self.operations
                )
                == 1
            ):
                return bytes(len(data))
            return data

    assert [record.position for record in reading(Late(memory)).read()] == places


def test_a_log_archives_by_size_when_it_is_told_to(memory: MemoryStore) -> None:
    with create(memory, max_total_wal_size=600) as opened:
        places = fill(opened, *range(60))
        eventually(
            lambda: any(file.path.endswith(".parquet") for file in memory.list("")), "an archive"
        )
        assert [record.position for record in opened.read()] == places


def test_log_in_a_folder_is_readable_by_map_tools(url: str, tmp_path: Path) -> None:
    """A log in a folder is what the tools for maps read."""
    with log.create(url) as opened:
        fill(opened, 1, 2)
    store = LocalStore(f"{tmp_path}/log")
    rows = [
        row for changes in ClusterLog(store, "default", "log").changes() for row in changes.rows
    ]
    assert [row[3] for row in rows] == [b"1", b"2"]
