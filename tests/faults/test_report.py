"""The page of the fault matrix names every test and every defect there is."""

from __future__ import annotations

import re
from pathlib import Path

from tests.faults.java_defects import IN_JAVA
from tests.faults.mutation import ROOT
from tests.faults.mutations import MUTATIONS
from tests.faults.picked_defects import PICKED, PICKED_IN_JAVA
from tests.faults.report import PAGE, filled, named


def test_the_page_names_exactly_the_matrix_tests() -> None:
    page = (ROOT / PAGE).read_text()
    files = [
        path for path in Path(__file__).parent.glob("test_*.py") if path.name != Path(__file__).name
    ]
    assert named(page) == {
        f"{path.stem}::{test}"
        for path in files
        for test in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
    }


def test_the_page_names_every_defect_and_its_test() -> None:
    page = (ROOT / PAGE).read_text()
    for mutation in MUTATIONS:
        assert (
            f"| {mutation.name} | `{mutation.file}` | `{mutation.test.rpartition('::')[2]}` |\n"
            in page
        )
        source = (ROOT / mutation.test.partition("::")[0]).read_text()
        assert f"def {mutation.test.rpartition('::')[2].partition('[')[0]}(" in source, (
            mutation.name
        )
        assert (ROOT / mutation.file).read_text().count(mutation.old) == 1, (
            f"{mutation.name}: its text is no longer in {mutation.file}"
        )


def test_the_page_names_every_picked_defect() -> None:
    page = (ROOT / PAGE).read_text()
    for mutation in (*PICKED, *PICKED_IN_JAVA):
        file = mutation.file.rpartition("/")[2] if mutation in PICKED_IN_JAVA else mutation.file
        row = f"| {mutation.name} | `{file}` | `{mutation.test.rpartition('::')[2]}` | "
        assert row in page, mutation.name


def test_the_page_names_every_defect_of_the_plugin() -> None:
    page = (ROOT / PAGE).read_text()
    for mutation in IN_JAVA:
        file = mutation.file.rpartition("/")[2]
        assert f"| {mutation.name} | `{file}` | `{mutation.test}` |\n" in page, mutation.name


def test_the_numbers_of_the_page_come_from_the_counts() -> None:
    page = "| 1 | `test_a::test_b` | 7 |  |\n| 2 | `test_a::test_c` |  |  |\n"
    assert (
        filled(page, {"test_a::test_b": {"short": 1234, "long": 5}})
        == "| 1 | `test_a::test_b` | 1,234 | 5 |\n| 2 | `test_a::test_c` |  |  |\n"
    )
