"""Do the tests find defects at random places? One test must catch each of them."""

from __future__ import annotations

import pytest

from tests.faults.java_defects import IN_JAVA
from tests.faults.mutation import Mutation
from tests.faults.picked_defects import PICKED, PICKED_IN_JAVA
from tests.faults.working_copy import WorkingCopy, of_java
from tests.kit.faults import Cases

pytestmark = [pytest.mark.torture, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> WorkingCopy:
    return of_java(tmp_path_factory.mktemp("java"))


@pytest.mark.parametrize("mutation", PICKED, ids=lambda mutation: mutation.name)
def test_a_defect_at_a_random_place_is_caught(
    mutation: Mutation, python: WorkingCopy, cases: Cases
) -> None:
    assert python.survives(mutation) == "", f"{mutation.name} was not caught"
    cases(1)


@pytest.mark.parametrize(
    "mutation", [*PICKED_IN_JAVA, *IN_JAVA], ids=lambda mutation: mutation.name
)
def test_a_defect_of_the_plugin_is_caught(
    mutation: Mutation, java: WorkingCopy, cases: Cases
) -> None:
    assert java.survives(mutation) == "", f"{mutation.name} was not caught"
    cases(1)
