"""The checks of files while they are copied."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import imap_wal
from imap_wal.backup import capture
from imap_wal.backup.run import FrameCheck, back_up
from imap_wal.clock import SystemClock
from imap_wal.context import Context, open_context
from imap_wal.read.cluster import ClusterLog
from imap_wal.segment.reader import SegmentReader
from storage_backends import SegmentStore, open_store
from tests.kit.effort import every


def log(root: Path, *, preallocate: bool = True) -> Path:
    """The first, sealed segment of a log; the next one has entries too."""
    for number in range(2):
        with imap_wal.open(
            root, node="n1", segment_bytes=1 << 20, preallocate=preallocate
        ) as store:
            for each in range(10):
                store.map("m")[f"{number}-{each}"] = "x" * 30 * each
    return min(root.rglob("*.wal"))


def checked(data: bytes, chance: random.Random, largest: int) -> FrameCheck:
    check, at = FrameCheck("n/c/nodes/n/wal/x.wal"), 0
    while at < len(data):
        size = chance.randint(1, largest)
        check.feed(data[at : at + size])
        at += size
    return check


@every(3)
@pytest.mark.parametrize("largest", [1, 7, 40, 100_000])
def test_frames_are_checked_in_any_pieces(tmp_path: Path, largest: int) -> None:
    chance = random.Random(largest)
    path = log(tmp_path)
    data = path.read_bytes().rstrip(b"\0") + bytes(30)
    reader = SegmentReader(open_store(f"file://{tmp_path}"), str(path.relative_to(tmp_path)))
    list(reader.whole_frames())
    found = checked(data, chance, largest)
    assert found.whole
    assert (found.end, found.checksum) == (reader.end, reader.checksum)
    assert found.continues_from == reader.continues_from
    for _ in range(60):
        wrong = bytearray(data)
        place = chance.randrange(len(data))
        wrong[place] ^= 1 << chance.randrange(8)
        assert not checked(bytes(wrong), chance, largest).whole, place
        short = data[: chance.randrange(reader.end)]
        cut = checked(short, chance, largest)
        assert not cut.whole or cut.end == len(short)


class Flawed:
    """A storage whose reads of some file give a wrong byte, so many times."""

    def __init__(self, inner: SegmentStore, path: str, times: int) -> None:
        self._inner, self._path, self.times = inner, path, times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        data = self._inner.read(path, offset, length)
        if path != self._path or not self.times or len(data) < 500:
            return data
        self.times -= 1
        return data[:400] + bytes([data[400] ^ 1]) + data[401:]


@pytest.mark.parametrize(("times", "damaged"), [(0, 0), (1, 0), (2, 1)])
def test_a_file_that_reads_wrongly_is_read_again(tmp_path: Path, times: int, damaged: int) -> None:
    path = log(tmp_path / "log").relative_to(tmp_path / "log")
    inner = open_store(f"file://{tmp_path}/log")
    flawed: Any = Flawed(inner, str(path), times)
    target = open_store(f"file://{tmp_path}/b")
    source = ClusterLog(Context(flawed), "default", "embedded")
    made = back_up([source], target, clock=SystemClock(), holder="test", verify=True)
    assert [each.file for each in made.backup.damaged] == [str(path)] * damaged
    if damaged:
        assert "not in the log" in made.backup.damaged[0].what
    assert flawed.times == 0
    chunks = next(each for each in made.backup.files if each.path == str(path)).chunks
    again = back_up(
        [ClusterLog(Context(inner), "default", "embedded")],
        target,
        clock=SystemClock(),
        holder="test",
    )
    assert not again.backup.damaged
    same = next(each for each in again.backup.files if each.path == str(path)).chunks
    assert (chunks == same) is not bool(damaged)


def test_a_commit_under_way_is_not_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest segment seemed to be damaged when its end was read."""
    log(tmp_path / "log")
    newest = max((tmp_path / "log").rglob("*.wal"))
    end = len(newest.read_bytes().rstrip(b"\0"))
    with newest.open("r+b") as file:
        file.truncate(end)
        file.seek(end)
        file.write(b"torn")
    found, looks = capture._front, []

    def front(store: SegmentStore, path: str, known: capture.Front | None) -> capture.Front:
        looks.append(path)
        whole = capture.Front(store.size(path), is_all=True)
        return whole if len(looks) == 1 else found(store, path, known)

    monkeypatch.setattr(capture, "_front", front)
    source = ClusterLog(open_context(f"file://{tmp_path}/log"), "default", "embedded")
    target = open_store(f"file://{tmp_path}/b")
    made = back_up([source], target, clock=SystemClock(), holder="test")
    assert not made.backup.damaged
    assert [each.size for each in made.backup.files if each.path.endswith(newest.name)] == [end]
    assert len(looks) == 2
