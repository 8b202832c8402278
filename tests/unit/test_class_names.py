"""Names of classes."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("storage_backends", "imap_wal", "pyspark_imap_wal", "rewrite_cli")


def test_no_two_classes_have_one_name() -> None:
    """A reader finds the class at the first guess. Private classes are known in one module only."""
    found: dict[str, list[str]] = defaultdict(list)
    for package in PACKAGES:
        for path in ROOT.glob(f"{package}/**/*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert len(found) > 300
    assert {name: places for name, places in found.items() if len(places) > 1} == {}
