"""Which tests belong to a package: `pytest --for imap_wal/write`, `make test FOR=imap_wal/write`.

Those are the tests whose module imports the package or one of its modules. Tests that reach it only
through another package are those of that one.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]


@cache
def modules_of(package: str) -> set[Path]:
    """The test modules that belong to a package, or to a module: `imap_wal/write/ring.py`.

    Raises: ValueError, if there is no such package, or no test imports it.
    """
    place = (ROOT / package.strip("/")).resolve()
    if not place.exists() or not place.is_relative_to(ROOT):
        raise ValueError(f"there is no {package} in {ROOT}")
    name = ".".join(place.relative_to(ROOT).with_suffix("").parts)
    tests = sorted((ROOT / "tests").rglob("*.py"))
    if place.is_relative_to(ROOT / "tests"):
        return {module for module in tests if module.is_relative_to(place)}
    belonging = {
        module
        for module in tests
        if module.name.startswith("test_")
        and any(
            imported == name or imported.startswith(f"{name}.") for imported in _imports(module)
        )
    }
    if not belonging:
        raise ValueError(f"no test imports {name}: name a package of Python, or a folder of tests")
    return belonging


def _imports(module: Path) -> frozenset[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(names)
