"""The tests that notice deliberate defects are in `make test`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

NOT_QUICK = ("thorough", "torture", "storage")
"""The marks of tests that are not in `make test`."""

LATE = frozenset(
    {"pages by rows, not by bytes", "part names of a large range are those of the next"}
)
"""Defects that need a large log to be noticed, so only `make test-all` notices them."""


def noticing() -> dict[str, str]:
    """The id of a test → a deliberate defect in Python code that it must notice."""
    from tests.faults.mutations import MUTATIONS
    from tests.faults.picked_defects import PICKED

    return {defect.test: defect.name for defect in (*MUTATIONS, *PICKED)}


def late_defects(items: Iterable[pytest.Item], defects: Mapping[str, str]) -> list[str]:
    """Which of these defects `make test` would not notice, with their tests. Only tests in files
    that were collected are looked at."""
    files, quick = set(), set()
    for item in items:
        files.add(item.nodeid.partition("::")[0])
        if not any(item.get_closest_marker(mark) for mark in NOT_QUICK):
            quick |= {item.nodeid, item.nodeid.partition("[")[0]}
    return [
        f"{defect}: {test}"
        for test, defect in defects.items()
        if test.partition("::")[0] in files and test not in quick and defect not in LATE
    ]
