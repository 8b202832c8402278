"""The page of promises: each is described on the linked page, and its tests exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/promises.md"
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def promises() -> Iterator[tuple[str, str, str]]:
    """(promise, where it is described, its tests) of each line."""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = (
            [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("| ") else []
        )
        if len(cells) == 3 and cells[0] != "promise":
            yield cells[0], cells[1], cells[2]


@cache
def names_of(file: str) -> frozenset[str]:
    """Names of the tests in a file, without importing it."""
    found = ast.parse((ROOT / file).read_text(encoding="utf-8")).body
    return frozenset(
        each.name
        for each in found
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
        and each.name.startswith("test_")
    )


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings."""
    text = re.sub(
        r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    return {
        re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", title.lower()).strip())
        for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    }


PROMISES = list(promises())


def test_no_promise_is_listed_twice() -> None:
    assert len(PROMISES) > 25
    assert len({promise for promise, *_ in PROMISES}) == len(PROMISES)


@pytest.mark.parametrize(
    ("promise", "described", "held"), PROMISES, ids=[promise[:50] for promise, *_ in PROMISES]
)
def test_a_promise_is_described_and_its_tests_exist(
    promise: str, described: str, held: str
) -> None:
    links = re.findall(r"\]\(([\w./-]+)(?:#([\w-]+))?\)", described)
    assert links or promise.startswith("… "), (
        "it names its description, or belongs to the line above"
    )
    for page, anchor in links:
        assert not anchor or anchor in headings(PAGE.parent / page), (
            f"{page} has no heading {anchor}"
        )
    named = TEST.findall(held)
    assert named and TEST.sub("", held).strip() == "", "the tests that check it, and nothing else"
    for file, test in named:
        assert test in names_of(file), f"{file} has no {test}"
