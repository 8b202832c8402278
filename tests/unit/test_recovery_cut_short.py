"""A recovery that is killed, or that runs while files are removed, has the same result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from imap_wal import format
from imap_wal.context import Context
from imap_wal.errors import LogError
from storage_backends.faults import Fault, FaultyStore, Killed, Plan
from storage_backends.memory import MemoryStore
from tests.kit.damages import DAMAGES, MODES, entries, flip, history, lost_files
from tests.kit.effort import every
from tests.support import contents, copy_files, node_log, overwrite, row, segments


@every(4)
@pytest.mark.parametrize("mode", ["torn-tail", "point-in-time"])
@pytest.mark.parametrize(
    "name",
    ["a segment missing", "a bit flipped in a sealed segment", "a bit flipped in the last frame"],
)
def test_killed_recovery_has_the_same_result_next_time(
    memory: MemoryStore, mode: str, name: str
) -> None:
    """The recovery is killed at each operation."""
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


class Meanwhile:
    """A store that calls `what` during its call number `at`."""

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


@every(11)
@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_files_pruned_during_recovery_are_not_missing(
    memory: MemoryStore, mode: str, closed: bool
) -> None:
    """The prune runs at any call."""
    from imap_wal.read.cluster import ClusterLog
    from imap_wal.rewrite.local_engine import LocalEngine
    from imap_wal.rewrite.prune import prune
    from imap_wal.rewrite.run import rewrite

    history(memory, segments_=5)
    left = copy_files(memory)
    if closed:
        node_log(left).close()
    rewrite(ClusterLog(Context(left), "default", "embedded"), LocalEngine())
    pruned: list[int] = []

    def remove(store: MemoryStore) -> None:
        pruned.append(len(prune(ClusterLog(Context(store), "default", "embedded")).segments))

    at = 0
    while True:
        at += 1
        again = copy_files(left)
        store = Meanwhile(again, at, remove)
        log = node_log(store, recovery_mode=mode)
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
    """Several segments are missing after the damage; later opens in every mode succeed."""
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
    """It is the newest segment, and the manifest names a frame in it: the header was whole once."""
    history(memory, segments_=2)
    left = copy_files(memory)
    node_log(left).close()
    for data in (b"", bytes(4096), left.read(segments(left)[1])[:40]):
        damaged = copy_files(left)
        overwrite(damaged, segments(left)[1], data)
        with pytest.raises(LogError):
            node_log(damaged)
        assert damaged.read(segments(left)[1]) == data
