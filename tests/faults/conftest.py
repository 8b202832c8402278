"""Cases of the fault matrix are counted where they run; the session prints the sums, and writes
them to a file for `docs/reliability.md` (`python -m tests.faults.report`)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.report import COUNTS

_counts: Counter[tuple[str, str, str]] = Counter()
"""(form, file, test) → cases."""


@pytest.fixture
def cases(request: pytest.FixtureRequest) -> Callable[[int], None]:
    """Call it with the number of cases that were tried and passed."""
    form = "long" if request.node.get_closest_marker("torture") else "short"
    test = request.node.name.partition("[")[0]

    def count(number: int = 1) -> None:
        if not request.node.get_closest_marker("xfail"):
            _counts[form, request.path.stem, test] += number

    return count


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _counts:
        return
    terminalreporter.section("fault matrix")
    for (form, fault, test), number in sorted(_counts.items()):
        terminalreporter.line(f"{number:9,} {form}  {fault}::{test}")


def pytest_sessionfinish(exitstatus: int) -> None:
    """Only a run that passed writes its counts."""
    if _counts and exitstatus == 0:
        known: dict[str, dict[str, int]] = (
            json.loads(Path(COUNTS).read_text()) if Path(COUNTS).exists() else {}
        )
        for (form, fault, test), number in _counts.items():
            known.setdefault(f"{fault}::{test}", {})[form] = number
        Path(COUNTS).parent.mkdir(exist_ok=True)
        Path(COUNTS).write_text(json.dumps(known, indent=1, sort_keys=True))
