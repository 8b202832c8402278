"""Names of tests: three to ten words that name the promise or the damage. The docstring says the
rest."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
JAVA = re.compile(r"@(?:Parameterized)?Test\b.*?\bvoid (\w+)\(", re.DOTALL)
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def names() -> Iterator[tuple[str, list[str]]]:
    """Each test, and the words of its name."""
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                yield f"{file.name}::{node.name}", node.name.split("_")[1:]
    for file in sorted((ROOT / "hazelcast_plugin/src/test").rglob("*.java")):
        for name in JAVA.findall(file.read_text(encoding="utf-8")):
            yield f"{file.name}::{name}", WORD.findall(name)


def test_names_of_tests_have_three_to_ten_words() -> None:
    found = dict(names())
    assert len(found) > 1500
    assert [name for name, words in found.items() if not 3 <= len(words) <= 10] == []
