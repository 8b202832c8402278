"""A rule of the tests themselves."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_no_test_file_imports_another_one() -> None:
    """What several need is in tests/kit."""
    found = [
        f"{path.relative_to(TESTS)}: {module}"
        for path in TESTS.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests")
        for module in (node.module or "", *(each.name for each in node.names))
        if module.rpartition(".")[2].startswith("test_")
    ]
    assert not found
