"""Rules of the tests themselves."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]
WORDS_MAX = 10
"""The most words in the name of a test, after `test_`."""


def broken_rules(source: str) -> list[str]:
    """What breaks these rules in a source: code that several tests need is in tests/kit, and the
    name of a test has the promise or the damage, its docstring the details."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests"):
            found += [
                f"imports another test file: {module}"
                for module in (node.module or "", *(each.name for each in node.names))
                if module.rpartition(".")[2].startswith("test_")
            ]
        elif (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and node.name.startswith("test_")
            and len(node.name.split("_")) - 1 > WORDS_MAX
        ):
            found.append(f"has more than {WORDS_MAX} words: {node.name}")
    return found


def test_no_test_file_breaks_a_rule() -> None:
    found = [
        f"{path.relative_to(TESTS)}: {what}"
        for path in TESTS.rglob("*.py")
        for what in broken_rules(path.read_text())
    ]
    assert not found


def test_each_broken_rule_is_found() -> None:
    """In a class and of a coroutine too; a name of ten words is allowed."""
    ten = "_".join(["test", *["word"] * 10])
    source = (
        "from tests.log import test_reading\n"
        f"class Group:\n    async def {ten}_more(self): ...\n\ndef {ten}(): ...\n"
    )
    assert broken_rules(source) == [
        "imports another test file: test_reading",
        f"has more than 10 words: {ten}_more",
    ]
