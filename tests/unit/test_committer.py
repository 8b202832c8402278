"""Group commit: many callers share a frame and a sync; nothing is acknowledged that is not safe."""

from __future__ import annotations

import os
import signal
from itertools import pairwise
from typing import Any

import pytest

from imap_wal import entry, format
from imap_wal.errors import InvalidSetting, NotAppended, OutcomeUnknown, TooLarge
from imap_wal.segment.reader import SegmentReader
from imap_wal.settings import Settings
from storage_backends.faults import Fault, FaultyStore, Plan
from storage_backends.memory import MemoryStore
from tests.kit.commits import WAL, batch, commit, committer, frames
from tests.kit.gate import Gate
from tests.support import FakeClock, Threads, eventually, row, segments


def test_callers_that_arrive_during_a_sync_share_the_next_commit(memory: MemoryStore) -> None:
    gate = Gate(memory)
    target = committer(gate)
    commit(target, batch(1))
    gate.open.clear()
    gate.waiting.clear()
    leader = Threads(lambda: commit(target, batch(2)))
    assert gate.waiting.wait(30)
    others = Threads(
        *[lambda request=request: commit(target, batch(request)) for request in range(3, 23)]
    )
    eventually(lambda: target.ring.statistics.published == 22, "all are in the ring")
    gate.open.set()
    leader.join()
    others.join()
    assert [frame.count for frame in frames(memory)] == [1, 1, 20]
    assert target.statistics.commits == target.statistics.syncs == 3
    assert target.statistics.records == 22


@pytest.mark.parametrize("slots", [2, 64])
def test_sixteen_threads_lose_no_wake_up_and_no_change(memory: MemoryStore, slots: int) -> None:
    target = committer(memory, slots=slots)
    applied: list[int] = []

    def work(thread: int) -> None:
        for number in range(150):
            request = thread * 1000 + number + 1
            each = batch(request, apply=lambda request=request: applied.append(request))
            commit(target, each)
            assert each.result() is not None
            assert request in applied, "applied before it was acknowledged"

    Threads(*[lambda thread=thread: work(thread) for thread in range(16)]).join(120)
    logged = [
        item[entry.ORDER][3] for frame in frames(memory) for item in entry.rows(frame.payload)
    ]
    assert sorted(logged) == sorted(
        thread * 1000 + number + 1 for thread in range(16) for number in range(150)
    )
    assert applied == logged, "memory is changed in log order"
    assert target.ring.statistics.waiting == 0


def test_batch_position_is_that_of_its_first_entry(memory: MemoryStore) -> None:
    """Several batches share a frame."""
    target = committer(memory)
    batches = [batch(1, 3), batch(4, 2), batch(6)]
    for each in batches:
        target.submit(each)
    target.commit_ready()
    (frame,) = frames(memory)
    assert [each.result()[2:] for each in batches] == [
        (frame.offset, 0),
        (frame.offset, 3),
        (frame.offset, 5),
    ]


def test_commit_takes_at_least_one_batch(memory: MemoryStore) -> None:
    """It takes as many more as fit."""
    target = committer(memory, commit_bytes_max=len(row("k1.0", "v")) * 2)
    for request in range(1, 6):
        target.submit(batch(request))
    target.submit(batch(6, count=9))
    target.commit_ready()
    assert [frame.count for frame in frames(memory)] == [2, 2, 1, 9]


def test_frame_has_one_kind_and_always_syncs_each_frame(
    memory: MemoryStore,
) -> None:
    """With durability `always`, each frame is synced before the next one is written."""
    faulty = FaultyStore(memory)
    target = committer(faulty)
    for kind in (format.ENTRIES, format.METADATA, format.ENTRIES):
        target.submit(batch(1, kind=kind))
    target.commit_ready()
    assert [frame.kind for frame in frames(memory)] == [
        format.ENTRIES,
        format.METADATA,
        format.ENTRIES,
    ]
    done = [
        operation.kind for operation in faulty.operations if operation.kind in ("append", "sync")
    ]
    assert done == ["append", "sync"] * 4, "the header, and each frame"


def test_segments_rotate_by_size(memory: MemoryStore) -> None:
    """Each header has the end of the segment before it."""
    target = committer(memory, segment_bytes=600)
    for request in range(1, 40):
        commit(target, batch(request))
    paths = segments(memory)
    assert len(paths) > 3
    assert target.statistics.rotations == len(paths) - 1 or target.statistics.rotations == len(
        paths
    )
    for before, after in pairwise(paths):
        assert memory.size(before) >= 600
        assert (
            SegmentReader(memory, after).header.previous_checksum
            == list(SegmentReader(memory, before).whole_frames())[-1].checksum
        )


def test_interval_acknowledges_before_the_sync_but_never_past_the_interval(
    memory: MemoryStore,
) -> None:
    faulty = FaultyStore(memory, Plan((Fault("error", at=3, kind="sync", path=WAL, times=0),)))
    target = committer(faulty, durability="interval", sync_interval_ms=1000)
    clock: FakeClock = target._clock  # type: ignore[assignment]
    for request in range(1, 10):
        each = batch(request)
        commit(target, each)
        assert each.result()
    assert target.statistics.syncs == 0
    clock.advance(1.0)
    due = batch(10)
    commit(target, due)
    assert due.result()
    assert target.statistics.syncs == 1, "the interval was over: synced before this acknowledgement"
    commit(target, batch(11))
    clock.advance(0.999)
    young = batch(12)
    commit(target, young)
    assert young.result()
    clock.advance(0.001)
    late = batch(13)
    commit(target, late)
    with pytest.raises(OutcomeUnknown, match="failed to sync"):
        late.result()


def test_os_durability_acknowledges_before_a_barrier_syncs(memory: MemoryStore) -> None:
    """The barrier makes the changes durable."""
    target = committer(memory, durability="os")
    for request in range(1, 5):
        commit(target, batch(request))
    assert target.statistics.syncs == 0
    target.sync()
    assert target.statistics.syncs == 1


def test_callers_after_a_close_get_an_error_and_never_wait(memory: MemoryStore) -> None:
    target = committer(memory)
    commit(target, batch(1))
    waiting = batch(2)
    target.submit(waiting)
    target.close()
    assert waiting.result()
    late = batch(3)
    commit(target, late)
    with pytest.raises(NotAppended, match="was closed"):
        late.result()


def test_interrupt_before_a_wait_does_not_block_others(
    memory: MemoryStore,
) -> None:
    """The interrupted caller had not waited yet."""
    gate = Gate(memory)
    target = committer(gate)
    commit(target, batch(1))
    gate.open.clear()
    gate.waiting.clear()
    leader = Threads(lambda: target.sync())
    assert gate.waiting.wait(30)
    target.submit(batch(2))  # its caller never waits
    other = batch(3)
    sleeper = Threads(lambda: commit(target, other))
    eventually(lambda: target.ring.statistics.published == 3, "the other is in the ring")
    gate.open.set()
    leader.join()
    sleeper.join()
    assert other.result()


@pytest.mark.usefixtures("sigint")
def test_interrupt_during_a_wait_does_not_block_others(
    memory: MemoryStore,
) -> None:
    """The interrupted caller was waiting for its commit."""
    gate = Gate(memory)
    target = committer(gate)
    commit(target, batch(1))
    gate.open.clear()
    gate.waiting.clear()
    leader = Threads(lambda: target.sync())
    assert gate.waiting.wait(30)
    mine, other = batch(2), batch(3)
    target.submit(mine)
    sleeper = Threads(lambda: commit(target, other))
    eventually(lambda: other.awaited, "the other waits")

    def interrupt() -> None:
        eventually(lambda: mine.awaited, "this thread waits")
        os.kill(os.getpid(), signal.SIGINT)

    interrupter = Threads(interrupt)
    with pytest.raises(KeyboardInterrupt):
        target.wait(mine)
    interrupter.join()
    gate.open.set()
    leader.join()
    sleeper.join()
    assert other.result()
    assert mine.done, "its change was in the ring, and is in the log"


def test_large_commit_is_written_in_several_frames(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has more than a frame can contain."""
    size = len(row("k1.0", "v"))
    for module in ("committer", "ring"):
        monkeypatch.setattr(f"imap_wal.write.{module}.PAYLOAD_BYTES_MAX", 2 * size)
    target = committer(memory)
    for request in range(1, 6):
        target.submit(batch(request))
    with pytest.raises(TooLarge, match="must be below 2 GiB"):
        target.submit(batch(6, count=3))
    target.commit_ready()
    assert [frame.count for frame in frames(memory)] == [2, 2, 1]


@pytest.mark.parametrize("name", ["commit_bytes_max", "max_value_bytes"])
def test_setting_for_frames_above_2_gib_is_refused(name: str) -> None:
    """The format does not allow larger frames."""
    most: dict[str, Any] = {name: format.PAYLOAD_BYTES_MAX}
    assert Settings(**most)
    more: dict[str, Any] = {name: format.PAYLOAD_BYTES_MAX + 1}
    with pytest.raises(InvalidSetting, match=f"{name} is {format.PAYLOAD_BYTES_MAX + 1}"):
        Settings(**more)
