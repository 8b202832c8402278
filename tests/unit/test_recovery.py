"""What an open makes of damage, in every mode: the table of `imap_wal.write.recovery`, line by
line."""

from __future__ import annotations

import logging
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import google_crc32c
import pytest

import imap_wal
from imap_wal import format, layout
from imap_wal.clock import SeededRandomness
from imap_wal.errors import CorruptLog, InvalidSetting, LogError, ShortLog, UnsupportedVersion
from imap_wal.format import Position
from imap_wal.manifest.node import node_manifests
from imap_wal.segment.reader import SegmentReader
from imap_wal.settings import RecoveryMode
from storage_backends.faults import Fault, FaultyStore, Killed, Plan
from storage_backends.memory import MemoryStore
from tests.support import (
    IDENTITY,
    FakeClock,
    contents,
    copy_files,
    embedded,
    node_log,
    overwrite,
    row,
    segments,
)

MODES = ("absolute", "torn-tail", "point-in-time")
FOLDER = IDENTITY.node_folder


def history(memory: MemoryStore, *, segments_: int = 3, frames: int = 4, sync: bool = True) -> None:
    """Segments of so many frames with one entry each (key = number of the frame, from 0), then a
    kill: nothing is closed."""
    log = node_log(memory)
    number = 0
    for segment in range(segments_):
        for _ in range(frames):
            log.write(format.ENTRIES, 1, [row(str(number), "v", number + 1)])
            if sync:
                log.sync()
            number += 1
        if segment + 1 < segments_:
            log.rotate()


def entries(store: MemoryStore) -> list[int]:
    """Keys of all entries in the segments, in log order."""
    return [
        int(row[1])
        for path in segments(store)
        if "/wal/" in path
        for frame in SegmentReader(store, path).frames()
        for row in _rows(frame)
    ]


def _rows(frame: format.Frame) -> Iterator[Any]:
    from imap_wal import entry

    return entry.rows(frame.payload) if frame.kind == format.ENTRIES else iter(())


def offsets(store: MemoryStore, path: str) -> list[int]:
    reader = SegmentReader(store, path)
    return [*(frame.offset for frame in reader.frames()), reader.end]


def flip(store: MemoryStore, segment: int, frame: int, byte: int = 14) -> None:
    path = segments(store)[segment]
    data = bytearray(store.read(path))
    data[offsets(store, path)[frame] + byte] ^= 0x40
    overwrite(store, path, bytes(data))


def cut(store: MemoryStore, segment: int, frame: int, more: int = 0) -> None:
    path = segments(store)[segment]
    overwrite(store, path, store.read(path)[: offsets(store, path)[frame] + more])


def lost_files(store: MemoryStore) -> dict[str, bytes]:
    return {file.path: store.read(file.path) for file in store.list(f"{FOLDER}/lost")}


# ---- the table -----------------------------------------------------------------------------------

Damage = Callable[[MemoryStore], None]
ALL = list(range(12))

# name: what is done to three segments of four frames; whether it is a tail; what is left where it
# is cut or given up; frames lost that verify
DAMAGES: dict[str, tuple[Damage, bool, list[int], int]] = {
    "the last frame cut short": (lambda store: cut(store, 2, 3, 9), True, ALL[:11], 0),
    "a bit flipped in the last frame": (lambda store: flip(store, 2, 3), True, ALL[:11], 0),
    "a bit flipped in a middle frame of the newest segment": (
        lambda store: flip(store, 2, 1),
        False,
        ALL[:9],
        2,
    ),
    "a bit flipped in a sealed segment": (lambda store: flip(store, 1, 2), False, ALL[:6], 5),
    "a bit flipped in the last frame of a sealed segment": (
        lambda store: flip(store, 0, 3),
        False,
        ALL[:3],
        8,
    ),
    "a bit flipped in the header of a sealed segment": (
        lambda store: flip_header(store, 1),
        False,
        ALL[:4],
        4,
    ),
    "a sealed segment cut in the middle of a frame": (
        lambda store: cut(store, 1, 2, 5),
        False,
        ALL[:6],
        4,
    ),
    "a sealed segment cut between two frames": (lambda store: cut(store, 0, 2), False, ALL[:2], 8),
    "the first segment cut behind its header": (lambda store: cut(store, 0, 0), False, [], 8),
    "a sealed segment cut behind its header": (lambda store: cut(store, 1, 0), False, ALL[:4], 4),
    "a segment missing": (lambda store: store.delete(segments(store)[1]), False, ALL[:4], 4),
    "the first segment missing": (lambda store: store.delete(segments(store)[0]), False, [], 8),
    "a sealed segment of random bytes": (
        lambda store: overwrite(store, segments(store)[1], Random(7).randbytes(500)),
        False,
        ALL[:4],
        4,
    ),
    "a sealed segment of no bytes": (
        lambda store: overwrite(store, segments(store)[1], b""),
        False,
        ALL[:4],
        4,
    ),
}


def flip_header(store: MemoryStore, segment: int) -> None:
    path = segments(store)[segment]
    data = bytearray(store.read(path))
    data[30] ^= 1
    overwrite(store, path, bytes(data))


@pytest.mark.parametrize("name", DAMAGES)
@pytest.mark.parametrize("mode", ["absolute", "torn-tail"])
def test_damage_in_synced_frames_is_refused_without_changes(
    memory: MemoryStore, mode: str, name: str
) -> None:
    """Damage below the last synced position is refused and nothing is changed."""
    damage, tail, _, _ = DAMAGES[name]
    history(memory)
    left = copy_files(memory)
    damage(left)
    if tail and mode == "torn-tail":
        return
    before = {path: left.read(path) for path in segments(left)}
    with pytest.raises(LogError) as caught:
        node_log(left, recovery_mode=mode)
    assert {path: left.read(path) for path in segments(left)} == before
    assert not lost_files(left)
    assert node_manifests(left, FOLDER, FakeClock(), None).read()[1].epoch == 1  # type: ignore[arg-type]  # nothing is published
    assert isinstance(caught.value, CorruptLog | ShortLog)
    if not tail:
        assert "imap-wal repair" in str(caught.value)
        assert "point-in-time" in str(caught.value)


@pytest.mark.parametrize("name", DAMAGES)
def test_point_in_time_permanently_drops_entries_after_damage(
    memory: MemoryStore, name: str
) -> None:
    """Point in time keeps what is before the damage and nothing after it ever comes back."""
    damage, tail, kept, frames_lost = DAMAGES[name]
    history(memory)
    left = copy_files(memory)
    damage(left)
    damaged = {path: left.read(path) for path in segments(left)}
    log = node_log(left, recovery_mode="point-in-time")
    assert entries(left) == kept
    lost = log.recovery.lost
    if tail:
        assert lost is None
        assert log.recovery.torn_bytes > 0
    else:
        assert lost is not None
        assert (lost.frames, lost.records) == (frames_lost, frames_lost)
        assert lost.last is not None
        assert lost.first < lost.last
        for path in lost.put_aside:
            assert left.read(path) == damaged[f"{FOLDER}/wal/{path.rpartition('/')[2]}"], (
                "what was put aside is as it was"
            )
    # What is written from here on stands behind everything that ever was, and stays; what was given
    # up does not come back.
    log.write(format.ENTRIES, 1, [row("100", "v", 100)])
    log.sync()
    for mode in MODES:
        again = copy_files(left)
        opened = node_log(again, recovery_mode=mode)
        assert opened.recovery.lost is None
        assert entries(again) == [*kept, 100]
        assert opened.end > Position(1, 3, 0, 0)
    log.close()
    assert node_log(left).recovery.clean
    assert contents(left, "m").keys() == {str(key).encode() for key in [*kept, 100]}


@pytest.mark.parametrize("name", [name for name in DAMAGES if DAMAGES[name][1]])
@pytest.mark.parametrize("mode", ["torn-tail", "point-in-time"])
def test_a_torn_tail_is_cut_off(memory: MemoryStore, mode: str, name: str) -> None:
    damage, _, kept, _ = DAMAGES[name]
    history(memory)
    left = copy_files(memory)
    damage(left)
    log = node_log(left, recovery_mode=mode)
    assert entries(left) == kept
    assert log.recovery.torn_file == layout.original_path(segments(left)[2])
    assert log.recovery.lost is None


@pytest.mark.parametrize("mode", ["torn-tail", "point-in-time"])
def test_unsynced_frames_after_a_torn_one_are_quarantined(
    memory: MemoryStore, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whole frames after a torn one that was never synced are cut off with it and put aside and
    said."""
    history(memory, segments_=1, frames=6, sync=False)
    left = copy_files(memory)
    flip(left, 0, 2)
    damaged = left.read(segments(left)[0])
    with pytest.raises(CorruptLog, match="incomplete last commit"):
        node_log(copy_files(left), recovery_mode="absolute")
    with caplog.at_level(logging.WARNING, logger="imap_wal"):
        log = node_log(left, recovery_mode=mode)
    assert entries(left) == [0, 1]
    lost = log.recovery.lost
    assert lost is not None
    assert (lost.frames, lost.records) == (3, 3)
    assert [left.read(path) for path in lost.put_aside] == [damaged]
    (said,) = caplog.records
    assert str(lost.first) in said.getMessage()
    assert str(lost.last) in said.getMessage()


@pytest.mark.parametrize("mode", MODES)
def test_a_newer_version_is_refused_in_every_mode(memory: MemoryStore, mode: str) -> None:
    history(memory)
    left = copy_files(memory)
    newer(left)
    with pytest.raises(UnsupportedVersion):
        node_log(left, recovery_mode=mode)


def test_refusal_names_file_offset_and_positions_at_stake(
    memory: MemoryStore,
) -> None:
    """The refusal names file offset and the first and last position at stake."""
    history(memory)
    left = copy_files(memory)
    path = segments(left)[1]
    at, last = offsets(left, path)[2], offsets(left, segments(left)[2])[3]
    flip(left, 1, 2)
    with pytest.raises(CorruptLog) as caught:
        node_log(left)
    assert (caught.value.file, caught.value.offset) == (path, at)
    assert (
        f"first lost position {Position(1, 2, at, 0)}, 5 whole frames with 5 entries follow "
        f"it, up to {Position(1, 3, last, 0)}" in str(caught.value)
    )


@pytest.mark.parametrize(
    ("seed", "said"),
    [
        (1, r"continues from a later frame|names as the last good one"),
        (2, "and this log has the directory"),
    ],
    ids=["copy", "other log"],
)
@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("exchanged", range(3))
def test_exchanged_whole_segment_is_refused(
    memory: MemoryStore, exchanged: int, closed: bool, seed: int, said: str
) -> None:
    """A segment that was exchanged for a whole one from elsewhere is refused.
    Of the same node, epoch and number, with whole frames. From a copy of the log that was
    written
    to: its neighbours know that it is not theirs. From another log: its header names that log."""
    history(memory)
    left = copy_files(memory)
    elsewhere = copy_files(MemoryStore("nothing"))
    other = node_log(elsewhere, seed=seed)
    for number in range(12):
        other.write(format.ENTRIES, 1, [row(f"foreign {number}", "v", number + 1)])
        other.sync()
        if number % 4 == 3 and number < 11:
            other.rotate()
    foreign = copy_files(elsewhere)
    if closed:
        for store in (left, foreign):
            node_log(store).close()
    path = segments(left)[exchanged]
    whole = SegmentReader(foreign, path)
    assert list(whole.frames()) and whole.tail().status == "clean"
    overwrite(left, path, foreign.read(path))
    for mode in ("absolute", "torn-tail"):
        with pytest.raises(LogError, match=said):
            contents(left, recovery_mode=mode)


def test_salvage_is_not_for_an_open() -> None:
    with pytest.raises(InvalidSetting, match="imap-wal repair"):
        embedded(MemoryStore("salvage"), recovery_mode="salvage")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", DAMAGES)
def test_map_load_verifies_checksums_after_any_stop(
    memory: MemoryStore, name: str, mode: str
) -> None:
    """All that a start of maps loads is checked by its checksums whether the stop was clean or
    not.
    No setting turns that off. A clean stop makes the open quick, not the restore behind it
    credulous."""
    history(memory)
    node_log(copied := copy_files(memory)).close()
    assert node_manifests(copied, FOLDER, FakeClock(), SeededRandomness(1)).read()[1].clean
    damage, _, kept, _ = DAMAGES[name]
    damage(copied)
    if mode == "point-in-time":
        assert contents(copied, recovery_mode=mode).keys() == {str(key).encode() for key in kept}
    else:
        with pytest.raises(LogError):
            contents(copied, recovery_mode=mode)


def test_point_in_time_finds_damage_below_the_checkpoint(memory: MemoryStore) -> None:
    """Damage below the checkpoint is found by point in time too.
    A restore meets it, and sends people here."""
    history(memory)
    left = copy_files(memory)
    node_log(left).close()
    flip(left, 0, 1)
    with pytest.raises(CorruptLog, match="point-in-time"):
        contents(left)
    assert contents(left, recovery_mode="point-in-time").keys() == {b"0"}


# ---- the table of docs/durability.md, cell by cell ----

PAGE = Path(__file__).parents[2] / "docs/durability.md"


def closed(store: MemoryStore) -> None:
    node_log(store).close()


def unsynced(store: MemoryStore) -> None:
    """Six frames of which none is known to be synced; the third is damaged."""
    for file in store.list(""):
        store.delete(file.path)
    other = copy_files(MemoryStore("nothing"))
    history(other, segments_=1, frames=6, sync=False)
    for file in other.list(""):
        store.create(file.path, other.read(file.path))
    flip(store, 0, 2)


def newer(store: MemoryStore) -> None:
    path = segments(store)[1]
    data = bytearray(store.read(path))
    end = SegmentReader(store, path).first
    data[8] = 9
    data[end - 4 : end] = struct.pack("<I", google_crc32c.value(bytes(data[: end - 4])))
    overwrite(store, path, bytes(data))


def those(wanted: Callable[[str], bool]) -> list[tuple[Damage, list[int]]]:
    """Of the damages above, what is done and what is left."""
    return [(damage, kept) for name, (damage, _, kept, _) in DAMAGES.items() if wanted(name)]


# How a line of the page begins → what is done to the log, and what is left where the open does not
# refuse.
LINES: dict[str, list[tuple[Damage, list[int]]]] = {
    "a clean stop": [(closed, ALL)],
    "an incomplete last commit": those(lambda name: DAMAGES[name][1]),
    "damage above the last synced position": [(unsynced, [0, 1])],
    "damage below the last synced position": those(
        lambda name: not DAMAGES[name][1] and ("flipped" in name or "bytes" in name)
    ),
    "a missing segment; a sealed segment that lost its end; a segment of another log": those(
        lambda name: "missing" in name or "segment cut" in name
    ),
    "a segment of a newer format": [(newer, [])],
}


def table() -> Iterator[tuple[str, str, str]]:
    """(line, mode, what the page says)."""
    rows = [
        re.split(r"\s*\|\s*", line.strip("| "))
        for line in PAGE.read_text(encoding="utf-8").split("## What an open does")[1].splitlines()
        if "|" in line
    ]
    (_, *heads), _, *lines = rows
    for line, *cells in lines:
        yield from (
            (line, re.findall(r"`([\w-]+)`", head)[0], cell)
            for head, cell in zip(heads, cells, strict=True)
        )


def test_recovery_page_lists_every_mode_and_damage() -> None:
    """The page has every mode of an open and a line for every kind of damage."""
    assert {mode for _, mode, _ in table()} == set(RecoveryMode)
    assert len({line for line, *_ in table()}) == len(LINES)
    assert all(any(line.startswith(begin) for line, *_ in table()) for begin in LINES)
    tried = [damage for cases in LINES.values() for damage, _ in cases]
    assert all(damage in tried for damage, *_ in DAMAGES.values())


@pytest.mark.parametrize(("line", "mode", "said"), list(table()))
def test_an_open_does_with_damage_what_the_page_says(
    memory: MemoryStore, line: str, mode: str, said: str
) -> None:
    (cases,) = [cases for begin, cases in LINES.items() if line.startswith(begin)]
    history(memory)
    for damage, kept in cases:
        left = copy_files(memory)
        damage(left)
        if said == "refuses":
            with pytest.raises(LogError):
                node_log(left, recovery_mode=mode)
            assert not lost_files(left)
            continue
        recovery = node_log(left, recovery_mode=mode).recovery
        assert entries(left) == kept
        assert (recovery.lost is not None) == ("put aside" in said) == bool(lost_files(left))
        assert bool(recovery.torn_bytes) == said.startswith(("cut off", "given up"))
        if said.startswith("opens"):
            assert (recovery.frames == len(ALL)) == ("scan" in said)


def test_missing_segment_refusal_names_what_is_at_stake(memory: MemoryStore) -> None:
    """A refusal for a missing segment names what is at stake."""
    history(memory)
    left = copy_files(memory)
    left.delete(segments(left)[1])
    stakes = (
        r"first lost position 00000001\.00000002\..* 4 whole frames with 4 entries follow it, up "
        r"to 00000001\.00000003"
    )
    with pytest.raises(ShortLog, match=stakes):
        node_log(left)


def test_absolute_reads_the_whole_log_after_clean_stop(memory: MemoryStore) -> None:
    """Absolute looks at all there is also after a clean stop."""
    history(memory)
    left = copy_files(memory)
    node_log(left).close()
    node_log(left, recovery_mode="absolute").close()
    flip(left, 0, 1)
    node_log(
        copy_files(left)
    ).close()  # who does not ask is told by a restore, or by `imap-wal verify`
    with pytest.raises(CorruptLog, match="first lost position"):
        node_log(left, recovery_mode="absolute")


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("whose", [{"cluster": "other"}, {"namespace": "other"}, {"node": "other"}])
def test_whole_segment_of_another_log_is_refused(
    memory: MemoryStore, tmp_path: Path, clean: bool, whose: dict[str, str]
) -> None:
    """A segment of another log is refused though it is whole."""
    history(memory, segments_=1)
    about = {
        "node": IDENTITY.node,
        "cluster": IDENTITY.cluster,
        "namespace": IDENTITY.namespace,
        **whose,
    }
    with imap_wal.open(tmp_path.as_uri(), preallocate=False, **about) as other:  # type: ignore[arg-type]
        other.map("m")["theirs"] = 1
    left = copy_files(memory)
    if clean:
        node_log(left).close()
    overwrite(left, segments(left)[-1], next(tmp_path.rglob("*.wal")).read_bytes())
    with pytest.raises(LogError, match="under another name"):
        contents(copy_files(left))
    with pytest.raises(LogError, match="under another name"):
        node_log(left)


# ---- a recovery that dies ------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["torn-tail", "point-in-time"])
@pytest.mark.parametrize(
    "name",
    ["a segment missing", "a bit flipped in a sealed segment", "a bit flipped in the last frame"],
)
def test_killed_recovery_has_the_same_result_next_time(
    memory: MemoryStore, mode: str, name: str
) -> None:
    """A recovery killed at any operation ends the same the next time."""
    damage, tail, kept, _ = DAMAGES[name]
    if mode == "torn-tail" and not tail:
        return
    history(memory)
    damaged = copy_files(memory)
    damage(damaged)
    counted = FaultyStore(copy_files(damaged))
    node_log(counted, recovery_mode=mode)
    assert counted.count > 10
    for at in range(1, counted.count + 1):
        left = copy_files(damaged)
        with pytest.raises(Killed):
            node_log(FaultyStore(left, Plan((Fault("kill", at=at),))), recovery_mode=mode)
        again = copy_files(left)
        node_log(again, recovery_mode=mode)
        assert entries(again) == kept, f"killed before operation {at}"


# ---- a clean stop is read first ------------------------------------------------------------------


class Counting(MemoryStore):
    """Counts the bytes that are read of segments."""

    def __init__(self, source: MemoryStore) -> None:
        super().__init__(f"counting-{id(self)}")
        for file in source.list(""):
            self.create(file.path, source.read(file.path))
        self.bytes = 0

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        data = super().read(path, offset, length)
        self.bytes += len(data) if path.endswith(".wal") else 0
        return data


@pytest.mark.parametrize("frames", [10, 2000])
def test_clean_start_reads_only_the_last_frame(memory: MemoryStore, frames: int) -> None:
    """A clean start reads the last frame only however long the log is."""
    log = node_log(memory, segment_bytes=1 << 30)
    for number in range(frames):
        log.write(format.ENTRIES, 1, [row(str(number), "v" * 100, number + 1)])
    log.sync()
    log.close()
    store = Counting(memory)
    again = node_log(store)
    assert again.recovery.clean
    assert store.bytes < 5000
    assert again.requests == log.requests


def test_an_unclean_start_scans_from_the_last_checkpoint(memory: MemoryStore) -> None:
    log = node_log(memory, segment_bytes=1 << 30)
    for number in range(2000):
        log.write(format.ENTRIES, 1, [row(str(number), "v" * 100, number + 1)])
    log.close()
    second = node_log(memory)
    second.write(format.ENTRIES, 1, [row("after", "v", 2001)])
    second.sync()
    store = Counting(copy_files(memory))
    third = node_log(store)
    assert (third.recovery.frames, third.recovery.clean) == (
        2,
        False,
    )  # the clean-shutdown frame, and what came after it
    assert store.bytes < 10_000


def test_clean_log_without_its_last_frame_is_damaged(memory: MemoryStore) -> None:
    """A clean log whose last frame is gone is not taken for clean."""
    log = node_log(memory)
    for number in range(3):
        log.write(format.ENTRIES, 1, [row(str(number), "v", number + 1)])
    log.close()
    path = segments(memory)[0]
    whole, ends = memory.read(path), offsets(memory, path)
    for end in (ends[3], ends[3] + 3, ends[4] - 1, ends[2]):
        left = copy_files(memory)
        overwrite(left, path, whole[:end])
        with pytest.raises(LogError):
            node_log(left)
        if end >= ends[3]:
            node_log(left, recovery_mode="point-in-time")
            assert entries(left) == [0, 1, 2]
    left = copy_files(memory)
    left.delete(path)
    with pytest.raises(ShortLog, match="missing"):
        node_log(left)
    node_log(left, recovery_mode="point-in-time")
    assert entries(left) == []


def test_requests_of_dropped_entries_are_not_duplicates(memory: MemoryStore) -> None:
    """Requests of what was given up are not taken for duplicates."""
    history(memory)
    left = copy_files(memory)
    flip(left, 1, 2)
    assert node_log(left, recovery_mode="point-in-time").requests == {1: 6}
    assert layout.parse_wal_path(segments(left)[-1]) == (1, 3)


# ---- a recovery beside a prune -------------------------------------------------------------------


class Meanwhile:
    """A store during whose call number `at` something else happens."""

    def __init__(self, store: MemoryStore, at: int, what: Callable[[MemoryStore], object]) -> None:
        self._store, self._at, self._what, self.calls = store, at, what, 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not callable(found):
            return found

        def call(*arguments: Any, **options: Any) -> Any:
            self.calls += 1
            if self.calls == self._at:
                self._what(self._store)
            return found(*arguments, **options)

        return call


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_files_pruned_during_recovery_are_not_missing(
    memory: MemoryStore, mode: str, closed: bool
) -> None:
    """What a prune removes during a recovery is not missing whenever it runs."""
    from imap_wal.read.cluster import ClusterLog
    from imap_wal.rewrite.local_engine import LocalEngine
    from imap_wal.rewrite.prune import prune
    from imap_wal.rewrite.run import rewrite

    history(memory, segments_=5)
    left = copy_files(memory)
    if closed:
        node_log(left).close()
    rewrite(ClusterLog(left, "default", "embedded"), LocalEngine())
    pruned: list[int] = []

    def remove(store: MemoryStore) -> None:
        pruned.append(len(prune(ClusterLog(store, "default", "embedded")).segments))

    at = 0
    while True:
        at += 1
        again = copy_files(left)
        store = Meanwhile(again, at, remove)
        log = node_log(store, recovery_mode=mode)  # type: ignore[arg-type]
        assert log.recovery.lost is None, f"{mode}: a prune before call {at}"
        assert not lost_files(again)
        assert contents(again).keys() == {str(key).encode() for key in range(20)}, (
            f"{mode}: a prune before call {at}"
        )
        if store.calls < at:
            break
    assert set(pruned) == {4}
    assert len(pruned) >= (12 if closed and mode == "torn-tail" else 25)


def test_point_in_time_counts_all_that_is_missing(
    memory: MemoryStore,
) -> None:
    """Point in time gives numbers to all that is missing after the first damage."""
    history(memory, segments_=6)
    left = copy_files(memory)
    flip(left, 1, 2)
    for path in (segments(left)[3], segments(left)[5]):
        left.delete(path)
    log = node_log(left, recovery_mode="point-in-time")
    log.write(format.ENTRIES, 1, [row("100", "v", 100)])
    log.close()
    for mode in MODES:
        assert contents(left, recovery_mode=mode).keys() == {
            str(key).encode() for key in [0, 1, 2, 3, 4, 5, 100]
        }


def test_closed_log_with_lost_segment_header_is_damaged(
    memory: MemoryStore,
) -> None:
    """A closed log whose newest segment lost its header is damaged and not empty.
    The manifest names a frame in it: a header that was never whole is no explanation."""
    history(memory, segments_=2)
    left = copy_files(memory)
    node_log(left).close()
    for data in (b"", bytes(4096), left.read(segments(left)[1])[:40]):
        damaged = copy_files(left)
        overwrite(damaged, segments(left)[1], data)
        with pytest.raises(LogError):
            node_log(damaged)
        assert damaged.read(segments(left)[1]) == data


@pytest.mark.parametrize(
    "content", [b"\xc1", b"\x81\x01", b"\x05", b"\x92\x01\x02", b"\xd9\xffshort"]
)
def test_frame_without_valid_entries_is_damage(memory: MemoryStore, content: bytes) -> None:
    """A frame whose checksum is right and whose content is not entries is damage."""
    log = node_log(memory)
    log.requests[1] = 1
    log.write(format.ENTRIES, 1, [row("k1", "v", request=1)])
    bad = log.write(format.ENTRIES, 1, [content])
    log.write(format.ENTRIES, 1, [row("k3", "v", request=3)])
    log.sync()
    log.close(clean=False)
    with pytest.raises(CorruptLog, match="content is not entries") as raised:
        node_log(memory)
    assert (raised.value.file, raised.value.offset) == (segments(memory)[-1], bad.frame)
    opened = node_log(memory, recovery_mode="point-in-time")
    assert opened.recovery.records == 1
    assert opened.recovery.lost is not None
    assert opened.recovery.lost.first == bad
    opened.close()
