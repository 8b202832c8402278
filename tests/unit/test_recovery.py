"""What an open does with damage, in every mode: the table of `imap_wal.write.recovery`."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import imap_wal
from imap_wal import format, layout
from imap_wal.context import Context
from imap_wal.errors import CorruptLog, InvalidSetting, LogError, ShortLog, UnsupportedVersion
from imap_wal.format import Position
from imap_wal.manifest.node import NodeManifestLog
from imap_wal.segment.reader import SegmentReader
from storage_backends.memory import MemoryStore
from tests.kit.damages import (
    DAMAGES,
    FOLDER,
    MODES,
    entries,
    flip,
    history,
    lost_files,
    newer,
    offsets,
)
from tests.kit.effort import every
from tests.support import (
    IDENTITY,
    contents,
    copy_files,
    embedded,
    node_log,
    overwrite,
    row,
    segments,
)


@pytest.mark.parametrize("name", DAMAGES)
@pytest.mark.parametrize("mode", ["absolute", "torn-tail"])
def test_damage_in_synced_frames_is_refused_without_changes(
    memory: MemoryStore, mode: str, name: str
) -> None:
    """The open fails and changes no file."""
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
    assert NodeManifestLog(Context(left), FOLDER).read()[1].epoch == 1
    assert isinstance(caught.value, CorruptLog | ShortLog)
    if not tail:
        assert "imap-wal repair" in str(caught.value)
        assert "point-in-time" in str(caught.value)


@pytest.mark.parametrize("name", DAMAGES)
def test_point_in_time_permanently_drops_entries_after_damage(
    memory: MemoryStore, name: str
) -> None:
    """Entries before the damage are kept, and those after it never return."""
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
                "the bytes that were put aside are unchanged"
            )
    # New entries have positions after all former ones, and are kept; dropped entries do not return.
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
    """They are cut off with it, put aside under `lost/`, and reported."""
    history(memory, segments_=1, frames=6, sync=False)
    left = copy_files(memory)
    flip(left, 0, 2)
    damaged = left.read(segments(left)[0])
    with pytest.raises(CorruptLog, match="damage above the last synced position"):
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
    """The first and the last position that would be lost."""
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
        (2, "but this log has the directory"),
    ],
    ids=["copy", "other log"],
)
@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("exchanged", range(3))
def test_exchanged_whole_segment_is_refused(
    memory: MemoryStore, exchanged: int, closed: bool, seed: int, said: str
) -> None:
    """The segment has the same node, epoch and number, with whole frames. From a copy of the log
    that was written later: its neighbours do not match. From another log: its header names that
    log."""
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
    assert list(whole.whole_frames()) and whole.tail().status == "clean"
    overwrite(left, path, foreign.read(path))
    for mode in ("absolute", "torn-tail"):
        with pytest.raises(LogError, match=said):
            contents(left, recovery_mode=mode)


def test_an_open_refuses_the_mode_salvage() -> None:
    with pytest.raises(InvalidSetting, match="imap-wal repair"):
        embedded(MemoryStore("salvage"), recovery_mode="salvage")


@every(5)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", DAMAGES)
def test_map_load_verifies_checksums_after_any_stop(
    memory: MemoryStore, name: str, mode: str
) -> None:
    """No setting turns that off. After a clean stop the open is quick, and the restore still checks
    everything."""
    history(memory)
    node_log(copied := copy_files(memory)).close()
    assert NodeManifestLog(Context(copied), FOLDER).read()[1].clean
    damage, _, kept, _ = DAMAGES[name]
    damage(copied)
    if mode == "point-in-time":
        assert contents(copied, recovery_mode=mode).keys() == {str(key).encode() for key in kept}
    else:
        with pytest.raises(LogError):
            contents(copied, recovery_mode=mode)


def test_point_in_time_finds_damage_below_the_checkpoint(memory: MemoryStore) -> None:
    """A restore finds such damage, and its error names this mode."""
    history(memory)
    left = copy_files(memory)
    node_log(left).close()
    flip(left, 0, 1)
    with pytest.raises(CorruptLog, match="point-in-time"):
        contents(left)
    assert contents(left, recovery_mode="point-in-time").keys() == {b"0"}


def test_missing_segment_refusal_names_what_is_at_stake(memory: MemoryStore) -> None:
    """The first and the last position that would be lost."""
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
    """Other modes read only the last frame."""
    history(memory)
    left = copy_files(memory)
    node_log(left).close()
    node_log(left, recovery_mode="absolute").close()
    flip(left, 0, 1)
    node_log(
        copy_files(left)
    ).close()  # other modes: a restore or `imap-wal verify` finds the damage
    with pytest.raises(CorruptLog, match="first lost position"):
        node_log(left, recovery_mode="absolute")


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("whose", [{"cluster": "other"}, {"namespace": "other"}, {"node": "other"}])
def test_whole_segment_of_another_log_is_refused(
    memory: MemoryStore, tmp_path: Path, clean: bool, whose: dict[str, str]
) -> None:
    """Its frames are whole; its header names the other log."""
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


@pytest.mark.parametrize(
    "content", [b"\xc1", b"\x81\x01", b"\x05", b"\x92\x01\x02", b"\xd9\xffshort"]
)
def test_frame_without_valid_entries_is_damage(memory: MemoryStore, content: bytes) -> None:
    """Its checksum is right, and its content is not entries."""
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
