"""How many cases the tests of faults and of the simulation have tried, for `docs/reliability.md`
(`python -m tests.faults.report`)."""

from __future__ import annotations

import fcntl
import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.report import COUNTS
from tests.kit import effort

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


def write(exitstatus: int) -> None:
    """Write the counts of this run into the file, of forms that were run as a whole. Each worker of
    pytest-xdist adds its part. Only a run that passed writes."""
    whole = {"all": "short", "torture": "long"}.get(effort.profile(), "")
    counted = {key: number for key, number in _counts.items() if key[0] == whole}
    _counts.clear()
    if not counted or exitstatus:
        return
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", "")
    path = Path(COUNTS)
    path.parent.mkdir(exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:  # other workers of pytest-xdist write too
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = json.loads(path.read_text()) if path.exists() else {}
        for (form, file, test), number in counted.items():
            entry = known.setdefault(f"{file}::{test}", {})
            before = entry.get(form, 0) if run and entry.get("run") == run else 0
            entry |= {form: before + number, "run": run}
        path.write_text(json.dumps(known, indent=1, sort_keys=True))
