"""The page of promises, and the tasks on the page that compares: each is described on the linked
page, and its tests exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/promises.md"
COMPARISON = ROOT / "docs/comparison.md"
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def tables(page: Path) -> Iterator[list[list[str]]]:
    """The rows of each table, the first of them with the titles of the columns."""
    rows: list[list[str]] = []
    for line in [*page.read_text(encoding="utf-8").splitlines(), ""]:
        if line.startswith("| "):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
        elif rows and not line.startswith("|---"):
            yield rows
            rows = []


def promises(page: Path) -> Iterator[tuple[str, ...]]:
    """(promise, where it is described, its tests) of each line."""
    for title, *rows in tables(page):
        if title[-1] == "verified by":
            yield from map(tuple, rows)


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


PROMISES, TASKS = list(promises(PAGE)), list(promises(COMPARISON))


def test_each_task_that_we_solve_names_its_tests() -> None:
    """And no other task."""
    (table,) = (rows for rows in tables(COMPARISON) if rows[0][:2] == ["task", "imap-wal"])
    assert len(table) == 26
    solved = [row[0] for row in table[1:] if row[1].startswith("✔")]
    assert [re.sub(r"[*\[\]]", "", task) for task, *_ in TASKS] == solved
    peers = {cell[:1] for row in table[1:] for cell in row[1:]}
    assert peers <= {"✔", "○", "–"}, "no other marks are explained"


def test_no_promise_is_listed_twice() -> None:
    assert len(PROMISES) > 25
    assert len({promise for promise, *_ in PROMISES}) == len(PROMISES)


@pytest.mark.parametrize(
    ("promise", "described", "held"),
    [*PROMISES, *TASKS],
    ids=[promise[:50] for promise, *_ in (*PROMISES, *TASKS)],
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
