"""Rules of the tests themselves."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]
WORDS_MAX = 10
"""The most words in the name of a test, after `test_`."""


def long_names(source: str) -> list[str]:
    """Names of tests in this source that have too many words."""
    return [
        node.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and len(node.name.split("_")) - 1 > WORDS_MAX
    ]


def test_no_test_file_imports_another_one() -> None:
    """Code that several tests need is in tests/kit."""
    found = [
        f"{path.relative_to(TESTS)}: {module}"
        for path in TESTS.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests")
        for module in (node.module or "", *(each.name for each in node.names))
        if module.rpartition(".")[2].startswith("test_")
    ]
    assert not found


def test_no_test_name_has_more_than_ten_words() -> None:
    """The name has the promise or the damage; the docstring has the details."""
    found = [
        f"{path.relative_to(TESTS)}: {name}"
        for path in TESTS.rglob("*.py")
        for name in long_names(path.read_text())
    ]
    assert not found


def test_a_name_of_eleven_words_is_found() -> None:
    """In a class and of a coroutine too; a name of ten words is allowed."""
    ten = "_".join(["test", *["word"] * 10])
    source = f"class Group:\n    async def {ten}_more(self): ...\n\ndef {ten}(): ...\n"
    assert long_names(source) == [f"{ten}_more"]
