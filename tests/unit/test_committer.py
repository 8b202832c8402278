"""Group commit: many callers share a frame and a sync; nothing is acknowledged that is not safe;
after a failure nothing is, ever."""

from __future__ import annotations

import os
import signal
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from imap_wal import entry, format
from imap_wal.errors import CorruptLog, InvalidSetting, NotAppended, OutcomeUnknown, TooLarge
from imap_wal.format import Frame
from imap_wal.segment.reader import SegmentReader
from imap_wal.settings import Settings
from imap_wal.write.committer import CommitRequest, Committer
from imap_wal.write.ring import RingBuffer
from storage_backends import NoSpace, SegmentStore
from storage_backends.faults import Fault, FaultyStore, Plan
from storage_backends.memory import MemoryStore
from tests.kit.gate import Gate
from tests.support import IDENTITY, FakeClock, Threads, eventually, node_log, row, segments

WAL = "*/wal/*"


def committer(store: SegmentStore, slots: int = 64, **settings: Any) -> Committer:
    log = node_log(store, **{"segment_bytes": 1024 * 1024, "preallocate": False, **settings})
    return Committer(RingBuffer(slots, log.settings.ring_bytes), log)


def batch(
    request: int, count: int = 1, apply: Any = None, kind: int = format.ENTRIES, session: int = 1
) -> CommitRequest:
    return CommitRequest(
        [row(f"k{request}.{index}", "v", request + index) for index in range(count)],
        count,
        apply,
        kind,
        session,
        request + count - 1,
    )


def commit(target: Committer, each: CommitRequest) -> None:
    target.submit(each)
    target.wait(each)


def frames(store: SegmentStore) -> list[Frame]:
    return [
        frame
        for path in segments(store)
        for frame in SegmentReader(store, path).frames()
        if frame.kind != format.CLEAN_SHUTDOWN
    ]


def test_callers_that_come_during_a_sync_share_the_next_commit(memory: MemoryStore) -> None:
    gate = Gate(memory)
    target = committer(gate)  # type: ignore[arg-type]
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
    """The position of each batch is where its first entry is."""
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
    """A commit takes at least one batch and else as many as fit."""
    target = committer(memory, commit_bytes_max=len(row("k1.0", "v")) * 2)
    for request in range(1, 6):
        target.submit(batch(request))
    target.submit(batch(6, count=9))
    target.commit_ready()
    assert [frame.count for frame in frames(memory)] == [2, 2, 1, 9]


def test_frame_has_one_kind_and_always_syncs_each_frame(
    memory: MemoryStore,
) -> None:
    """Kinds do not mix in a frame and always never leaves two frames unsynced."""
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
    """Segments rotate by size and say how the one before ended."""
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
            == list(SegmentReader(memory, before).frames())[-1].checksum
        )


def test_full_disk_appends_nothing_and_stops_acknowledgements(
    memory: MemoryStore, seed: int
) -> None:
    """A write that fails for lack of space appends nothing and nothing more is acknowledged."""
    faulty = FaultyStore(memory, Plan((Fault("short-write", at=3, path=WAL),), seed))
    target = committer(faulty)
    applied: list[str] = []
    commit(target, batch(1))
    failed = batch(2, apply=lambda: applied.append("failed"))
    commit(target, failed)
    with pytest.raises(NotAppended, match=r"nothing was appended.*short write"):
        failed.result()
    later = batch(3, apply=lambda: applied.append("later"))
    commit(target, later)
    with pytest.raises(NotAppended, match="nothing more is appended"):
        later.result()
    assert applied == []
    assert [frame.count for frame in frames(memory)] == [1]
    assert SegmentReader(memory, segments(memory)[0]).first < memory.size(segments(memory)[0])
    target.close()
    with_new_epoch = node_log(memory)
    assert with_new_epoch.requests == {1: 1}


def test_failed_write_that_cannot_be_truncated_is_unknown(
    memory: MemoryStore,
) -> None:
    """A write that fails and cannot be cut back is an unknown outcome."""
    faulty = FaultyStore(
        memory, Plan((Fault("short-write", at=3, path=WAL), Fault("error", kind="truncate")))
    )
    target = committer(faulty)
    commit(target, batch(1))
    failed = batch(2)
    commit(target, failed)
    with pytest.raises(OutcomeUnknown):
        failed.result()


def test_failed_second_frame_of_a_commit_is_unknown(
    memory: MemoryStore,
) -> None:
    """A commit of two frames of which the second fails is an unknown outcome."""
    faulty = FaultyStore(
        memory, Plan((Fault("error", at=3, kind="append", path=WAL, error=NoSpace),))
    )
    target = committer(faulty)
    batches = [batch(1, kind=format.METADATA), batch(2)]
    for each in batches:
        target.submit(each)
    target.commit_ready()
    assert [type(each.error) for each in batches] == [OutcomeUnknown] * 2
    assert [frame.kind for frame in frames(memory)] == [format.METADATA]


def test_a_segment_that_cannot_be_begun_appends_nothing(memory: MemoryStore) -> None:
    faulty = FaultyStore(memory, Plan((Fault("error", kind="open_append", error=NoSpace),)))
    target = committer(faulty)
    failed = batch(1)
    commit(target, failed)
    with pytest.raises(NotAppended, match="nothing was appended"):
        failed.result()


def test_failed_sync_is_never_retried_on_that_file(memory: MemoryStore) -> None:
    """A sync that fails is never tried again on that file."""
    faulty = FaultyStore(memory, Plan((Fault("error", at=3, kind="sync", path=WAL),)))
    target = committer(faulty)
    applied: list[str] = []
    commit(target, batch(1, apply=lambda: applied.append("first")))
    failed = batch(2, apply=lambda: applied.append("failed"))
    commit(target, failed)
    with pytest.raises(OutcomeUnknown, match=r"may be in the log.*failed to sync"):
        failed.result()
    before = faulty.count
    for request in (3, 4):
        late = batch(request, apply=lambda: applied.append("late"))
        commit(target, late)
        with pytest.raises(NotAppended):
            late.result()
    with pytest.raises(NotAppended, match="failed to sync"):
        target.sync()
    with pytest.raises(NotAppended, match="failed to sync"):
        target.rotate()
    target.sync_if_due()
    target.close()
    assert [operation.kind for operation in faulty.operations[before:]] == []
    assert applied == ["first"]


def test_all_callers_of_a_commit_whose_sync_fails_are_told(memory: MemoryStore) -> None:
    target = committer(FaultyStore(memory, Plan((Fault("error", at=2, kind="sync", path=WAL),))))
    batches = [batch(request) for request in range(1, 6)]
    for each in batches:
        target.submit(each)
    Threads(*[lambda each=each: target.wait(each) for each in batches]).join()
    assert [type(each.error) for each in batches] == [OutcomeUnknown] * 5


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


def test_failed_background_sync_stops_acknowledgements(
    memory: MemoryStore,
) -> None:
    """The background sync of interval empties what waits and its failure stops acknowledgements."""
    faulty = FaultyStore(memory, Plan((Fault("error", at=3, kind="sync", path=WAL, times=0),)))
    target = committer(faulty, durability="interval", sync_interval_ms=1000)
    clock: FakeClock = target._clock  # type: ignore[assignment]
    commit(target, batch(1))
    target.sync_if_due()
    assert target.statistics.syncs == 0, "the keeper comes by four times an interval: not due yet"
    clock.advance(0.75)
    target.sync_if_due()
    assert target.statistics.syncs == 1
    clock.advance(0.75)
    target.sync_if_due()
    assert target.statistics.syncs == 1, "nothing new, nothing to sync"
    commit(target, batch(2))
    clock.advance(0.75)
    target.sync_if_due()
    refused = batch(3)
    commit(target, refused)
    with pytest.raises(NotAppended, match="failed to sync"):
        refused.result()


def test_os_durability_acknowledges_before_a_barrier_syncs(memory: MemoryStore) -> None:
    """Os acknowledges without a sync and a barrier makes it safe."""
    target = committer(memory, durability="os")
    for request in range(1, 5):
        commit(target, batch(request))
    assert target.statistics.syncs == 0
    target.sync()
    assert target.statistics.syncs == 1


def test_close_answers_late_comers_instead_of_leaving_them_asleep(memory: MemoryStore) -> None:
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
    """A caller that was interrupted before it waited does not keep the others asleep."""
    gate = Gate(memory)
    target = committer(gate)  # type: ignore[arg-type]
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
    """A caller that is interrupted while it waits does not keep the others asleep."""
    gate = Gate(memory)
    target = committer(gate)  # type: ignore[arg-type]
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


@pytest.mark.parametrize("preallocate", [False, True])
def test_kill_at_any_operation_keeps_acknowledged_entries(seed: int, preallocate: bool) -> None:
    """What is before a kill at any operation is read back and what was acknowledged is there."""

    def run(store: SegmentStore) -> list[int]:
        acked: list[int] = []
        chance = Random(seed)
        try:
            target = committer(store, segment_bytes=700, preallocate=preallocate)
            for request in range(1, 15):
                each = batch(request, 1)
                commit(target, each)
                if each.error is None:
                    acked.append(request)
                if chance.random() < 0.2:
                    target.rotate()
            target.close()
        except BaseException as error:
            if not store.dead:  # type: ignore[attr-defined]
                raise AssertionError("an error without a fault") from error
        return acked

    whole = FaultyStore(MemoryStore(f"whole-{seed}-{preallocate}"))
    assert len(run(whole)) == 14
    for action in ("kill", "power-loss"):
        for tear in ("prefix", "sectors"):
            for at in range(1, whole.count + 1):
                inner = MemoryStore(f"{action}-{tear}-{seed}-{preallocate}-{at}")
                plan = Plan((Fault(action, at=at),), seed=seed + at, tear=tear)  # type: ignore[arg-type]
                acked = run(FaultyStore(inner, plan))
                reopened = node_log(inner)
                logged = [
                    item[entry.ORDER][3]
                    for frame in frames(inner)
                    for item in entry.rows(frame.payload)
                ]
                assert logged[: len(acked)] == acked, f"lost after {plan}"
                assert len(logged) <= len(acked) + 1, f"{plan}"
                assert reopened.requests.get(1, 0) == len(logged), f"{plan}"
                assert reopened.identity == IDENTITY


def test_unconfirmed_commit_is_unknown_and_the_next_continues(
    memory: MemoryStore,
) -> None:
    """What cannot be confirmed before the acknowledgement is unknown and the next commit
    continues."""
    target = committer(memory)
    answers: list[Exception | None] = [CorruptLog("manifest/0000000002.json", 0, "not JSON"), None]

    def confirm(_: list[CommitRequest]) -> None:
        answer = answers.pop(0)
        if answer is not None:
            raise answer

    target._before_ack = confirm
    doubtful, fine = batch(1), batch(2)
    commit(target, doubtful)
    with pytest.raises(OutcomeUnknown, match="could not be confirmed"):
        doubtful.result()
    commit(target, fine)
    assert fine.result()
    assert answers == []


def test_large_commit_is_written_in_several_frames(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit of more than a frame holds is written in several frames."""
    size = len(row("k1.0", "v"))
    monkeypatch.setattr("imap_wal.write.committer.PAYLOAD_BYTES_MAX", 2 * size)
    target = committer(memory)
    for request in range(1, 6):
        target.submit(batch(request))
    with pytest.raises(TooLarge, match="less than 2 GiB"):
        target.submit(batch(6, count=3))
    target.commit_ready()
    assert [frame.count for frame in frames(memory)] == [2, 2, 1]


@pytest.mark.parametrize("name", ["commit_bytes_max", "max_value_bytes"])
def test_setting_for_frames_above_2_gib_is_refused(name: str) -> None:
    """A setting that would allow a frame above 2 gib is refused."""
    assert Settings(**{name: format.PAYLOAD_BYTES_MAX})
    with pytest.raises(InvalidSetting, match=f"{name} is {format.PAYLOAD_BYTES_MAX + 1}"):
        Settings(**{name: format.PAYLOAD_BYTES_MAX + 1})
