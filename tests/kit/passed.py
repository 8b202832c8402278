"""Tests that have passed are not run again: `pytest --passed=FILE`.

FILE has the id of each test that has passed, one in a line, and each passed test is added to it. So
a run that was stopped, or in which some tests failed, is continued by the same command. A test that
was skipped runs again: what it lacked may be there now.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest


def add_option(parser: pytest.Parser) -> None:
    parser.addoption("--passed", metavar="FILE", help="leave out the tests that FILE names")


def start(config: pytest.Config) -> None:
    """Workers of pytest-xdist read the list as it was before the first test: all of them have to
    collect the same tests, also a worker that starts late, in the place of one that died."""
    if not (name := config.getoption("--passed")):
        return
    path = Path(name)
    if not hasattr(config, "workerinput"):
        path.parent.mkdir(parents=True, exist_ok=True)
        before = path.read_text() if path.exists() else ""
        _before(path).write_text(before)
        config.pluginmanager.register(_Recorder(path), "passed")


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not (name := config.getoption("--passed")):
        return
    before = set(_before(Path(name)).read_text().splitlines())
    passed = [item for item in items if item.nodeid in before]
    items[:] = [item for item in items if item.nodeid not in before]
    config.hook.pytest_deselected(items=passed)


def _before(path: Path) -> Path:
    return path.with_suffix(".before")


class _Recorder:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome != "passed":
            self._failed.add(report.nodeid)
        elif report.when == "teardown" and report.nodeid not in self._failed:
            with self._path.open("a") as file:
                file.write(f"{report.nodeid}\n")


def all_of(path: Path) -> Sequence[str]:
    """The ids of the tests that have passed."""
    return path.read_text().splitlines() if path.exists() else []
