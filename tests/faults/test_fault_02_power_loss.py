"""Fault 2: power loss. Bytes and names that were not synced are lost, or kept in part."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage_backends.faults import Fault, FaultyStore, Plan, PowerLoss
from storage_backends.memory import MemoryStore
from tests.faults.disk import BYTES, NAMES
from tests.kit.effort import every, step, stride, thorough
from tests.kit.faults import Cases, check_images, operations, record, strike_at
from tests.support import contents, embedded

CRASHES = tuple((names, data) for names in NAMES for data in BYTES)


@every(2)
@pytest.mark.parametrize("tear", ["prefix", "sectors"])
def test_a_power_loss_at_every_storage_operation_loses_nothing(
    cases: Cases, seed: int, tear: str
) -> None:
    """Nothing that was acknowledged is lost.
    Fault 2."""
    kinds = operations()
    for at in range(1, len(kinds) + 1, min(step(), 4)):
        # Only writing makes bytes that can be lost; of two reads in a row, the second finds the
        # same state as the first.
        if kinds[at - 1] in (
            "sync",
            "append",
            "truncate",
            "create",
            "replace",
            "delete",
            "open_append",
        ):
            strike_at(at, "power-loss", seed + at, go_on=False, tear=tear)
            cases(1)


def test_a_power_loss_dropping_everything_unsynced_loses_nothing(
    tmp_path: Path, cases: Cases, seed: int
) -> None:
    """At every system call; every name and byte that was not synced is lost.
    Fault 2: names too."""
    check_images(record(tmp_path / "disk"), (("none", "none"),), seed, cases)


@thorough
def test_a_power_loss_dropping_unsynced_parts_loses_nothing(
    tmp_path: Path, cases: Cases, seed: int
) -> None:
    """At every system call; any part of the unsynced names and sectors stays.
    Fault 2: names too."""
    check_images(
        record(tmp_path / "disk", preallocate=True),
        (("any", "sectors"), ("prefix", "prefix")),
        seed,
        cases,
        every=4,
        preallocate=True,
    )


@pytest.mark.parametrize("mode", ["torn-tail", "point-in-time"])
def test_lives_that_lose_their_first_commit_leave_an_openable_log(mode: str, seed: int) -> None:
    """Several lives in a row, each with a torn first frame, after all earlier segments were
    archived. Each segment's header names the last frame before it, which only an archive has.
    Fault 2."""
    memory = MemoryStore(f"first-commits-{seed}")
    for life in range(1, 5):
        # The header of a segment is synced first, then its first commit.
        dying = Fault("power-loss", kind="sync", path=f"*-0000000{life + 1}.wal", at=2)
        disk = FaultyStore(memory, Plan((dying,), seed + life))
        with pytest.raises(PowerLoss), embedded(disk, recovery_mode=mode) as store:
            if life == 1:
                store.map("m")["a"] = 1
                store.archive()
            store.map("m")["b"] = life
    assert contents(memory, recovery_mode=mode)["a"] == 1
    with embedded(memory, recovery_mode=mode) as store:
        store.map("m")["b"] = "last"
    assert contents(memory) == {"a": 1, "b": "last"}


@pytest.mark.torture
@pytest.mark.parametrize("preallocate", [False, True])
@pytest.mark.parametrize("tear", ["prefix", "sectors"])
def test_a_power_loss_with_many_seeds_loses_nothing(
    cases: Cases, seed: int, tear: str, preallocate: bool
) -> None:
    """At every storage operation. Work continues.
    Fault 2, long."""
    for at in range(1, len(operations(preallocate=preallocate)) + 1, stride()):
        for more in range(5):
            strike_at(
                at,
                "power-loss",
                seed + at * 5 + more,
                go_on=True,
                tear=tear,
                preallocate=preallocate,
            )
            cases(1)


@pytest.mark.torture
@pytest.mark.parametrize("preallocate", [False, True])
@pytest.mark.parametrize("round", range(5))
def test_a_power_loss_in_every_way_loses_nothing(
    tmp_path: Path, cases: Cases, seed: int, preallocate: bool, round: int
) -> None:
    """At every system call. Work continues.
    Fault 2, long."""
    disk = record(tmp_path / "disk", preallocate=preallocate)
    check_images(
        disk, CRASHES, seed + round, cases, every=stride(), go_on_every=4, preallocate=preallocate
    )
