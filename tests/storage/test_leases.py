"""The lease, for storage without locks: it expires, is renewed and taken over, and never has two
holders by its own clock."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from storage_backends import AlreadyExists, Locked, SegmentStore, StorageError, Unavailable
from storage_backends.lease import KEPT_OBJECTS, Lease, acquire
from storage_backends.memory import MemoryStore, forget
from storage_backends.objects import LocalObjects
from storage_backends.testing import Fault, FaultyStore, Plan


class Clock:
    now_ms = 1_800_000_000_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> LocalObjects:
    return LocalObjects(str(tmp_path), clock_ms=clock, lease_ms=1000)


def lock(store: SegmentStore, holder: str, *, take: bool = False) -> Lease:
    lease = store.lock("node/writer.lock", holder, take=take)
    assert isinstance(lease, Lease)
    return lease


def test_lease_is_held_until_it_runs_out(store: LocalObjects, clock: Clock) -> None:
    lease = lock(store, "first")
    assert lease.expires_ms == clock.now_ms + 1000
    clock.now_ms += 999
    with pytest.raises(Locked, match="held by first"):
        lock(store, "second")
    clock.now_ms += 1
    successor = lock(store, "second")
    assert successor.number == lease.number + 1
    with pytest.raises(Locked, match="held by second"):
        lease.renew()
    with pytest.raises(Locked, match="held by second"):
        lease.check()


def test_renewed_lease_is_held_for_another_term(store: LocalObjects, clock: Clock) -> None:
    lease = lock(store, "first")
    for _ in range(5):
        clock.now_ms += 900
        lease.renew()
        lease.check()
        with pytest.raises(Locked):
            lock(store, "second")
    lease.release()
    with pytest.raises(StorageError, match="was released"):
        lease.renew()


def test_resumed_holder_overwrites_nothing_of_its_successor(
    store: LocalObjects, clock: Clock
) -> None:
    stopped = lock(store, "stopped")
    clock.now_ms += 5000
    successor = lock(store, "successor")
    stopped.release()
    with pytest.raises(Locked, match="held by successor"):
        lock(store, "third")
    successor.renew()
    successor.release()
    third = lock(store, "third")
    assert third.number == 3, "numbers are not used twice"


def test_outdated_lease_objects_are_removed(store: LocalObjects) -> None:
    """No process can treat them as the newest any more."""
    for _ in range(KEPT_OBJECTS + 5):
        lock(store, "one after the other").release()
    names = [file.path for file in store.list("node")]
    assert len(names) == KEPT_OBJECTS
    assert names[-1] == f"node/writer.lock/{KEPT_OBJECTS + 5:08d}.json"


class _ListsAsIfItRacedWithASuccessor(LocalObjects):
    """A directory is read while other processes create and delete in it: created and deleted files
    may both be missing."""

    def list(self, folder: str):  # type: ignore[no-untyped-def]
        before = super().list(folder)
        for number in range(3):
            acquire(LocalObjects(self.root), "node/writer.lock", f"quicker {number}", take=True)
        return [file for file in before if self.exists(file.path)]


def test_listing_that_misses_a_successor_gives_no_second_lease(
    tmp_path: Path, clock: Clock
) -> None:
    with pytest.raises(Unavailable, match="another process took the lease at each attempt"):
        lock(_ListsAsIfItRacedWithASuccessor(str(tmp_path), clock_ms=clock), "slow", take=True)


@pytest.mark.parametrize("again", range(10))
def test_one_taker_wins_an_expired_lease(store: LocalObjects, clock: Clock, again: int) -> None:
    """There are many takers."""
    lock(store, "gone")
    clock.now_ms += 5000
    start, winners, losers, errors = threading.Barrier(8), [], [], []

    def run(taker: int) -> None:
        start.wait()
        try:
            winners.append(lock(store, f"taker {taker}"))
        except Locked as error:
            losers.append(error.holder)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(taker,)) for taker in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(winners) == 1
    assert set(losers) == {winners[0].holder}


def test_own_create_whose_answer_was_lost_is_recognised(clock: Clock) -> None:
    inner = MemoryStore("lease")
    store = FaultyStore(
        inner, Plan((Fault("error", kind="create", when="after", error=AlreadyExists),))
    )
    lease = acquire(store, "writer.lock", "me", clock_ms=clock)
    assert lease.number == 1
    with pytest.raises(Locked, match="held by me"):
        acquire(inner, "writer.lock", "other", clock_ms=clock)
    forget("lease")


def test_damaged_lease_is_an_error_and_not_free(store: LocalObjects) -> None:
    store.create("node/writer.lock/00000001.json", b"{}")
    with pytest.raises(StorageError, match="not a lease"):
        lock(store, "me")
    lock(store, "me", take=True).release()
