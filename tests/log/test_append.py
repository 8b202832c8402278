"""An append is one commit with positions in order, by one writer at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from imap_wal import log
from imap_wal.errors import (
    Closed,
    Fenced,
    InvalidSetting,
    NotAppended,
    NotSerializable,
    OutcomeUnknown,
    TooLarge,
    WriterLocked,
)
from imap_wal.layout import parse_wal_path
from imap_wal.log import Change, Log, LogReader, Position
from imap_wal.manifest.store import KEEP
from rewrite_cli.cli import group
from storage_backends.faults import Fault, FaultyStore, Plan
from storage_backends.memory import MemoryStore
from tests.kit.effort import every
from tests.kit.standalone import SMALL, create, fill, reading, reopen, texts_of
from tests.support import Threads, segments


def test_one_append_is_one_commit_with_consecutive_positions(
    memory: MemoryStore,
) -> None:
    """The append returns the position of its first entry."""
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
    """As values and as text."""
    places: list[Position] = []
    with log.create(url, **SMALL) as opened:
        places += fill(opened, *range(20))
    for life in range(3):
        opened = log.open(url, takeover=bool(life), **SMALL)  # not closed: the next open takes over
        places += fill(opened, *range(7))
        opened.rotate()
    assert places == sorted(places) and len(set(places)) == len(places)
    assert [str(place) for place in places] == sorted(map(str, places))
    assert [Position.parse(str(place)) for place in places] == places
    assert [record.position for record in LogReader(url).read()] == places


@every(2)
@pytest.mark.parametrize("scheme", ["file", "objects+file"])
def test_a_log_continues_after_its_hundred_millionth_segment(tmp_path: Path, scheme: str) -> None:
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
    """Many segments are written, and the manifest does not grow. Metadata is published by
    compare-and-swap, and the names of the segments are their list."""
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
    """The log has the entry of each thread at the position that the thread got."""
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
def test_invalid_appends_are_refused_and_append_nothing(
    memory: MemoryStore, append: Callable[[Log], Any], error: type[Exception]
) -> None:
    with create(memory, max_value_bytes=100) as opened:
        with pytest.raises(error):
            append(opened)
        fill(opened, "fine")
        assert texts_of(opened.read()) == ["fine"]


def test_every_call_on_a_closed_log_raises_closed(memory: MemoryStore) -> None:
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
    """The changes acknowledged before are in the log."""
    faulty = FaultyStore(memory)
    opened = create(faulty)
    fill(opened, 1)
    faulty.plan, faulty._seen = Plan((Fault("error", kind="sync", path="*/wal/*"),)), [0]
    with pytest.raises(OutcomeUnknown):
        fill(opened, 2)
    with pytest.raises(NotAppended):
        fill(opened, 3)
    assert texts_of(opened.read()) == ["1"], (
        "a reader of the log itself sees acknowledged entries only"
    )
    opened.close()
    with reopen(memory) as again:
        fill(again, 4)
        assert texts_of(again.read()) in (["1", "4"], ["1", "2", "4"])


def test_second_writer_is_refused_unless_it_takes_over(
    memory: MemoryStore,
) -> None:
    """A takeover fences the first writer."""
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
    assert texts_of(new.read()) == ["old", "new"]
    assert texts_of(old.read()) == ["old", "new"], "a fenced writer reads like any other reader"
    old.close()
    new.close()
    assert texts_of(reading(memory).read()) == ["old", "new"]
