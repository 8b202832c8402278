"""The deliberate defects at picked places, and those of the plug-in, fit the sources."""

from __future__ import annotations

import pytest

from tests.faults.java_defects import IN_JAVA
from tests.faults.mutation import ROOT, Mutation
from tests.faults.picked_defects import PICKED, PICKED_IN_JAVA

JAVA_TESTS = ROOT / "hazelcast_plugin"


@pytest.mark.parametrize(
    "mutation", [*PICKED, *PICKED_IN_JAVA, *IN_JAVA], ids=lambda mutation: mutation.name
)
def test_the_place_of_a_defect_and_its_test_exist(mutation: Mutation) -> None:
    """A change of the source or of a test must change the defect too."""
    assert (ROOT / mutation.file).read_text().count(mutation.old) == 1
    name, _, test = mutation.test.replace("#", "::").partition("::")
    java = mutation.file.endswith(".java")
    path = next(JAVA_TESTS.rglob(f"{name}.java")) if java else ROOT / name
    assert f" {test}(" in path.read_text()


def test_forty_places_were_picked() -> None:
    """Of each package about the same number."""
    assert len({mutation.name for mutation in (*PICKED, *PICKED_IN_JAVA)}) == 40
