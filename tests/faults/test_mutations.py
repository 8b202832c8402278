"""Do the tests find defects? Each deliberate defect must be caught by the test that is named for
it."""

from __future__ import annotations

import pytest

from tests.faults.mutation import Mutation
from tests.faults.mutations import MUTATIONS
from tests.faults.working_copy import WorkingCopy
from tests.kit.faults import Cases


@pytest.mark.torture
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.name)
def test_every_deliberate_defect_is_caught(
    mutation: Mutation, python: WorkingCopy, cases: Cases
) -> None:
    assert python.survives(mutation) == "", f"{mutation.name} was not caught"
    cases(1)
