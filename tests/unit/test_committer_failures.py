"""Group commit when the storage fails: nothing more is acknowledged, and outcomes are right."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from imap_wal import entry, format
from imap_wal.errors import CorruptLog, NotAppended, OutcomeUnknown
from imap_wal.segment.reader import SegmentReader
from imap_wal.write.ring import CommitRequest
from storage_backends import NoSpace, SegmentStore
from storage_backends.faults import Fault, FaultyStore, Plan
from storage_backends.local import LocalStore
from storage_backends.memory import MemoryStore
from tests.kit.commits import WAL, batch, commit, committer, frames
from tests.kit.effort import every, step
from tests.support import IDENTITY, FakeClock, Threads, node_log, segments


def test_full_disk_appends_nothing_and_stops_acknowledgements(
    memory: MemoryStore, seed: int
) -> None:
    """The write that failed is cut off."""
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


def test_a_folder_away_for_a_moment_fences_no_writer(tmp_path: Path) -> None:
    """Its file system is not mounted while the agent looks whether its log is still its own."""
    root = tmp_path / "root"
    target = committer(LocalStore(str(root)))
    root.rename(tmp_path / "away")
    target.look()
    assert target.failure is None
    (tmp_path / "away").rename(root)
    target.look()
    commit(target, batch(1))
    target.close()


def test_failed_write_that_cannot_be_truncated_is_unknown(
    memory: MemoryStore,
) -> None:
    """The callers get `OutcomeUnknown`."""
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
    """The first frame of the commit may be durable."""
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
    """A second sync may succeed although the data is lost."""
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


def test_all_callers_of_a_failed_sync_get_an_error(memory: MemoryStore) -> None:
    target = committer(FaultyStore(memory, Plan((Fault("error", at=2, kind="sync", path=WAL),))))
    batches = [batch(request) for request in range(1, 6)]
    for each in batches:
        target.submit(each)
    Threads(*[lambda each=each: target.wait(each) for each in batches]).join()
    assert [type(each.error) for each in batches] == [OutcomeUnknown] * 5


def test_failed_background_sync_stops_acknowledgements(
    memory: MemoryStore,
) -> None:
    """Durability `interval`: the sync is later than the acknowledgement."""
    faulty = FaultyStore(memory, Plan((Fault("error", at=3, kind="sync", path=WAL, times=0),)))
    target = committer(faulty, durability="interval", sync_interval_ms=1000)
    clock: FakeClock = target._clock  # type: ignore[assignment]
    commit(target, batch(1))
    target.sync_if_due()
    assert target.statistics.syncs == 0, "maintenance runs four times per interval: not due yet"
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


@every(2)
@pytest.mark.parametrize("preallocate", [False, True])
def test_kill_at_any_operation_keeps_acknowledged_entries(seed: int, preallocate: bool) -> None:
    """What is read back is a prefix of what was written, with all that was acknowledged."""

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
            for at in range(1, whole.count + 1, min(step(), 7)):
                inner = MemoryStore(f"{action}-{tear}-{seed}-{preallocate}-{at}")
                plan = Plan((Fault(action, at=at),), seed=seed + at, tear=tear)
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
    """The check before the acknowledgement fails."""
    target = committer(memory)
    answers: list[Exception | None] = [CorruptLog("manifest/0000000002.json", 0, "not JSON"), None]

    def confirm(_: Sequence[CommitRequest]) -> None:
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
