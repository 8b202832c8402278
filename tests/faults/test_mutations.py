"""Do the tests find defects? Each deliberate defect must be caught by the test that is named for
it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.mutation import Mutation, survives
from tests.faults.mutations import MUTATIONS
from tests.kit.effort import thorough
from tests.kit.faults import Cases


def check(mutation: Mutation, folder: Path, cases: Cases) -> None:
    assert survives(mutation, folder) == "", f"{mutation.name} was not caught"
    cases(1)


@thorough
@pytest.mark.parametrize(
    "mutation", [each for each in MUTATIONS if each.quick], ids=lambda each: each.name
)
def test_a_deliberate_defect_is_caught(mutation: Mutation, tmp_path: Path, cases: Cases) -> None:
    check(mutation, tmp_path, cases)


@pytest.mark.torture
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.name)
def test_every_deliberate_defect_is_caught(
    mutation: Mutation, tmp_path: Path, cases: Cases
) -> None:
    check(mutation, tmp_path, cases)
