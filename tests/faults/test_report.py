"""The page of reliability names every test of this folder, and each defect fits the code."""

from __future__ import annotations

import re
from pathlib import Path

from tests.faults.mutation import ROOT
from tests.faults.mutations import MUTATIONS
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


def test_every_defect_has_its_text_and_its_test() -> None:
    for mutation in MUTATIONS:
        file, _, test = mutation.test.partition("::")
        assert f"def {test.partition('[')[0]}(" in (ROOT / file).read_text(), mutation.name
        assert (ROOT / mutation.file).read_text().count(mutation.old) == 1, (
            f"{mutation.name}: its text is no longer in {mutation.file}"
        )


def test_the_numbers_of_the_page_come_from_the_counts() -> None:
    page = "| 1 | `test_a::test_b` | 7 |  |\n| 2 | `test_a::test_c` |  |  |\n"
    assert (
        filled(page, {"test_a::test_b": {"short": 1234, "long": 5}})
        == "| 1 | `test_a::test_b` | 1,234 | 5 |\n| 2 | `test_a::test_c` |  |  |\n"
    )
