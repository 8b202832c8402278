"""Counts schedules for `docs/reliability.md`, as `tests/faults` counts cases."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.report import COUNTS

_counts: Counter[tuple[str, str, str]] = Counter()


@pytest.fixture
def cases(request: pytest.FixtureRequest) -> Callable[[int], None]:
    """Call it with the number of schedules that were played without a violation."""
    form = "long" if request.node.get_closest_marker("torture") else "short"
    test = request.node.name.partition("[")[0]

    def count(number: int = 1) -> None:
        _counts[form, request.path.stem, test] += number

    return count


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _counts:
        terminalreporter.section("simulation")
    for (form, file, test), number in sorted(_counts.items()):
        terminalreporter.line(f"{number:9,} {form}  {file}::{test}")


def pytest_sessionfinish(exitstatus: int) -> None:
    """Only a run that passed writes its counts."""
    if _counts and exitstatus == 0:
        path = Path(COUNTS)
        known = json.loads(path.read_text()) if path.exists() else {}
        for (form, file, test), number in _counts.items():
            known.setdefault(f"{file}::{test}", {})[form] = number
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(known, indent=1, sort_keys=True))
