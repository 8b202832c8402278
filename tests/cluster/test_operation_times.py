"""No operation of a map waits, whether its key is absent or present.

With an entry processor on an absent key, a backup asked the log and the caller waited five seconds
for it: every operation is measured, because nothing else shows such a wait."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.operation_times import STATES, Times, measured, medians
from tests.kit.effort import thorough

WAITS_MS = 2_000
"""Hazelcast waits five seconds for a backup; a machine with much load is not that slow."""
SLOW_MS = 100
OPERATIONS_MIN = 60


def slow(times: Times, limit_ms: float) -> dict[tuple[str, str], float]:
    assert len(times) >= OPERATIONS_MIN
    found = medians(times)
    assert len(found) == len(times) * len(STATES)
    return {each: taken for each, taken in found.items() if taken > limit_ms}


@thorough
def test_no_operation_waits_for_a_backup(classpath: str, tmp_path: Path) -> None:
    assert slow(measured(tmp_path, classpath, 3), WAITS_MS) == {}


@pytest.mark.alone
@thorough
def test_no_operation_takes_100_ms_at_the_median(classpath: str, tmp_path: Path) -> None:
    assert slow(measured(tmp_path, classpath, 41), SLOW_MS) == {}
