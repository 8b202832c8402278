"""The page of reliability names every file of tests of this folder. Each defect fits the code."""

from __future__ import annotations

from pathlib import Path

from tests.faults.mutation import ROOT
from tests.faults.mutations import MUTATIONS
from tests.faults.report import PAGE, filled, named


def test_the_page_names_exactly_the_matrix_tests() -> None:
    files = {path.stem for path in Path(__file__).parent.glob("test_*.py")}
    assert named((ROOT / PAGE).read_text()) == files - {Path(__file__).stem}


def test_every_defect_has_its_text_and_its_test() -> None:
    for mutation in MUTATIONS:
        file, _, test = mutation.test.partition("::")
        assert f"def {test.partition('[')[0]}(" in (ROOT / file).read_text(), mutation.name
        assert (ROOT / mutation.file).read_text().count(mutation.old) == 1, (
            f"{mutation.name}: its text is no longer in {mutation.file}"
        )


def test_the_numbers_of_the_page_come_from_the_counts() -> None:
    page = "| 1 | `test_a` | 7 |  |\n| 2 | `test_b` |  |  |\n"
    counts = {"test_a::test_c": {"short": 1234, "long": 5}, "test_a::test_d": {"short": 1}}
    assert filled(page, counts) == "| 1 | `test_a` | 1,235 | 5 |\n| 2 | `test_b` |  |  |\n"
