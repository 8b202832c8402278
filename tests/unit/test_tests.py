"""Rules of the tests themselves."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
WORDS_MAX = 10
"""The most words in the name of a test, after `test_`."""


IMPORT = re.compile(r"^\s*from (tests\S*) import (\([^)]*\)|.*)", re.MULTILINE)
NAME = re.compile(r"^\s*(?:async )?def test_(\w+)", re.MULTILINE)


def broken_rules(source: str, own: str = "") -> list[str]:
    """What breaks these rules in a source: code that several tests need is in tests/kit, and the
    name of a test has the promise or the damage, its docstring the details. Expressions find it: a
    parser would need four seconds for all tests. `own`: the name of the module, which programs
    inside of it may import."""
    found = []
    for module, names in IMPORT.findall(source):
        imported = (module.rpartition(".")[2], *re.findall(r"\w+", names))
        found += [
            f"imports another test file: {name}"
            for name in imported
            if name.startswith("test_") and name != own
        ]
    found += [
        f"has more than {WORDS_MAX} words: test_{name}"
        for name in NAME.findall(source)
        if len(name.split("_")) > WORDS_MAX
    ]
    return found


def test_no_test_file_breaks_a_rule() -> None:
    found = [
        f"{path.relative_to(TESTS)}: {what}"
        for path in TESTS.rglob("*.py")
        for what in broken_rules(path.read_text(), path.stem)
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
