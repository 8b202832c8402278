"""A position is of one history of a log: a copy that was written too has another one."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import imap_wal
from imap_wal import log
from imap_wal.errors import OtherHistory, PositionGone
from imap_wal.format import ENTRIES, START
from imap_wal.log import LogReader, Position
from imap_wal.manifest.epochs import (
    EPOCHS_MAX,
    Epoch,
    all_marked,
    begun,
    forked,
    id_in,
    ids,
)
from imap_wal.segment.reader import SegmentReader
from storage_backends.local import LocalStore
from storage_backends.memory import MemoryStore, forget
from storage_backends.objects import LocalObjects
from tests.kit.effort import every, share, step
from tests.kit.nth_call import AtCall, counted, replaced
from tests.kit.repairs import frames
from tests.kit.standalone import create, fill, reading, reopen, texts_of
from tests.support import copy_files, overwrite, segments

Replace = Callable[[Path, Path], None]


def _append(folder: Path, *values: int) -> Position:
    with log.open(str(folder)) as opened:
        for value in values:
            opened.append("m", (b"k", b"%d" % value))
        return opened.high_water_mark


def _values(folder: Path, start: Position | str | None = None) -> list[bytes | None]:
    return [each.entry.value for each in LogReader(str(folder)).read(start)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A log with 0 and 1, whose copy in `copy` was made before 2 and 3 were appended."""
    here = tmp_path / "log"
    log.create(str(here)).close()
    _append(here, 0, 1)
    shutil.copytree(here, tmp_path / "copy")
    _append(here, 2, 3)
    return here


def _put_back(folder: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(folder.with_name("copy"), folder)


def test_a_position_in_what_a_copy_lacks_is_refused(folder: Path) -> None:
    read = [each.position for each in LogReader(str(folder)).read()]
    _put_back(folder)
    _append(folder, 4, 5, 6)
    for position in (read[2], read[3], read[3].after(), str(read[3].after())):
        with pytest.raises(OtherHistory) as raised:
            _values(folder, position)
        assert isinstance(raised.value, PositionGone)
        assert raised.value.asked == str(position)
        assert raised.value.oldest == "" or _values(folder, raised.value.oldest)[-3:] == [
            b"4",
            b"5",
            b"6",
        ]


def test_a_position_that_both_copies_have_continues(folder: Path) -> None:
    read = [each.position for each in LogReader(str(folder)).read()]
    _put_back(folder)
    _append(folder, 4, 5)
    assert _values(folder, read[1].after()) == [b"4", b"5"]
    assert _values(folder, str(read[0].after())) == [b"1", b"4", b"5"]


def test_opens_without_entries_leave_positions_readable(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A manifest keeps the ids of so many opens only. A process that often restarts, and writes
    nothing, let all of them be forgotten."""
    monkeypatch.setattr("imap_wal.manifest.epochs.EPOCHS_MAX", 4)
    position = [record.position for record in LogReader(str(folder)).read()][1]
    for _ in range(6):
        log.open(str(folder)).close()
    _append(folder, 4)
    assert _values(folder, str(position)) == [b"1", b"2", b"3", b"4"]


def test_a_limit_keeps_all_ids_of_an_epoch_or_none() -> None:
    """A repaired log has segments with either id of an epoch."""
    log_epochs = [
        Epoch(number, f"{number:012x}", Position(number, number, 9, 0)) for number in range(1, 201)
    ]
    epochs = forked(log_epochs, Position(1, 1, 0, 0), lambda number: f"{number + 1000:012x}")
    for number in range(201, 206):
        epochs = begun(epochs, number, f"{number:012x}", START, 0)
        assert len(epochs) <= EPOCHS_MAX
        assert {len(ids(epochs, former.number)) for former in log_epochs} == {0, 2}


@settings(max_examples=share(100, ci=50), deadline=None)
@given(numbers=st.sets(st.integers(1, 4)), of=st.lists(st.integers(1, 4)))
def test_a_position_gets_the_id_of_its_own_epoch(numbers: set[int], of: list[int]) -> None:
    """An archive may have entries of an epoch that the log has forgotten."""
    epochs = [Epoch(number, f"{number:012x}") for number in sorted(numbers)]
    positions = [Position(number, 1, 0, 0) for number in of]
    for position in all_marked(epochs, positions):
        of_epoch = f"{position.epoch:012x}" if position.epoch in numbers else ""
        assert id_in(position) == of_epoch


@pytest.mark.parametrize("archived", [False, True])
def test_a_position_that_an_open_gave_up_is_refused(tmp_path: Path, archived: bool) -> None:
    """Later opens had ended before the damage was found, so the manifest had their ends."""
    here = tmp_path / "log"
    log.create(str(here)).close()
    for value in range(0, 8, 2):
        _append(here, value, value + 1)
        if archived and not value:
            with log.open(str(here)) as opened:
                opened.archive()
    read = [record.position for record in LogReader(str(here)).read()]
    damaged = min(here.rglob("*.wal"))
    data = bytearray(damaged.read_bytes())
    first, second = (frame for frame in frames(damaged) if frame.kind == ENTRIES)
    data[(first if archived else second).end - 1] ^= 1
    damaged.write_bytes(data)
    with log.open(str(here), recovery_mode="point-in-time") as opened:
        opened.append("m", (b"k", b"9"))
    remain = 2 if archived else 1
    expected = [b"0", b"1", b"9"] if archived else [b"0", b"9"]
    assert _values(here, str(read[remain - 1])) == expected[remain - 1 :]
    for position in read[remain:]:
        with pytest.raises(OtherHistory):
            _values(here, str(position))


def _damage(store: MemoryStore) -> None:
    path = segments(store)[0]
    data = bytearray(store.read(path))
    frames = SegmentReader(store, path).whole_frames()
    data[[frame.end for frame in frames if frame.kind == ENTRIES][1] - 1] ^= 1
    overwrite(store, path, bytes(data))


def _lose(store: MemoryStore) -> None:
    for file in store.list(""):
        if "/wal/" in file.path:
            store.delete(file.path)


@every(2)
@pytest.mark.parametrize(
    ("how", "options"),
    [
        pytest.param(_damage, {"recovery_mode": "point-in-time"}, id="damaged"),
        pytest.param(_lose, {"recovery_policy": "partial"}, id="lost"),
    ],
)
def test_given_up_positions_are_refused_after_any_crash(
    how: Callable[[MemoryStore], None], options: dict[str, Any]
) -> None:
    """What follows them was given up too, so a consumer that continues there misses it. The open
    that gives up is killed at any call of the storage, and the log is opened again."""
    original = MemoryStore(f"given-up-{how.__name__}")
    create(original).close()
    for value in range(0, 6, 2):
        with reopen(original) as opened:
            fill(opened, value, value + 1)
    places = [record.position for record in reading(original).read()]
    how(original)
    for number in count(step=min(step(), 3)):
        place = copy_files(original)
        images: list[MemoryStore] = []
        gate = AtCall(place, number, lambda place=place, to=images: to.append(copy_files(place)))
        reopen(gate, **options).close()
        for image in images or [place]:
            with reopen(image, **options, takeover=True) as opened:
                fill(opened, 9)
            kept = texts_of(reading(image).read())[:-1]
            for index, position in enumerate(places):
                if index < len(kept):
                    assert texts_of(reading(image).read(position))[-1] == "9"
                else:
                    with pytest.raises(OtherHistory):
                        list(reading(image).read(str(position)))
            forget(image.url.removeprefix("memory://"))
        if not images:
            break


def test_a_tail_ends_when_its_log_is_replaced(folder: Path) -> None:
    tail = LogReader(str(folder)).tail(poll_s=0.001)
    assert [next(tail).entry.value for _ in range(4)] == [b"0", b"1", b"2", b"3"]
    _put_back(folder)
    _append(folder, 4)
    with pytest.raises(OtherHistory):
        next(tail)


def test_positions_are_those_of_appends(tmp_path: Path) -> None:
    with log.create(str(tmp_path / "log")) as opened:
        first = opened.append("m", (b"a", b"1"), (b"b", b"2"))
        found = [each.position for each in opened.read()]
        assert str(found[0]) == str(first)
        assert str(opened.high_water_mark) == str(found[1])
        assert Position.parse(str(first)) == first
        assert str(Position.parse(str(first)).after()) == str(found[1])


@settings(max_examples=share(100, ci=5))
@given(data=st.data())
def test_no_position_continues_in_another_history(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A log, copies of it at random moments, and appends to any of them. What is read on from a
    position in any of them is what that one has after it, or nothing is."""
    root = tmp_path_factory.mktemp("logs")
    histories: dict[Path, list[tuple[bytes, str]]] = {root / "0": []}
    log.create(str(root / "0")).close()
    for number in range(data.draw(st.integers(2, 6))):
        folder = data.draw(st.sampled_from(sorted(histories)))
        if data.draw(st.booleans()):
            copy = root / str(len(histories))
            shutil.copytree(folder, copy)
            histories[copy] = list(histories[folder])
        with log.open(str(folder)) as opened:
            value = b"%d" % number
            histories[folder].append((value, str(opened.append("m", (b"k", value)))))
            if data.draw(st.booleans()):
                opened.rotate()
                opened.archive()
    for has in histories.values():
        for value, at in has:
            for folder, there in histories.items():
                if (value, at) in there:
                    expected = [each for each, _ in there[there.index((value, at)) :]]
                    assert _values(folder, at) == expected
                else:
                    with pytest.raises(OtherHistory):
                        _values(folder, at)
    shutil.rmtree(root)


def test_the_log_of_a_dict_is_checked_too(tmp_path: Path) -> None:
    here = tmp_path / "log"

    def put(*values: int) -> None:
        with imap_wal.open(str(here), node="n1") as store:
            for value in values:
                store.map("m")["k"] = value

    def changes() -> Iterator[log.Record]:
        return LogReader(str(here), cluster="embedded", node="n1").read()

    put(0, 1)
    shutil.copytree(here, tmp_path / "copy")
    put(2)
    last = list(changes())[-1].position
    _put_back(here)
    put(3)
    with pytest.raises(OtherHistory):
        list(LogReader(str(here), cluster="embedded", node="n1").read(last.after()))


@every(3)
@pytest.mark.parametrize("archived", [False, True])
@pytest.mark.parametrize("kind", [LocalStore, LocalObjects])
def test_a_log_replaced_at_any_call_of_a_reader(
    tmp_path: Path, archived: bool, kind: type[LocalStore]
) -> None:
    """What it reads is the beginning of one of both histories."""
    original, copy = kind(str(tmp_path / "original")), kind(str(tmp_path / "copy"))
    with create(original) as opened:
        fill(opened, 0, 1)
        if archived:
            opened.archive()
    shutil.copytree(tmp_path / "original", tmp_path / "copy", dirs_exist_ok=True)
    for place, values in ((original, (2, 3)), (copy, (4, 5, 6))):
        with reopen(place) as opened:
            fill(opened, *values)
    histories = ["0123", "01456"]
    whole = counted(original)
    assert "".join(texts_of(reading(whole).read())) == histories[0]
    ends = set()
    for number in range(whole.calls + 8):
        gate = replaced(original, copy, number)
        tail = reading(gate).tail(poll_s=0.001, stop=gate.over)
        found = ""
        try:
            while found != histories[1]:
                found += texts_of([next(tail)])[0]
            ends.add(found)
        except StopIteration:
            raise AssertionError(f"call {number}: {found}, and then nothing") from None
        except OtherHistory:
            ends.add(f"{found}, refused")
        assert any(each.startswith(found) for each in histories), f"call {number}: {found}"
    assert {"01456", "0123, refused"} <= ends
