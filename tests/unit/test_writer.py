"""The log of one node: who may write it, what a crash leaves, and how the next one goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import imap_wal
from imap_wal import format, layout
from imap_wal.errors import (
    CorruptLog,
    Fenced,
    InvalidSetting,
    MissingNode,
    OutcomeUnknown,
    ShortLog,
    WriterLocked,
)
from imap_wal.manifest.node import node_manifests
from imap_wal.segment.reader import SegmentReader
from imap_wal.write import opening
from imap_wal.write.node_log import NodeLog
from rewrite_cli.cli import group
from storage_backends import SegmentStore
from storage_backends.local import LocalStore
from storage_backends.memory import MemoryStore
from storage_backends.objects import LocalObjects
from tests.support import (
    IDENTITY,
    FakeClock,
    SeededRandomness,
    contents,
    copy_files,
    embedded,
    header,
    node_log,
    overwrite,
    row,
    segments,
)


def write(log: NodeLog, *requests: int) -> None:
    for request in requests:
        log.write(format.ENTRIES, 1, [row(f"k{request}", "v", request)])
        log.sync()


def kinds(store: SegmentStore) -> list[list[str]]:
    """What frames each segment holds."""
    return [
        [format.TYPES[frame.kind] for frame in SegmentReader(store, path).frames()]
        for path in segments(store)
    ]


def manifest(store: SegmentStore):
    return node_manifests(store, IDENTITY.node_folder, FakeClock(), SeededRandomness(1)).read()[1]


# ---- one writer ----------------------------------------------------------------------------------


def test_second_process_is_refused_and_the_holder_named(
    url: str,
) -> None:
    """A second process is refused at once naming the holder and the first continues."""
    with imap_wal.open(url, node="n1") as first:
        first.map("m")["a"] = 1
        code = (
            f"import imap_wal\ntry:\n    imap_wal.open({url!r}, node='n1')\nexcept "
            "imap_wal.WriterLocked as e:\n    print(e.node, '|', e.holder, '|', e)"
        )
        answer = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
        ).stdout
        node, holder, text = answer.strip().split(" | ")
        assert node == "n1"
        assert f"process {os.getpid()}" in holder
        assert "imap_wal.open" in holder
        assert "takeover=True" in text
        first.map("m")["b"] = 2
    with imap_wal.open(url, node="n1") as again:
        assert dict(again.map("m").items()) == {"a": 1, "b": 2}


def test_node_that_shares_the_cluster_is_admitted(url: str) -> None:
    """Another node that asks to share the cluster is not kept out."""
    with imap_wal.open(url, node="n1") as one, imap_wal.open(url, node="n2", shared=True) as two:
        one.map("m")["a"] = 1
        two.map("m")["b"] = 2
    with imap_wal.open(url, node="n1") as again:
        assert dict(again.map("m").items()) == {"a": 1, "b": 2}


@pytest.mark.parametrize("durability", ["always", "interval", "os"])
@pytest.mark.parametrize("kind", ["file", "memory"])
def test_replaced_writer_acknowledges_and_loses_nothing(
    tmp_path: Path, memory: MemoryStore, durability: str, kind: str
) -> None:
    """A writer that was taken over acknowledges nothing more and loses nothing."""
    store = memory if kind == "memory" else LocalStore(str(tmp_path))
    first = embedded(store, durability=durability)
    old = first.map("m")
    old.update({"acked": 1, "both": "old"})
    second = embedded(store, takeover=True)
    second.map("m")["both"] = "new"
    with pytest.raises(OutcomeUnknown, match="was taken over by"):
        old["zombie"] = 1
    with pytest.raises(Fenced):
        old["zombie"] = 2
    assert "zombie" not in old
    second.map("m")["later"] = 1
    expected = {"acked": 1, "both": "new", "later": 1}
    assert dict(second.map("m").items()) == expected
    second.close()
    first.close()
    assert contents(store) == expected
    with embedded(store) as third:
        assert dict(third.map("m").items()) == expected


def test_stale_writer_cannot_harm_the_log_after_takeovers(
    memory: MemoryStore,
) -> None:
    """A writer that sleeps through several takeovers and rotates cannot harm the log."""
    first = embedded(memory, segment_bytes=300, durability="os")
    first.map("m").update({"acked": 1})
    for epoch in range(3):
        with embedded(memory, takeover=True) as other:
            other.map("m")[f"epoch{epoch}"] = 1
    for attempt in range(3):
        with pytest.raises((OutcomeUnknown, Fenced)):
            first.map("m")[f"zombie{attempt}"] = "x" * 400
    first.close()
    assert contents(memory) == {"acked": 1, "epoch0": 1, "epoch1": 1, "epoch2": 1}


def test_takeover_without_append_occupies_the_next_name(tmp_path: Path) -> None:
    """On a storage that cannot append takeover occupies the next name."""
    clock = [0]
    store = LocalObjects(str(tmp_path), clock_ms=lambda: clock[0])
    first = embedded(store)
    first.map("m")["a"] = 1
    clock[0] += 10_000_000
    second = embedded(LocalObjects(str(tmp_path), clock_ms=lambda: clock[0]), takeover=True)
    with pytest.raises(OutcomeUnknown):
        first.map("m")["zombie"] = 1
    second.map("m")["b"] = 2
    assert dict(second.map("m").items()) == {"a": 1, "b": 2}
    second.close()
    with embedded(LocalObjects(str(tmp_path), clock_ms=lambda: clock[0])) as third:
        assert dict(third.map("m").items()) == {"a": 1, "b": 2}


@pytest.mark.parametrize("gone", ["archived", "rewritten and pruned"])
def test_replaced_object_writer_acknowledges_nothing(tmp_path: Path, gone: str) -> None:
    """A replaced writer on objects acknowledges nothing also when the name it was kept from is
    long."""
    clock = [0]

    def objects() -> LocalObjects:
        return LocalObjects(str(tmp_path), clock_ms=lambda: clock[0])

    first = embedded(objects())
    first.map("m")["a"] = 1
    second = embedded(objects(), takeover=True)
    second.map("m")["b"] = 2
    if gone == "archived":
        second.archive()
    else:
        for words in (
            ["rewrite", f"objects+file://{tmp_path}"],
            ["prune", f"objects+file://{tmp_path}", "--yes"],
        ):
            assert CliRunner().invoke(group, words).exit_code == 0
    for number in range(3):
        with pytest.raises((OutcomeUnknown, Fenced)):
            first.map("m")[f"zombie{number}"] = 1
    second.map("m")["c"] = 3
    second.archive()
    second.close()
    with embedded(objects()) as third:
        assert dict(third.map("m").items()) == {"a": 1, "b": 2, "c": 3}


def test_commit_before_an_object_takeover_is_scanned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit just before a takeover of objects fences is scanned and the log opens."""

    def objects() -> LocalObjects:
        return LocalObjects(str(tmp_path), clock_ms=lambda: 0)

    first = embedded(objects())
    first.map("m").update({"a": 1})
    real = opening.shut_out

    def late(*arguments: Any) -> None:
        first.map("m")["late"] = 1
        real(*arguments)
        with pytest.raises(OutcomeUnknown):
            first.map("m")["too late"] = 1

    monkeypatch.setattr(opening, "shut_out", late)
    second = embedded(objects(), takeover=True)
    monkeypatch.undo()
    assert dict(second.map("m").items()) == {"a": 1, "late": 1}
    second.map("m")["b"] = 2
    with embedded(objects(), takeover=True) as third:  # the second was killed
        assert dict(third.map("m").items()) == {"a": 1, "late": 1, "b": 2}


def test_aborted_object_takeovers_leave_one_fence_per_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Takeovers of objects that die half way leave one fence an epoch and it stays."""

    def objects() -> LocalObjects:
        return LocalObjects(str(tmp_path), clock_ms=lambda: 0)

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    first = embedded(objects())
    first.map("m")["a"] = 1
    monkeypatch.setattr("imap_wal.write.opening.recover", die)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            embedded(objects(), takeover=True)
    monkeypatch.undo()
    names = sorted(path.name for path in tmp_path.rglob("*.wal"))
    assert names == ["00000001-00000001.wal", "00000001-00000002.wal"]
    for number in range(3):
        with embedded(objects(), takeover=True) as store:
            store.map("m")[f"b{number}"] = number
            store.archive()
    assert (tmp_path / IDENTITY.node_folder / "wal/00000001-00000002.wal").exists()
    with pytest.raises((OutcomeUnknown, Fenced)):
        first.map("m")["zombie"] = 1
    with embedded(objects()) as store:
        assert dict(store.map("m").items()) == {"a": 1, "b0": 0, "b1": 1, "b2": 2}


def test_replaced_writer_does_not_mark_the_log_clean(
    memory: MemoryStore,
) -> None:
    """Closing a writer that was taken over does not mark the log clean."""
    first = node_log(memory)
    write(first, 1)
    second = node_log(memory, takeover=True)
    with pytest.raises(Fenced):
        first.close()
    assert not manifest(memory).clean
    assert manifest(memory).epoch == second.epoch == 2


def test_session_of_a_replaced_writer_is_refused(memory: MemoryStore) -> None:
    """The session of a writer that was taken over is refused."""
    first = node_log(memory)
    node_log(memory, takeover=True)
    with pytest.raises(Fenced):
        first.new_session("plug-in")


# ---- crash and reopen ----------------------------------------------------------------------------


def test_clean_shutdown_is_recorded_in_log_and_manifest(memory: MemoryStore) -> None:
    """A clean shutdown is in the log and in the manifest."""
    log = node_log(memory)
    log.requests[1] = 2
    write(log, 1, 2)
    log.close()
    assert kinds(memory) == [["entries", "entries", "clean shutdown"]]
    assert manifest(memory).clean
    assert manifest(memory).requests == {1: 2}
    again = node_log(memory)
    assert again.recovery.clean
    assert again.requests == {1: 2}
    assert not manifest(memory).clean


def test_highest_request_per_session_survives_a_kill(
    memory: MemoryStore,
) -> None:
    """The highest request of every session is found again after a kill."""
    log = node_log(memory, segment_bytes=300)
    for request in range(1, 20):
        log.write(
            format.ENTRIES,
            2,
            [row("a", "v", request, session=1), row("b", "v", request * 2, session=2)],
        )
        log.sync()
        if log.full:
            log.rotate()
    left = copy_files(memory)
    again = node_log(left)
    assert len(segments(left)) > 3
    assert again.requests == {1: 19, 2: 38}
    assert (again.recovery.frames, again.recovery.records, again.recovery.clean) == (19, 38, False)


@pytest.mark.parametrize("preallocate", [False, True])
def test_log_cut_in_its_last_frame_opens_with_new_epoch(
    memory: MemoryStore, preallocate: bool
) -> None:
    """A log cut at any byte of its last frame continues under a new epoch."""
    log = node_log(memory, preallocate=preallocate, segment_bytes=1000)
    write(log, 1, 2)
    start = log.end.frame
    size = SegmentReader(memory, segments(memory)[0])
    list(size.frames())
    whole = memory.read(segments(memory)[0])
    for cut in range(start, size.end):
        left = copy_files(memory)
        overwrite(
            left, segments(left)[0], whole[:cut] + (bytes(len(whole) - cut) if preallocate else b"")
        )
        again = node_log(left)
        assert again.requests == {1: 1}, f"cut at byte {cut}"
        assert again.epoch == 2
        assert bool(again.recovery.torn_bytes) == bool(whole[start:cut].strip(b"\0"))
        write(again, 3)
        third = node_log(copy_files(left))
        assert third.requests == {1: 3}
        assert [len(frames) for frames in kinds(left)] == [1, 1]


@pytest.mark.parametrize("rest", [0, 4096])
def test_crash_before_first_commit_leaves_no_damage(memory: MemoryStore, rest: int) -> None:
    """A crash before the first commit of a segment leaves no damage."""
    log = node_log(memory)
    write(log, 1)
    log.rotate()
    path = layout.wal_path(IDENTITY.node_folder, 1, 2)
    head = header(number=2).encode()
    for end in range(len(head)):
        left = copy_files(memory)
        left.create(path, head[:end] + bytes(rest))
        again = node_log(left)
        assert again.requests == {1: 1}, f"{end} bytes of the header"
        write(again, 2)
        assert segments(left)[-1].endswith("00000002-00000002.wal"), "its number is used again"
        assert node_log(copy_files(left)).requests == {1: 2}
        assert contents_of_m(left) == {b"k1": b"v", b"k2": b"v"}


def contents_of_m(store: SegmentStore) -> dict[bytes, bytes]:
    with embedded(copy_files(store)) as opened:
        return dict(opened.map("m", raw=True).items())


def test_flipped_header_bit_never_hides_the_newest_segment(
    memory: MemoryStore,
) -> None:
    """No flipped bit in the header of the newest segment makes it vanish."""
    log = node_log(memory)
    write(log, 1, 2)
    path = segments(memory)[0]
    whole = memory.read(path)
    for bit in range(len(header().encode()) * 8):
        left = copy_files(memory)
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        overwrite(left, path, bytes(data))
        with pytest.raises((CorruptLog, ShortLog)) as raised:
            node_log(left)
        assert raised.value.file == path, f"bit {bit}"
        assert left.read(path) == bytes(data), "the file was not touched"
        assert not left._medium.locks, "the lock was let go"


def test_damaged_synced_frame_stops_the_open(
    memory: MemoryStore,
) -> None:
    """A damaged frame that was synced stops the open and names file and byte."""
    log = node_log(memory)
    write(log, 1)
    place = log.end.frame
    write(log, 2, 3)
    path = segments(memory)[0]
    data = bytearray(memory.read(path))
    data[place + 14] ^= 4
    left = copy_files(memory)
    overwrite(left, path, bytes(data))
    with pytest.raises(CorruptLog, match=r"2 whole frames after it") as raised:
        node_log(left)
    assert (raised.value.file, raised.value.offset) == (path, place)
    assert left.read(path) == bytes(data)


def test_torn_tail_before_the_last_segment_is_corruption(memory: MemoryStore) -> None:
    """A torn tail of a segment that is not the last is corruption."""
    log = node_log(memory)
    write(log, 1, 2)
    log.rotate()
    write(log, 3)
    left = copy_files(memory)
    first = segments(left)[0]
    overwrite(left, first, left.read(first)[:-3])
    with pytest.raises(CorruptLog) as raised:
        node_log(left)
    assert raised.value.file == first


def test_empty_older_segment_is_short_and_empty_newest_harmless(
    memory: MemoryStore,
) -> None:
    """An empty file where an older segment was is short and where the newest should begin
    nothing is lost."""
    log = node_log(memory)
    write(log, 1)
    log.rotate()
    write(log, 2)
    older, newest = segments(memory)
    left = copy_files(memory)
    overwrite(left, older, b"")
    with pytest.raises(ShortLog) as raised:
        node_log(left)
    assert raised.value.file == older
    left = copy_files(memory)
    left.create(newest.replace("00000002.wal", "00000003.wal"), b"")
    assert node_log(left).requests == {1: 2}


def test_foreign_files_in_the_log_directory_are_left_alone(memory: MemoryStore) -> None:
    log = node_log(memory)
    write(log, 1)
    folder = f"{IDENTITY.node_folder}/wal"
    for name in ("notes.txt", "00000001-00000001.wal.bak", "1-2.wal", ".hidden"):
        memory.create(f"{folder}/{name}", b"mine")
    left = copy_files(memory)
    again = node_log(left)
    assert again.requests == {1: 1}
    write(again, 2)
    again.close()
    assert contents_of_m(left) == {b"k1": b"v", b"k2": b"v"}
    assert left.read(f"{folder}/notes.txt") == b"mine"


def test_foreign_file_with_a_segment_name_is_not_deleted(memory: MemoryStore) -> None:
    """A foreign file under the name of a segment is not deleted."""
    write(node_log(memory), 1)
    left = copy_files(memory)
    path = layout.wal_path(IDENTITY.node_folder, 1, 2)
    left.create(path, b"my notes")
    with pytest.raises((CorruptLog, ShortLog)):
        node_log(left)
    assert left.read(path) == b"my notes"


def test_new_disk_under_known_node_name_is_refused(
    memory: MemoryStore,
) -> None:
    """A new disk under a known node name is not taken for an empty log."""
    log = node_log(memory)
    write(log, 1)
    log.close()
    for file in memory.list(IDENTITY.node_folder):
        memory.delete(file.path)
    with pytest.raises(MissingNode, match="lost or replaced"):
        node_log(memory, seed=2)
    assert node_log(memory, seed=2, recovery_policy="partial").requests == {}


def test_reopening_many_times_without_writing_leaves_no_segments(memory: MemoryStore) -> None:
    for _ in range(5):
        node_log(memory).close()
    assert segments(memory) == []
    assert manifest(memory).epoch == 5


def test_session_is_kept_only_for_a_plug_in(memory: MemoryStore) -> None:
    """A session is kept for a plug in and new for all others."""
    log = node_log(memory)
    assert [
        log.new_session("p"),
        log.new_session("q"),
        log.new_session("p"),
        log.new_session(),
        log.new_session(),
    ] == [1, 2, 1, 3, 4]
    log.close()
    assert node_log(memory).new_session("q") == 2


# ---- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../a b", "a/b", ".", "..", "ä", "a%2Fb", "~", "CON", "a" * 60])
def test_every_name_is_one_path_component_and_comes_back(name: str) -> None:
    encoded = layout.encode(name)
    assert "/" not in encoded
    assert encoded.strip(".")
    assert layout.decode(encoded) == name


def test_an_empty_name_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="empty"):
        layout.encode("")


def test_segment_name_has_only_epoch_and_number() -> None:
    """A segment name says epoch and number and nothing else is taken for one."""
    assert layout.parse_wal_path(layout.wal_path("n", 3, 123456789)) == (3, 123456789)
    for path in (
        "n/wal/3-1.wal",
        "n/wal/00000003-00000001.wal.tmp",
        "n/wal/x.wal",
        "n/wal/00000003.fenced",
    ):
        assert layout.parse_wal_path(path) is None


def test_a_locked_log_stays_locked_when_the_second_open_fails(memory: MemoryStore) -> None:
    first = node_log(memory)
    for _ in range(2):
        with pytest.raises(WriterLocked):
            node_log(memory)
    write(first, 1)
    first.close()
    node_log(memory).close()
