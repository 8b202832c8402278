"""Schedules are counted where they run."""

from __future__ import annotations

from tests.kit import counts

cases = counts.cases


def pytest_sessionfinish(exitstatus: int) -> None:
    counts.write(exitstatus)
