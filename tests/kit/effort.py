"""How much of a random or exhaustive test runs, as a share of the whole: profiles of hypothesis.

dev    while one works on a change: few examples, new ones each time
ci     `make test`: a sixteenth of them, the same ones each time
all    `make test-all`: all of them, new ones each time; the short form of torture
torture  `make torture`: the long form of what is marked `torture`

`pytest --hypothesis-profile=all` chooses one, as does `IMAP_WAL_EFFORT=all`. A test that always has
to run in full does not use this module; one that only `make test-all` runs is marked `thorough`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Sequence

import pytest
from hypothesis import settings

PERCENT = {"dev": 5, "ci": 6, "all": 100, "torture": 1000}
"""Of the 100 examples that hypothesis tries by default."""

thorough = pytest.mark.thorough
"""Only in `make test-all`. docs/decisions/tests.md says what that needs: something quicker in
`make test` has to prove the same."""


every = pytest.mark.every
"""`@every(5)`: of the many parameters of a test, `make test` takes the first, the sixth and so on.
With several lists of parameters, choose a number that has no factor in common with any of their
lengths; otherwise some values are never tried. A test that must notice a deliberate defect is
always taken."""


def leave_out(items: Sequence[pytest.Item], needed: Collection[str]) -> None:
    """Mark as `thorough` what `every` leaves out, but no test whose id is `needed`."""
    seen: Counter[str] = Counter()
    for item in items:
        mark = item.get_closest_marker("every")
        if mark is None:
            continue
        name = item.nodeid.partition("[")[0]
        if seen[name] % mark.args[0] and item.nodeid not in needed:
            item.add_marker(thorough)
        seen[name] += 1


def register() -> None:
    """The profiles, before any test module is imported."""
    for name, percent in PERCENT.items():
        settings.register_profile(
            name, max_examples=percent, deadline=None, derandomize=name == "ci", print_blob=True
        )
    settings.load_profile(os.environ.get("IMAP_WAL_EFFORT", "dev"))


def profile() -> str:
    """The name of the profile of this run."""
    return next(name for name, percent in PERCENT.items() if settings().max_examples == percent)


def share(whole: int, *, least: int = 1, ci: int = PERCENT["ci"]) -> int:
    """How many of `whole` examples, rounds or schedules this run tries. `ci`: how many of a hundred
    in `make test`, for a costly test."""
    percent = ci if profile() == "ci" else min(settings().max_examples, 100)
    return max(min(least, whole), whole * percent // 100)


def is_whole() -> bool:
    """Whether this run tries everything: not in `make test`, nor while one works on a change."""
    return settings().max_examples >= PERCENT["all"]


def step(whole: int = 1) -> int:
    """For a test that tries many places one after the other: the step from one to the next. It is
    `whole` in `make test-all`, sixteen times that in `make test`."""
    return whole * (100 // min(settings().max_examples, 100))


def _is_torture() -> bool:
    return settings().max_examples >= PERCENT["torture"]


def brief(whole: int, percent: float = 4) -> int:
    """How many of `whole` rounds of torture this run tries: all of them in `make torture`."""
    return whole if _is_torture() else max(1, round(whole * percent / 100))


def stride(whole: int = 1) -> int:
    """Torture tries each of many places, one after the other. This is the step from one to the
    next: `whole` in `make torture`."""
    return whole if _is_torture() else whole * 23


def first(rows: Sequence[object], quick: int) -> list[object]:
    """Parameters of a test of which only the first `quick` are in `make test`."""
    return [
        row if number < quick else pytest.param(row, marks=thorough)
        for number, row in enumerate(rows)
    ]
